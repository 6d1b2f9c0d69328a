"""Sentences about what a kernel computes: mask, score, scale and its unit, sink, weights, log-sum-exp, heads, types."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..ir.expr import Var, free_vars, substitute
from ..ir.nodes import Mma
from ..ir.text_expr import print_expr
from ..transfer.structure import walk_ops
from .facts import element_type, spans_of
from .known import Known
from .model import Function, Sentence
from .words import formula, mask_sentence, scale_number, score_parts

_LSE = {
    "ln": "It also returns LSE, the natural logarithm of the sum of exp(x) over the keys",
    "log2": "It also returns LSE in base 2: log2 of the sum of exp(x) over the keys",
}


def function_sentences(known: Known) -> Iterator[Sentence]:
    """In the order of reading. Nothing where the formula is not known."""
    f = known.function
    if f is None:
        return
    yield _whole(known, f)
    yield Sentence("mask", mask_sentence(f), known.evidence, known.spans("mask") if _masks(f) else ())
    yield from _score(known, f)
    if f.sink is not None:
        often = "once" if f.sink_weight == 1 else f"{f.sink_weight:g} times"
        text = f"The softmax has a sink: one more logit, {formula(f.sink)}, without a value, counted {often}."
        yield Sentence("weights", text, known.evidence, known.spans("sink"))
    elif f.sink_weight:
        text = f"The row sum starts at {f.sink_weight:g}, so that the weights of a row sum to less than 1."
        yield Sentence("weights", text, known.evidence, known.spans("sink"))
    if f.floor is not None:
        text = f"The running maximum starts at {formula(f.floor)}: weights of scores far below it underflow."
        yield Sentence("weights", text, "read", known.spans("sink"))
    yield from _lse(known, f)
    yield _heads(known, f)
    yield from _types(known)


def _masks(f: Function) -> bool:
    return print_expr(f.mask) != "true"


def _whole(known: Known, f: Function) -> Sentence:
    name = known.kernel.name
    if f.normaliser != "softmax":
        sums = {"sum": " and l that of x", "abs_sum": " and l that of |x|", "none": ""}
        stored = formula(substitute(f.output, {Var("s"): Var("r")}))
        what = f"computes O = {stored}, r the sum of x V over the keys{sums[f.normaliser]}; no softmax is taken"
    elif f.output != Var("s"):
        stored = formula(substitute(f.output, {Var("s"): Var("r")}))
        what = f"computes softmax attention and stores O = {stored}, r the sum of exp(x - max) V over the keys"
    else:
        what = "computes softmax attention, O = softmax(x) V, one row for each query"
    if known.contradicted:
        text = f"The text of {name} reads as if it {what}; executed, it gives something else (see below)."
        return Sentence("function", text, "read", known.spans("weights"))
    return Sentence("function", f"{name} {what}.", known.evidence, known.spans("weights"))


def _score(known: Known, f: Function) -> Iterator[Sentence]:
    kind = "logit" if f.normaliser == "softmax" else "weight"
    parts = [p for p in score_parts(f) if not p.startswith(("scale", "no scale", "a score of its own"))]
    named = f" ({', '.join(parts)})" if parts else ""
    yield Sentence(
        "score", f"The {kind} is x = {formula(f.score)}{named}, s = q . k.", known.evidence, known.spans("score")
    )
    yield from _scale(known, f)


def _scale(known: Known, f: Function) -> Iterator[Sentence]:
    given = next((p for p in known.kernel.params if p.role in ("scale", "scale_log2")), None)
    if given is not None and "scale" in free_vars(f.score):
        spans = () if given.origin.span is None else (given.origin.span,)
        if given.role == "scale":
            yield Sentence("score", f"The caller passes the scale as {given.name}, in natural units.", "read", spans)
        else:
            text = f"The caller passes the scale as {given.name}, times log2(e)."
            yield Sentence("score", text, "read", spans)
        return
    number = scale_number(f)
    if number is None:
        return
    d = known.kernel.D
    usual = math.isclose(number, d**-0.5, rel_tol=1e-5)
    text = "The scores are not scaled." if number == 1 else f"The scale is a number of the kernel's own, {number:.7g}"
    if number != 1:
        text += f", that is 1 / sqrt({d})." if usual else f"; 1 / sqrt(D) would be {d**-0.5:.7g}."
    yield Sentence("score", text, "read", known.spans("score"))


def _lse(known: Known, f: Function) -> Iterator[Sentence]:
    if f.lse == "none":
        return
    spans = known.spans("lse")
    if f.lse in _LSE:
        also = " and the sink" if f.sink is not None else ""
        yield Sentence("lse", f"{_LSE[f.lse]} of a row{also}.", known.evidence, spans)
    else:
        yield Sentence("lse", f"It also stores a value for each row: {f.lse}.", "read", spans)


def _heads(known: Known, f: Function) -> Sentence:
    text = formula(f.head_map)
    if f.head_map == Var("h"):
        words = "Every query head has a KV head of its own."
    elif text == "h // (H // Hkv)":
        words = "Query head h reads KV head h // (H // Hkv): GQA, and MQA with one KV head."
    else:
        words = f"Query head h reads KV head {text}."
    return Sentence("heads", words, known.evidence, known.spans("heads"))


def _types(known: Known) -> Iterator[Sentence]:
    dtype = element_type(known.kernel)
    if not dtype:
        return
    chosen = [n for n, v in known.kernel.instantiation.items() if v == dtype]
    by = f" (template argument {chosen[0]})" if chosen else ""
    rounded = [op for op in walk_ops(known.kernel.body) if isinstance(op, Mma) and op.role == "pv" and op.rounds_a]
    text = f"Q, K and V are {dtype}{by}"
    text += ", to which P is rounded before it meets V." if rounded else "."
    yield Sentence("types", text, "read", spans_of(*rounded))
