"""The frame of findings: a finding is a Diagnostic with its kind, how sure it is, how it was found, and maybe a fix.

Rules of reading, of watching and of comparing with an expectation all give `Finding`; the CLI, the editor and the
baseline know nothing else. A finding of severity error is proven; what only may be wrong is a warning or a note.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ..compile import bundled_contracts
from ..diagnostics import Diagnostic, Severity, Span

if TYPE_CHECKING:
    from .subject import Subject

Method = Literal["reading", "watching", "expectation", "frame"]
Confidence = Literal["certain", "likely"]
# What a finding is about; one word, for filters and tables.
Kind = Literal[
    "pipeline", "barrier", "memory", "overflow", "warp", "softmax", "mask", "range", "heads", "interface", "numeric",
    "frame",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace the bytes of `span` (empty: insert there) by `text`."""

    span: Span
    text: str


@dataclass(frozen=True, slots=True)
class Fix:
    """A change of the text that takes the finding away. `title` is what the editor shows (``Insert __syncthreads()``).

    The edits of one file, none overlapping. `fixes.verified` says whether it may be offered.
    """

    title: str
    edits: tuple[Edit, ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong with a kernel. `diagnostic` has code, sentence, line, related places and the way out."""

    diagnostic: Diagnostic
    kind: Kind
    confidence: Confidence = "certain"
    method: Method = "reading"
    fix: Fix | None = None

    @property
    def code(self) -> str:
        """The catalogue's code."""
        return self.diagnostic.code

    @property
    def span(self) -> Span | None:
        """The responsible place."""
        return self.diagnostic.span

    @property
    def severity(self) -> Severity:
        """As configured."""
        return self.diagnostic.severity


@dataclass(frozen=True, slots=True)
class Example:
    """A rule's own test and the example of its page: in the bundled kernel `kernel`, each old text of `changes` (which
    occurs once) becomes the new one. The finding is on the line of the changed text that contains `marker`.
    """

    kernel: str
    changes: tuple[tuple[str, str], ...]
    marker: str

    @property
    def base(self) -> Path:
        """The clean kernel's file."""
        return next(p for p in bundled_contracts() if p.parent.name == self.kernel).parent / "kernel.cu"

    @property
    def text(self) -> str:
        """The faulty kernel. Raises ValueError where the clean one has changed under it."""
        text = self.base.read_text("utf-8")
        for old, new in self.changes:
            if text.count(old) != 1:
                raise ValueError(f"{self.kernel} has {old!r} {text.count(old)} times")
            text = text.replace(old, new)
        return text


@dataclass(frozen=True, slots=True)
class Rule:
    """A row of the table of rules. Its code's sentence, severity and way out are the catalogue's.

    `why` and `repair` are the page: paragraphs of plain text. `run` gives the findings on a subject; it may assume
    nothing of the subject, `lifted.kernel` least of all. None for rules whose findings come from elsewhere (watching).
    """

    code: str
    kind: Kind
    title: str  # a few words: heading of the page
    why: str
    repair: str
    example: Example | None
    run: Callable[[Subject], Iterable[Finding]] | None = None
    method: Method = "reading"


@dataclass(frozen=True, slots=True)
class CheckConfig:
    """What the user set. `severities`: code -> severity, None for off (``[check]`` of cubridge.toml). `arch`: target of
    the limit of shared memory; None: the contract's largest.
    """

    severities: Mapping[str, Severity | None] = field(default_factory=dict[str, "Severity | None"])
    arch: str | None = None


@dataclass(frozen=True, slots=True)
class Suppression:
    """An inline ``// cubridge: ignore[CB850] reason`` and the line (0-based) it speaks for."""

    span: Span
    codes: tuple[str, ...]
    reason: str
    line: int


@dataclass(frozen=True, slots=True)
class Checked:
    """What `check` found: `findings` to be shown, in the order of the text; `suppressed` by comments of the file."""

    findings: tuple[Finding, ...]
    suppressed: tuple[Finding, ...] = ()
    seconds: float = 0.0
    read: bool = True  # False: the kernel was not read as a whole, so that rules on its program had nothing to read
    notes: tuple[str, ...] = ()  # what was not looked at, and why

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """Those of the findings."""
        return tuple(f.diagnostic for f in self.findings)
