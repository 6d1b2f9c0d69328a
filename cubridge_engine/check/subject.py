"""What rules look at: the text, what lifting made of it, and the contract; facts that several rules need, made once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ..compile import Contract
from ..diagnostics import Diagnostic, Related, Severity, Span, make
from ..ir.nodes import Kernel
from ..lift import Lifted
from ..lift.observed import Either, Observed, Repeat, Step
from ..lift.trace import Place
from ..source import Function, SourceFile
from .model import CheckConfig, Confidence, Finding, Fix, Kind


@dataclass
class Subject:
    """One kernel under check. `kernel` is None where the kernel was not read as a whole; `observed` is there always."""

    source: SourceFile
    lifted: Lifted
    contract: Contract | None = None
    config: CheckConfig = field(default_factory=CheckConfig)
    failed: list[str] = field(default_factory=list[str])  # rules that could not be asked, and why

    @property
    def kernel(self) -> Kernel | None:
        """The program, where reading found one."""
        return self.lifted.kernel

    @property
    def observed(self) -> Observed:
        """Accesses, barriers and shuffles as execution met them."""
        return self.lifted.observed

    @cached_property
    def function(self) -> Function | None:
        """The kernel's definition: the one that was read, or the file's only one."""
        found = self.source.kernels()
        if self.kernel is not None:
            return next((f for f in found if f.name == self.kernel.name), None)
        return found[0] if len(found) == 1 else None

    @cached_property
    def races(self) -> tuple[Finding, ...]:
        """Accesses of shared memory with no barrier between them (`rules.races`), which two rules ask for."""
        from .rules.races import found_races

        return tuple(found_races(self))

    @cached_property
    def name(self) -> str:
        """The kernel's name, for sentences."""
        return self.function.name if self.function is not None else "the kernel"

    def span(self, place: Place) -> Span:
        """Where an event is in the kernel's own body."""
        return self.source.span_of(*place.site)

    def inside(self, place: Place, words: str) -> tuple[Related, ...]:
        """The line inside the device function that was called there, if it was."""
        return (Related(self.source.span_of(*place.callee), words),) if place.callee is not None else ()

    def text(self, span: Span) -> str:
        """The user's text of a span."""
        return self.source.data[span.start : span.end].decode("utf-8", "replace")


def finding(
    code: str,
    span: Span | None,
    kind: Kind,
    *,
    related: tuple[Related, ...] = (),
    confidence: Confidence = "certain",
    severity: Severity | None = None,
    fix: Fix | None = None,
    **fields: Any,
) -> Finding:
    """A finding of reading with the catalogue's sentence; `severity` where it differs from the catalogue's."""
    made = make(code, span, related=related, **fields)
    if severity is not None:
        made = Diagnostic(made.code, made.message, severity, made.span, made.help, made.related, made.data)
    return Finding(made, kind, confidence, fix=fix)


def every(steps: tuple[Step, ...]) -> Iterator[Step]:
    """All steps, those inside loops and branches too."""
    for step in steps:
        if isinstance(step, Repeat):
            yield from every(step.body)
        elif isinstance(step, Either):
            yield from every(step.then)
            yield from every(step.orelse)
        else:
            yield step
