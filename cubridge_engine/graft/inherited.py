"""Findings that a grafted kernel has from its original: reads of shared memory that was never written, such as those of
rows beyond the last query. They are no reason to refuse a graft while every number is right: what was not written is
NaN in the simulator.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..compile import Compiled, Contract
from ..diagnostics import Diagnostic, Span, make
from ..ir.nodes import Kernel
from ..spec.attention import Attention
from ..verify.explain import Binding
from ..verify.grid import Case
from ..verify.instances import Instances
from ..verify.simulated_level import SimulatedJob, run_simulated

UNWRITTEN = "CB518"
Key = tuple[str, str, tuple[tuple[str, str], ...]]  # code, words, file name and text of each line it names


@dataclass(frozen=True, slots=True)
class Original:
    """The kernel as it was: what it was compiled to, how it is called, and its text."""

    compiled: Compiled
    contract: Contract
    text: bytes


class Known:
    """Which findings of the changed kernel are those of the original, by the lines that they name."""

    def __init__(self, own: Collection[Key], path: str, text: bytes) -> None:
        self._own, self._path, self._text = own, path, text
        self._met: dict[Key, Diagnostic] = {}

    def __call__(self, finding: Diagnostic) -> bool:
        """True for a finding that the original has, too; it is kept for `notes`."""
        key = key_of(finding, self._path, self._text)
        if key not in self._own:
            return False
        self._met.setdefault(key, finding)
        return True

    def notes(self) -> list[Diagnostic]:
        """What was met, as notes."""
        return [make("CB441", d.span, finding=d.code, what=d.message) for d in self._met.values()]


def own_findings(original: Original, path: str, instances: Instances, names: Collection[str]) -> set[Key]:
    """Reads of what was never written, of the original on the problems of those names."""

    def cases(attention: Attention, kernel: Kernel) -> Sequence[Case]:
        return [c for c in instances.cases_at(attention, kernel) if c.name in names]

    subject = instances.subject
    plain = replace(subject, binding=Binding(subject.binding.values, {}), contract=original.contract)
    first = Instances(plain, original.contract, instances.attention, instances.preparer, cases)
    found: list[Diagnostic] = []

    def keep(finding: Diagnostic) -> bool:
        found.append(finding)
        return True  # the numbers are those of another function: only what is found counts

    job = SimulatedJob(original.contract, original.compiled, path, original.text, "keep", known=keep)
    run_simulated(job, first, lambda *_: None, stop_after=len(names) * 8)
    return {key_of(d, path, original.text) for d in found if d.code == UNWRITTEN}


def key_of(finding: Diagnostic, path: str, text: bytes) -> Key:
    """A finding without numbers: those of lines differ between the texts, those of bytes and warps between launches."""
    spans = [finding.span, *(r.span for r in finding.related)]
    said = re.sub(r"\d+", "", finding.message)
    return finding.code, said, tuple(_line(span, path, text) for span in spans if span is not None)


def _line(span: Span, path: str, text: bytes) -> tuple[str, str]:
    try:
        data = text if span.path == path else Path(span.path).read_bytes()
    except OSError:
        data = b""
    lines = data.split(b"\n")
    line = lines[span.line] if span.line < len(lines) else b""
    return Path(span.path).name, line.strip().decode("utf-8", "replace")
