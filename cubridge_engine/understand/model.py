"""What understanding a kernel gives: its function, sentences with evidence, facts, and differences. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..diagnostics import Span
from ..ir.expr import TRUE, Const, Expr, S, Var
from ..spec.equations import Equation

OWN_HEAD = Var("h")


@dataclass(frozen=True, slots=True)
class Function:
    """The function that a kernel or a spec computes, in one form, so that two can be compared.

    ``score`` is the natural logit over the raw product ``s``, ``b h hk i j`` and sizes; ``mask`` is the condition as
    the author wrote it, without the tail ``j < Sk``; ``attended`` is where a key really counts: tile guards and the
    visited range included. Both are over indices only (no ``q0``, ``kv0``). ``scale`` stands for the scale parameter,
    whatever its unit in the kernel. `sink_weight` says how often the sink is counted in the row sum; `floor` is where
    the running maximum starts, if it is no sink and not minus infinity. `output` and `normaliser` are as in
    `Semantics`; `lse` is 'ln', 'none', or the words for another convention.
    """

    name: str
    score: Expr
    mask: Expr = TRUE
    attended: Expr = TRUE
    fill: Expr = field(default_factory=lambda: Const(float("-inf")))
    sink: Expr | None = None
    sink_weight: float = 0.0
    floor: Expr | None = None
    normaliser: str = "softmax"
    output: Expr = S
    head_map: Expr = OWN_HEAD
    lse: str = "none"
    empty_rows: str = "none"
    D: int | None = None
    Dv: int | None = None
    kinds: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)  # free name -> float|int|bool|flag
    spans: Mapping[str, Span] = field(default_factory=dict[str, Span], hash=False)  # part -> the line responsible
    issues: tuple[str, ...] = ()
    tile: tuple[int, int] = (64, 64)  # (Br, Bc): points of a comparison lie around its multiples


@dataclass(frozen=True, slots=True)
class Witness:
    """One place at which two functions differ: sizes B H Hkv Sq Sk, the element, and both values in words."""

    sizes: Mapping[str, int]
    b: int
    h: int
    i: int
    j: int | None
    found: str
    expected: str
    values: Mapping[str, float | int] = field(default_factory=dict[str, "float | int"])  # of parameters that matter

    @property
    def place(self) -> str:
        """``b=0 h=0 i=0 j=1``, with the sizes and the values of parameters."""
        element = f"b={self.b} h={self.h} i={self.i}" + ("" if self.j is None else f" j={self.j}")
        lengths = ", ".join(f"{name}={self.sizes[name]}" for name in ("Sq", "Sk"))
        given = "".join(f", {name}={value:g}" for name, value in self.values.items())
        return f"{element} ({lengths}{given})"


@dataclass(frozen=True, slots=True)
class Difference:
    """One part of the function that is not what was expected.

    `part`: heads | mask | fill | score | sink | weights | lse | widths | structure | output; 'undecided' where a part
    cannot be compared, which is no agreement. `span` is the operation
    responsible in what was found, `expected_span` its counterpart.
    """

    part: str
    sentence: str
    found: str
    expected: str
    span: Span | None = None
    expected_span: Span | None = None
    witness: Witness | None = None


@dataclass(frozen=True, slots=True)
class Sentence:
    """One thing that is known (or not) of a kernel, how it is known, and where it stands in the text.

    `topic`: function | score | mask | weights | lse | heads | types | tiles | grid | range | copies | order | roles |
    tails | empty_rows | needs | unknown. `evidence` is a key of `evidence.EVIDENCE`; `lead`: it
    belongs into the paragraph, else into the list below it.
    """

    topic: str
    text: str
    evidence: str
    spans: tuple[Span, ...] = ()
    lead: bool = True


@dataclass(frozen=True, slots=True)
class Fact:
    """One row of the table: how the kernel goes about it. `key` is stable, `name` is for people."""

    key: str
    name: str
    value: str
    evidence: str = "read"
    spans: tuple[Span, ...] = ()


@dataclass(frozen=True, slots=True)
class Explanation:
    """A kernel explained. `title` is one line; `sentences` in the order of reading; `unknown` says what was not
    understood, each with its line.
    """

    kernel: str
    title: str
    equations: tuple[Equation, ...]
    sentences: tuple[Sentence, ...]
    facts: tuple[Fact, ...]
    unknown: tuple[Sentence, ...]

    @property
    def paragraph(self) -> str:
        """The sentences that an engineer would sign, as one paragraph."""
        return " ".join(s.text for s in self.sentences if s.lead)


@dataclass(frozen=True, slots=True)
class Change:
    """A difference of orchestration: the fact on either side ('' where a side has none)."""

    key: str
    name: str
    a: str
    b: str
    a_spans: tuple[Span, ...] = ()
    b_spans: tuple[Span, ...] = ()


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two kernels compared. `same` is None where that could not be decided; `why` then says why, else how it is known.

    `setting`: the values of switches at which the differences hold, in words ('' where there are none).
    """

    same: bool | None
    why: str
    semantic: tuple[Difference, ...]
    orchestration: tuple[Change, ...]
    setting: str = ""
