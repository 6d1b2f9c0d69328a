"""What every emitter needs, and the findings they raise."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..diagnostics import Diagnostic, Span, make
from ..ir.anchors import Anchors
from ..source import SourceFile
from ..transfer.model import NormaliserEdit, Step, TransferResult
from .hunks import Hunk
from .names import Scopes
from .style import Style

_EXACT = frozenset({"expf", "exp2f", "exp", "exp2"})


class CannotLower(Exception):
    """An edit has no place in the text; carries the finding."""

    def __init__(self, diagnostic: Diagnostic) -> None:
        super().__init__(diagnostic.message)
        self.diagnostic = diagnostic


@dataclass(frozen=True)
class Job:
    """One lowering: the file, its anchors, what to reach, and the helpers that print."""

    source: SourceFile
    anchors: Anchors
    result: TransferResult
    scopes: Scopes
    style: Style
    inserted: dict[int, str] = field(default_factory=dict[int, str])  # what hunks so far put in, by place

    @property
    def weighted(self) -> bool:
        """True when the softmax is taken out: the score tile holds weights."""
        return any(isinstance(edit, NormaliserEdit) for _, edit in self.result.edits)

    @property
    def functions(self) -> dict[str, str]:
        """What the kernel calls for its weights, by operator: a weight is as exact, and as fast, as its softmax was."""
        site = self.anchors.softmax
        found = {w.op: w.function for w in site.weights} if site is not None else {}
        approximate = bool(set(found.values()) - _EXACT)
        return {**found, "div": "__fdividef"} if approximate else found

    def text(self, start: int, end: int) -> str:
        """The user's text of a byte range."""
        return self.source.data[start:end].decode("utf-8", "replace")

    def code(self) -> str:
        """The file without comments, literals and directives."""
        return self.source.code.decode("utf-8", "replace")

    def hunk(self, start: int, end: int, new: str, step: Step) -> Hunk:
        """Replace bytes ``[start, end)`` by `new` for `step`."""
        span = self.source.span_of(start, end)
        if start == end:
            self.inserted[start] = self.inserted.get(start, "") + new
        return Hunk(start, end, self.text(start, end), new, step.rule, span.line, step.spec_span)

    def replace(self, span: Span, new: str, step: Step) -> Hunk:
        """Replace the text of `span`."""
        return self.hunk(span.start, span.end, new, step)

    def missing(self, what: str, step: Step) -> CannotLower:
        """The place `what` was not found."""
        kernel = self.scopes.kernel
        span = kernel.origin.span
        return CannotLower(make("CB401", span, what=what, rule=step.rule, kernel=kernel.name))

    def line_indent(self, offset: int) -> str:
        """The white space of the line that holds `offset`."""
        start = self.source.data.rfind(b"\n", 0, offset) + 1
        line = self.source.data[start:offset]
        return line[: len(line) - len(line.lstrip(b" \t"))].decode()

    def column(self, offset: int) -> str:
        """The text of the line before `offset`."""
        start = self.source.data.rfind(b"\n", 0, offset) + 1
        return self.text(start, offset)

    def previous_line(self, offset: int) -> str:
        """The line before the one that holds `offset`."""
        start = self.source.data.rfind(b"\n", 0, offset)
        before = self.source.data.rfind(b"\n", 0, max(start, 0)) + 1
        return self.text(before, max(start, 0))
