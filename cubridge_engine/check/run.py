"""`check`: all rules of reading on one kernel; `check_file`: on all kernels of a file. Neither ever raises."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from ..compile import Contract
from ..diagnostics import Diagnostic, Severity, make
from ..lift import Lifted
from ..source import SourceFile
from ..source.settings import Settings, find_settings
from . import codes as codes
from .causes import new_causes, undecided_left
from .model import CheckConfig, Checked, Finding
from .rules import BY_CODE, READING
from .subject import Subject
from .suppress import apply, suppressions

_WORDS: dict[str, Severity | None] = {
    "error": Severity.ERROR, "warning": Severity.WARNING, "note": Severity.NOTE, "hint": Severity.HINT, "off": None,
}  # fmt: skip
# A tile that is copied, awaited or read wrongly makes everything behind it look wrong too.
_FIRST = frozenset({"CB850", "CB853"})
_BEHIND = frozenset({"CB848", "CB863", "CB864", "CB865", "CB866", "CB867"})


def check(
    source: SourceFile, lifted: Lifted, contract: Contract | None = None, config: CheckConfig | None = None
) -> Checked:
    """What reading finds wrong with the kernel that `lifted` is of. `contract`: what the launch promises, if known."""
    return check_file(source, (lifted,), contract, config)


def check_file(
    source: SourceFile,
    lifts: Sequence[Lifted],
    contract: Contract | None = None,
    config: CheckConfig | None = None,
    others: Iterable[Finding] = (),
    *,
    watched: bool = False,
) -> Checked:
    """The same for several kernels of one file; a contract counts for the kernel that it names. `others` are findings
    of watching and expectation, which are suppressed and configured as those of reading are; `watched`: the kernel was
    executed, so that a comment about such a finding that was not found is of no use.
    """
    start = time.perf_counter()
    config = config or CheckConfig()
    found, notes = list[Finding](), list[str]()
    for lifted in lifts:
        subject = Subject(source, lifted, _of(contract, lifted), config)
        found += _plain(_all(subject))
        notes += subject.failed
    # What is turned off says nothing, so it neither hides nor decides what another method says of the same place.
    found, others = _on(found, config), _on(others, config)
    found = undecided_left(found, others)
    found = [*new_causes(found, others), *found]
    shown = _ordered(_configured(_unique(found), config))
    kept, suppressed, frame = apply(shown, suppressions(source), lambda code: watched or _by_reading(code))
    read = all(lifted.kernel is not None for lifted in lifts)
    everything = _ordered([*kept, *_configured(frame, config)])
    return Checked(tuple(everything), tuple(suppressed), time.perf_counter() - start, read, tuple(notes))


def _by_reading(code: str) -> bool:
    rule = BY_CODE.get(code)
    return rule is not None and rule.run is not None


def _of(contract: Contract | None, lifted: Lifted) -> Contract | None:
    """The contract, if it is this kernel's."""
    if contract is None or lifted.kernel is None or len(lifted.choices) < 2:
        return contract
    return contract if contract.name == lifted.kernel.name else None


def _all(subject: Subject) -> Iterable[Finding]:
    """Findings of every rule. A rule that fails says nothing: a check must not be what breaks the editor."""
    for run in READING:
        try:
            yield from list(run(subject))
        except Exception as error:  # the boundary of the room: any text may arrive here
            subject.failed.append(f"{getattr(run, '__name__', 'a rule')}: {type(error).__name__}: {error}")


def _plain(found: Iterable[Finding]) -> list[Finding]:
    """Without those that only follow from another."""
    listed = list(found)
    if any(f.code in _FIRST for f in listed):
        listed = [f for f in listed if f.code not in _BEHIND]
    return listed


def _unique(found: Iterable[Finding]) -> list[Finding]:
    """One finding for a line and kind of fault: rules that see more of it come first."""
    seen: set[tuple[object, ...]] = set()
    kept: list[Finding] = []
    for item in found:
        line = (item.span.path, item.span.line) if item.span is not None else None
        group = "barrier" if item.code in ("CB845", "CB851", "CB852") else item.code
        if (line, group) not in seen:
            seen.add((line, group))
            kept.append(item)
    return kept


def _on(found: Iterable[Finding], config: CheckConfig) -> list[Finding]:
    """Those whose code is not turned off."""
    return [item for item in found if config.severities.get(item.code, item.severity) is not None]


def _configured(found: Iterable[Finding], config: CheckConfig) -> list[Finding]:
    kept: list[Finding] = []
    for item in found:
        severity = config.severities.get(item.code, item.severity)
        if severity is not None:
            diagnostic = item.diagnostic
            same = severity is diagnostic.severity
            kept.append(item if same else replace(item, diagnostic=replace(diagnostic, severity=severity)))
    return kept


def _ordered(found: Sequence[Finding]) -> list[Finding]:
    return sorted(found, key=lambda f: (f.span is None, f.span.start if f.span is not None else 0, f.code))


# ---- settings


def config_for(path: Path) -> tuple[CheckConfig, tuple[Diagnostic, ...]]:
    """The configuration for the file at `path`, from its project's settings (``[check]``), and what is wrong there."""
    return config_of(find_settings(path))


def config_of(settings: Settings) -> tuple[CheckConfig, tuple[Diagnostic, ...]]:
    """``severity = {CB869 = "off"}`` and ``arch = "sm_90"``; a key that means nothing is CB894."""
    found = list(settings.diagnostics)

    def bad(key: str, why: str) -> None:
        found.append(make("CB894", settings.start, key=key, path=settings.path, why=why))

    table = settings.table.get("check", {})
    if not isinstance(table, dict):
        bad("check", "it is a table: [check]")
        return CheckConfig(), tuple(found)
    severities: dict[str, Severity | None] = {}
    arch: str | None = None
    for key, value in cast("dict[str, object]", table).items():
        if key == "severity" and isinstance(value, dict):
            for code, word in cast("dict[str, object]", value).items():
                if code not in BY_CODE and code not in codes.CODES:
                    bad(f"check.severity.{code}", "it is no code of a finding")
                elif not isinstance(word, str) or word not in _WORDS:
                    bad(f"check.severity.{code}", f"it is one of {', '.join(_WORDS)}")
                else:
                    severities[code] = _WORDS[word]
        elif key == "arch" and isinstance(value, str):
            arch = value
        else:
            bad(f"check.{key}", "the keys are severity (a table) and arch (a text)")
    return CheckConfig(severities, arch), tuple(found)
