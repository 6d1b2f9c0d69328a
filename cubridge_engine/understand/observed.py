"""Sentences about what was seen when the compiled kernel ran in the simulator, and where that disagrees with the text.

What was watched is one problem: the sentences say so. Reading and watching are compared on that problem by numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..diagnostics import Span
from ..ir.evaluate import UnboundName, evaluate
from ..ir.expr import Expr, reads
from ..ir.nodes import Kernel
from ..transfer.structure import NotAttention
from ..watch.model import Problem, Site, Watched
from .functions import function_of_kernel
from .model import Explanation, Fact, Function, Sentence

Array = NDArray[Any]
_LSE = {"natural": "ln", "log2": "log2", "": "none"}
_SITES = (
    ("S", "scores are complete"),
    ("masked S", "scores are masked"),
    ("m", "the running maximum is updated"),
    ("P", "weights are taken"),
    ("l", "the row sum is updated"),
    ("O rescaled", "O is rescaled"),
    ("O", "O is normalised"),
    ("LSE", "LSE is made"),
)
_UNITS = {"raw": "raw", "scaled": "scaled", "log2": "times log2(e)"}


def with_watched(e: Explanation, w: Watched, kernel: Kernel | None) -> Explanation:
    """`e` with what was seen when the kernel ran: where it disagrees with the text first, then what it shows, then what
    it does not. `kernel` is the one that was read whole, None where it was not.
    """
    found: tuple[Sentence, ...] = ()
    if kernel is not None:
        try:
            flags = tuple(p.name for p in kernel.params if p.role == "flag")
            found = tuple(disagreements(function_of_kernel(kernel), w, flags))
        except NotAttention:
            found = ()
    seen = tuple(observed_sentences(w))
    title = e.title
    if not e.equations and w.function is not None:
        title = f"{title}; run, it computes {w.function.name}"
    return replace(
        e,
        title=title,
        sentences=(*found, *e.sentences, *seen),
        facts=(*e.facts, *observed_facts(w)),
        unknown=(*e.unknown, *observed_unknown(w)),
    )


def observed_sentences(w: Watched) -> Iterator[Sentence]:
    """What the run shows. Nothing where it did not run, or where its output is no known function."""
    if not w.ran or w.problem is None:
        return
    sizes = _sizes(w.problem)
    f = w.function
    if f is not None:
        text = f"Run in the simulator ({sizes}), its output is that of {f.name}, within {f.error:.1e}."
        yield Sentence("function", text, "observed", _spans(w.of("O")))
        if f.alike:
            text = f"This problem cannot tell it from: {', '.join(f.alike)}."
            yield Sentence("function", text, "observed", lead=False)
    for walk in w.walks[:1]:
        last = f"keys {walk.keys[0]} to {walk.keys[1]}"
        text = f"The CTA {walk.cta} reads rows {walk.rows[0]} to {walk.rows[1]} of head {walk.h}, {last}, {walk.order}."
        yield Sentence("range", text, "observed", lead=False)
    for d in w.findings:
        spans = () if d.span is None else (d.span,)
        yield Sentence("finding", f"The simulator finds: {d.message} ({d.code}).", "observed", spans)


def observed_unknown(w: Watched) -> Iterator[Sentence]:
    """Why watching says nothing of the function."""
    if not w.ran:
        why = "; ".join(d.message for d in w.diagnostics) or "no reason was given"
        yield Sentence("unknown", f"It was not run in the simulator: {why}.", "observed")
        return
    if w.function is None and w.problem is not None:
        text = (
            f"Run in the simulator ({_sizes(w.problem)}), its output is none of the attention functions that are known."
        )
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


def disagreements(function: Function, w: Watched, flags: tuple[str, ...]) -> Iterator[Sentence]:
    """Where the text and the run do not say the same on the problem that was watched. `flags` are its switches."""
    if w.function is None or w.problem is None or w.function.meaning is None:
        return
    p, seen, meaning = w.problem, w.function, w.function.meaning
    shape = (p.B, p.H, p.Sq, p.Sk)
    mask = _value(function.mask, function, p, flags)
    spans = _part(function, "mask")
    if mask is not None:
        want = np.broadcast_to(meaning.mask, shape)
        wrong = np.argwhere(np.broadcast_to(mask.astype(bool), shape) != want)
        if len(wrong):
            b, h, i, j = (int(n) for n in wrong[0])
            text = f"Reading and watching disagree on the mask, first at b={b} h={h} i={i} j={j}"
            there = "attended" if want[b, h, i, j] else "masked"
            yield Sentence("disagreement", f"{text}: {there} when it ran.", "observed", spans)
    score = _value(function.score, function, p, flags, {"s": meaning.raw})
    if score is not None and mask is not None:
        both = np.broadcast_to(mask.astype(bool), shape) & np.broadcast_to(meaning.mask, shape)
        wrong = both & ~np.isclose(np.broadcast_to(score, shape), meaning.scores, rtol=1e-3, atol=1e-4)
        if wrong.any():
            b, h, i, j = (int(n) for n in np.argwhere(wrong)[0])
            text = f"Reading and watching disagree on the score at b={b} h={h} i={i} j={j}: "
            text += f"{float(np.broadcast_to(score, shape)[b, h, i, j]):.4g} by the text, "
            text += f"{float(meaning.scores[b, h, i, j]):.4g} when it ran."
            yield Sentence("disagreement", text, "observed", _part(function, "score"))
    if seen.lse in _LSE and function.lse in ("ln", "log2") and _LSE[seen.lse] not in (function.lse, "none"):
        text = f"Reading and watching disagree on LSE: {function.lse} by the text, {seen.lse} when it ran."
        yield Sentence("disagreement", text, "observed", _part(function, "lse"))


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


def _sizes(p: Problem) -> str:
    sizes = ", ".join(f"{name} = {value}" for name, value in p.sizes.items() if name != "Dv" or p.Dv != p.D)
    return f"{sizes}, {p.dtype}" + (", a causal switch on" if p.causal else "")


def _spans(sites: tuple[Site, ...]) -> tuple[Span, ...]:
    return tuple(dict.fromkeys(s.span for s in sites if s.span is not None))


def _part(function: Function, part: str) -> tuple[Span, ...]:
    span = function.spans.get(part)
    return () if span is None else (span,)
