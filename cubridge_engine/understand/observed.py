"""Sentences about what was seen when the compiled kernel ran in the simulator, and where that disagrees with the text.

What was watched is one problem: the sentences say so. Reading and watching are compared on that problem by numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..diagnostics import Diagnostic, Span, make
from ..ir.evaluate import UnboundName, evaluate
from ..ir.expr import Expr, reads
from ..ir.nodes import Kernel
from ..lift import Lifted
from ..transfer.structure import NotAttention
from ..watch.function import head_maps, scales
from ..watch.merge import problem_words
from ..watch.model import Function as Observed
from ..watch.model import Meaning, Problem, Site, Watched
from .functions import function_of_kernel
from .model import Explanation, Fact, Function, Sentence

Array = NDArray[Any]
_LSE = {"natural": "ln", "log2": "log2", "": "none"}
_SITES = (
    ("S", "scores are complete"),
    ("score", "scores are capped or biased"),
    ("masked S", "scores are masked"),
    ("masked score", "scores are masked"),
    ("m", "the running maximum is updated"),
    ("reference", "a reference in place of the running maximum is taken"),
    ("P", "weights are taken"),
    ("l", "the row sum is updated"),
    ("O rescaled", "O is rescaled"),
    ("O", "O is normalised"),
    ("LSE", "LSE is made"),
)
_UNITS = {"raw": "raw", "scaled": "scaled", "log2": "times log2(e)"}


def with_watched(
    e: Explanation, w: Watched, kernel: Kernel | None, lifted: Lifted | None = None
) -> tuple[Explanation, tuple[Disagreement, ...]]:
    """`e` with what was seen when the kernel ran, and where that disagrees with the text: this comes first. `kernel` is
    the one that was read whole, None where it was not; `lifted` the reading with what was watched (`watch.merge`).
    """
    found, compared = all_disagreements(w, kernel, lifted)
    said = tuple(Sentence("disagreement", d.text, "observed", d.spans) for d in found)
    agreeing = tuple(_agreement(w, lifted)) if compared and not found else ()
    title = e.title
    if not e.equations and w.function is not None:
        if lifted is not None and lifted.coverage.observed:
            title = f"{e.title.split(':')[0]}: {lifted.coverage.sentence().split(';')[0]} of attention"
        title = f"{title}; run, it computes {w.function.name}"
    steps = tuple(_observed_steps(lifted)) if lifted is not None else ()
    explained = replace(
        e,
        title=title,
        sentences=(*said, *e.sentences, *observed_sentences(w), *steps, *agreeing),
        facts=(*e.facts, *observed_facts(w)),
        unknown=(*_still_unknown(e, lifted), *observed_unknown(w)),
    )
    return explained, found


def all_disagreements(
    w: Watched, kernel: Kernel | None, lifted: Lifted | None = None
) -> tuple[tuple[Disagreement, ...], bool]:
    """Where reading and watching disagree, and whether their functions could be compared at all."""
    steps = () if lifted is None else tuple(step_disagreements(lifted))
    if kernel is None or w.function is None:
        return steps, False
    try:
        flags = tuple(p.name for p in kernel.params if p.role == "flag")
        return (*disagreements(function_of_kernel(kernel), w, flags), *steps), True
    except NotAttention:
        return steps, False


def _agreement(w: Watched, lifted: Lifted | None) -> Iterator[Sentence]:
    if w.problem is None:
        return
    text = f"Reading and watching agree on its function ({problem_words(w.problem)})"
    seen = [one for one in lifted.seen if one.read == "agrees"] if lifted is not None else []
    if seen:
        count = len([m for m in lifted.coverage.landmarks if m.found]) if lifted is not None else 0
        text += f"; {len(seen)} of {count} steps were seen on the very lines that were read"
    yield Sentence("agreement", f"{text}.", "observed", lead=False)


def _observed_steps(lifted: Lifted) -> Iterator[Sentence]:
    """The steps that are known from watching alone."""
    names = {mark.name for mark in lifted.coverage.landmarks if mark.provenance == "observed"}
    found = [one for one in lifted.seen if one.name in names]
    if found:
        words = ", ".join(one.words for one in found)
        yield Sentence("function", f"Seen when it ran, not read: {words}.", "observed", tuple(s.span for s in found))


def _still_unknown(e: Explanation, lifted: Lifted | None) -> tuple[Sentence, ...]:
    """What is not known, without the steps that were seen."""
    if lifted is None:
        return e.unknown
    seen = {mark.words for mark in lifted.coverage.landmarks if mark.provenance == "observed"}
    return tuple(s for s in e.unknown if not any(s.text.startswith(f"{words} was not found") for words in seen))


def observed_sentences(w: Watched) -> Iterator[Sentence]:
    """What the run shows. Nothing where it did not run, or where its output is no known function."""
    if not w.ran or w.problem is None:
        return
    sizes = problem_words(w.problem)
    f = w.function
    if f is not None:
        text = f"Run in the simulator ({sizes}), its output is that of {f.name}, within {f.error:.1e}."
        yield Sentence("function", text, "observed", _spans(w.of("O")))
        if f.alike:
            text = f"This problem cannot tell it from: {', '.join(f.alike)}."
            yield Sentence("function", text, "observed", lead=False)
        if f.confirmed and f.low is None and not f.block:
            text = f"A window of {w.problem.Sk} keys or more would not show on this problem."
            yield Sentence("function", text, "observed", lead=False)
    for walk in w.walks[:1] if w.grid is not None else ():
        last = f"keys {walk.keys[0]} to {walk.keys[1]}"
        text = f"The CTA {walk.cta} reads rows {walk.rows[0]} to {walk.rows[1]} of head {walk.h}, {last}, {walk.order}."
        yield Sentence("range", text, "observed", lead=False)
    yield from _items(w)
    if len(w.warps) > 1:
        does = "; ".join(f"{role.words}: {', '.join(role.does)}" for role in w.warps)
        yield Sentence("roles", f"Of a CTA, {does}.", "observed", lead=False)
    for d in w.findings:
        spans = () if d.span is None else (d.span,)
        yield Sentence("finding", f"The simulator finds: {d.message} ({d.code}).", "observed", spans)


def _items(w: Watched) -> Iterator[Sentence]:
    """How a CTA that does several items went through them."""
    first = w.walks[0].cta if w.walks else None
    mine = [walk for walk in w.walks if walk.cta == first]
    if len({(walk.b, walk.h, walk.rows) for walk in mine}) > 1 and len({walk.rows for walk in mine}) > 1:
        tiles = "; then ".join(
            f"rows {k.rows[0]} to {k.rows[1]} of head {k.h} (keys {k.keys[0]} to {k.keys[1]}, {k.order})" for k in mine
        )
        yield Sentence("range", f"The CTA {first} does one item after the other: {tiles}.", "observed", lead=False)


def observed_unknown(w: Watched) -> Iterator[Sentence]:
    """Why watching says nothing of the function."""
    if not w.ran:
        why = "; ".join(d.message for d in w.diagnostics) or "no reason was given"
        yield Sentence("unknown", f"It was not run in the simulator: {why}.", "observed")
        return
    if w.function is None and w.problem is not None:
        where = f"Run in the simulator ({problem_words(w.problem)})"
        text = f"{where}, its output is none of the attention functions that are known."
        yield Sentence("unknown", text, "observed")


def observed_facts(w: Watched) -> Iterator[Fact]:
    """Where each step of attention was seen, by the values of instructions."""
    for role, words in _SITES:
        sites = [s for s in w.of(role) if s.confidence == "certain"]
        if sites:
            units = ", ".join(dict.fromkeys(_UNITS[s.units] for s in sites if s.units in _UNITS))
            instructions = sum(len(s.labels) for s in sites)
            value = f"{instructions} result{'s' if instructions != 1 else ''} of instructions"
            value += f" ({units})" if units else ""
            yield Fact(f"site:{role}", f"{words} at", value, "observed", _spans(tuple(sites)))
    if w.grid is not None:
        axes = ", ".join(f"blockIdx.{axis} is {what}" for axis, what in w.grid.axes.items() if what)
        if axes:
            yield Fact("grid:observed", "grid as it ran", axes, "observed")


@dataclass(frozen=True, slots=True)
class Disagreement:
    """One part of the function (or a step) that the text and the run do not say the same of, with both statements.

    `part`: mask | score | LSE | sink | head map | step.
    """

    part: str
    where: str  # ``, first at b=0 h=0 i=0 j=1``, '' where it holds everywhere
    read: str
    seen: str
    problem: str
    spans: tuple[Span, ...] = ()

    @property
    def text(self) -> str:
        """A sentence."""
        said = f"{self.read} by the text, {self.seen} when it ran"
        return f"Reading and watching disagree on {self.what}{self.where}: {said}."

    @property
    def what(self) -> str:
        """The part as a sentence has it."""
        return self.part if self.part == "LSE" else f"the {self.part}"

    def diagnostic(self) -> Diagnostic:
        """CB132, on the line that was read so."""
        span = self.spans[0] if self.spans else None
        return make(
            "CB132", span, part=self.what, where=self.where, read=self.read, seen=self.seen,
            problem=self.problem,
        )  # fmt: skip


def disagreements(function: Function, w: Watched, flags: tuple[str, ...]) -> Iterator[Disagreement]:
    """Where the text and the run do not say the same on the problem that was watched. `flags` are its switches."""
    if w.function is None or w.problem is None or w.function.meaning is None:
        return
    words = problem_words(w.problem)
    for part, found in (("mask", _mask), ("score", _score), ("LSE", _lse), ("sink", _sink), ("head map", _heads)):
        said = found(function, w.function, w.function.meaning, w.problem, flags)
        if said is not None:
            spans = _part(function, {"LSE": "lse", "head map": "heads"}.get(part, part))
            yield Disagreement(part, *said, words, spans)


def step_disagreements(lifted: Lifted) -> Iterator[Disagreement]:
    """Steps that were seen where reading has others, of a reading with what was watched (`watch.merge`)."""
    reads = {mark.name: mark.span for mark in lifted.coverage.landmarks}
    for one in lifted.seen:
        span = reads.get(one.name)
        if one.read == "conflicts" and span is not None:
            read, seen = f"{one.words} on line {span.line + 1}", f"{one.holds} on line {one.span.line + 1}"
            yield Disagreement("step", "", read, seen, one.problem, (span,))


_Said = tuple[str, str, str]  # where, by the text, when it ran


def _mask(function: Function, seen: Observed, meaning: Meaning, p: Problem, flags: tuple[str, ...]) -> _Said | None:
    mask = _value(function.mask, function, p, flags)
    if mask is None or (seen.alike and p.Sq != p.Sk):
        return None
    shape = (p.B, p.H, p.Sq, p.Sk)
    want = np.broadcast_to(meaning.mask, shape)
    wrong = np.argwhere(np.broadcast_to(mask.astype(bool), shape) != want)
    if not len(wrong):
        return None
    b, h, i, j = (int(n) for n in wrong[0])
    words = ("masked", "attended")
    there = bool(want[b, h, i, j])
    return f", first at b={b} h={h} i={i} j={j}", words[not there], words[there]


def _score(function: Function, seen: Observed, meaning: Meaning, p: Problem, flags: tuple[str, ...]) -> _Said | None:
    score = _value(function.score, function, p, flags, {"s": meaning.raw})
    mask = _value(function.mask, function, p, flags)
    if score is None or mask is None:
        return None
    shape = (p.B, p.H, p.Sq, p.Sk)
    both = np.broadcast_to(mask.astype(bool), shape) & np.broadcast_to(meaning.mask, shape)
    read, ran = np.broadcast_to(score, shape).astype(float), np.broadcast_to(meaning.scores, shape).astype(float)
    fitted = bool(seen.slopes) or seen.softcap is not None
    if seen.slopes:  # what a bias adds to a whole row changes no weight
        count = np.maximum(both.sum(-1, keepdims=True), 1)
        read, ran = (x - np.where(both, x, 0).sum(-1, keepdims=True) / count for x in (read, ran))
    # A formula that was fitted is known within the precision of weights only.
    exact = not fitted and seen.scale_text in scales(p.D, p.scale)
    rtol, atol = (1e-3, 1e-4) if exact else (2e-2, 5e-2)
    wrong = both & ~np.isclose(read, ran, rtol=rtol, atol=atol)
    if not wrong.any():
        return None
    b, h, i, j = (int(n) for n in np.argwhere(wrong)[0])
    return f" at b={b} h={h} i={i} j={j}", f"{read[b, h, i, j]:.4g}", f"{ran[b, h, i, j]:.4g}"


def _lse(function: Function, seen: Observed, _meaning: Meaning, _p: Problem, _flags: tuple[str, ...]) -> _Said | None:
    if seen.lse in _LSE and function.lse in ("ln", "log2") and _LSE[seen.lse] not in (function.lse, "none"):
        return "", function.lse, seen.lse
    return None


def _sink(function: Function, seen: Observed, _meaning: Meaning, _p: Problem, _flags: tuple[str, ...]) -> _Said | None:
    words = ("none", "there is one")
    read, ran = function.sink is not None, seen.sink is not None
    if not seen.confirmed or read == ran or seen.weights != "softmax" or function.normaliser != "softmax":
        return None
    return "", words[read], words[ran]


def _heads(function: Function, seen: Observed, _meaning: Meaning, p: Problem, flags: tuple[str, ...]) -> _Said | None:
    maps = head_maps(p)
    value = _value(function.head_map, function, p, flags)
    if value is None or seen.head_map not in maps or p.Hkv == p.H:
        return None
    read = np.broadcast_to(value, (1, p.H, 1, 1)).reshape(-1).astype(int)
    wrong = np.flatnonzero(read != maps[seen.head_map])
    if not len(wrong):
        return None
    h = int(wrong[0])
    return f" of head {h}", f"KV head {read[h]}", f"KV head {int(maps[seen.head_map][h])}"


def _value(
    expr: Expr, function: Function, p: Problem, flags: tuple[str, ...], more: dict[str, Any] | None = None
) -> Array | None:
    """An expression of the function on the watched problem; None where that needs what was not part of it."""
    if reads(expr):
        return None
    axes = (("b", p.B), ("h", p.H), ("i", p.Sq), ("j", p.Sk))
    env: dict[str, Any] = {**p.sizes, "scale": p.scale, **dict.fromkeys(flags, p.causal), **(more or {})}
    for at, (name, count) in enumerate(axes):
        env[name] = np.arange(count).reshape([-1 if n == at else 1 for n in range(4)])
    try:
        return np.asarray(evaluate(expr, env))
    except (UnboundName, ValueError, TypeError):
        return None


def _spans(sites: tuple[Site, ...]) -> tuple[Span, ...]:
    return tuple(dict.fromkeys(s.span for s in sites if s.span is not None))


def _part(function: Function, part: str) -> tuple[Span, ...]:
    span = function.spans.get(part)
    return () if span is None else (span,)
