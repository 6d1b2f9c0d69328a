"""The rules of `check` that only read, on a reading that is there; and their fixes, verified. It runs in threads.

A fix is offered only after `cubridge_engine.check` has verified it on this very text.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cubridge_engine.compile import Contract, contract_beside, read_contract
from cubridge_engine.diagnostics import Diagnostic, make

from . import codes as codes
from . import wording

if TYPE_CHECKING:
    from cubridge_engine.check import Finding, Fix

    from .engine import Reading

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Found:
    """A finding in the words of an editor, and the verified fix for it."""

    finding: Finding
    diagnostic: Diagnostic
    fix: Fix | None = None


@dataclass(frozen=True, slots=True)
class Checks:
    """What the rules found in one version of a file, in the order of its kernels."""

    found: tuple[Found, ...] = ()
    broken: Diagnostic | None = None  # a rule broke: said, so that no findings does not look like nothing wrong

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """Those of the findings, each once: a device function that two kernels call is found twice."""
        own = (item.diagnostic for item in self.found)
        return tuple(dict.fromkeys((*own, *((self.broken,) if self.broken else ()))))

    @property
    def fixable(self) -> bool:
        """Whether a fix could be verified."""
        return any(item.finding.fix is not None for item in self.found)


def run(path: str, reading: Reading) -> Checks:
    """Check every kernel that was read. Never raises: what breaks is logged, and told."""
    source = reading.source
    if source is None:
        return Checks()
    try:
        from cubridge_engine.check import check_file, config_for

        config, _ = config_for(Path(path))  # what is wrong with the settings is told in their own file
        found = check_file(source, [named.lift for named in reading.lifts], _contract(path), config).findings
    except Exception:  # a rule never raises by contract; if one does, the editor stays alive and says so
        LOG.exception("checking %s failed", path)
        return Checks(broken=make("CB084", name=path.rpartition("/")[2]))
    return Checks(tuple(Found(item, wording.of_editor(item.diagnostic)) for item in found))


def with_fixes(path: str, reading: Reading, checks: Checks) -> Checks:
    """`checks` with the fixes that were verified. Never raises."""
    return Checks(tuple(_verified(path, reading, item) for item in checks.found), checks.broken)


def _verified(path: str, reading: Reading, item: Found) -> Found:
    fix, source, span = item.finding.fix, reading.source, item.diagnostic.span
    if fix is None or source is None or span is None:
        return item
    # A line of a device function is in no kernel: then the kernel that a command without a name means.
    view = reading.covering(span.line, span.end_line)
    try:
        from cubridge_engine.check import config_for
        from cubridge_engine.check.fixes import verified

        config, _ = config_for(Path(path))
        sure = verified(source, item.finding, _contract(path), config, view.name if view else None)
        return Found(item.finding, item.diagnostic, fix if sure else None)
    except Exception:
        LOG.exception("verifying a fix of %s failed", item.diagnostic.code)
        return item


def _contract(path: str) -> Contract | None:
    """The contract beside the kernel, if it is sound: what is wrong with it is told elsewhere."""
    beside = contract_beside(Path(path))
    return read_contract(beside)[0] if beside is not None else None
