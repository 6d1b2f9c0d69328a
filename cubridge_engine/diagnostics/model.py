"""The one Diagnostic type of the engine: plain data in editor terms (path, span, code, sentence, way out)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum


class Severity(IntEnum):
    """Ordered so that ``max`` of a list is its worst; the numbers are not those of LSP."""

    HINT = 0
    NOTE = 1
    WARNING = 2
    ERROR = 3


@dataclass(frozen=True, slots=True)
class Span:
    """A half-open byte range ``[start, end)`` of one file, with the 0-based line and byte column of both ends."""

    path: str
    start: int
    end: int
    line: int
    column: int
    end_line: int
    end_column: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line + 1}:{self.column + 1}"

    def contains(self, other: Span) -> bool:
        """True when `other` lies wholly inside this span of the same file."""
        return self.path == other.path and self.start <= other.start and other.end <= self.end


@dataclass(frozen=True, slots=True)
class Related:
    """A second place that explains a diagnostic (the spec line behind a kernel line, the other access of a race)."""

    span: Span
    message: str


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One finding. `code` is a key of the catalogue; `message` is one sentence; `help` is the way out."""

    code: str
    message: str
    severity: Severity
    span: Span | None = None
    help: str = ""
    related: tuple[Related, ...] = ()
    data: dict[str, object] = field(default_factory=dict, hash=False)
