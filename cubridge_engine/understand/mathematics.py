"""A kernel's function as equations, in the form in which a spec is written: one equation a line, with its line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..diagnostics import Span
from ..ir.expr import Const, Var, free_vars, substitute
from ..ir.text_expr import print_const, print_expr
from ..spec.equations import Equation
from .model import Function
from .words import formula, mask_at, settings_of, switches_of


def equations_of(function: Function) -> tuple[Equation, ...]:
    """The definition of O (and LSE) for one batch b, head h, query i and key j."""
    return tuple(_equations(function))


def _equations(f: Function) -> Iterator[Equation]:
    line = _lines(f.spans)
    head = "h" if f.head_map == Var("h") else "hk"
    if head == "hk":
        yield Equation("head_map", "hk", formula(f.head_map), line.get("heads"))
    yield Equation("product", "s", f"sum over d of Q[b, h, i, d] * K[b, {head}, j, d]")
    yield from _score(f, line)
    if f.sink is not None:
        often = "" if f.sink_weight == 1 else f", counted {f.sink_weight:g} times"
        text = f"{formula(f.sink)}   (one more column of this logit, with no value{often})"
        yield Equation("sink", "sink", text, line.get("sink"))
    yield from _weights(f, head, line)
    if f.lse in ("ln", "log2"):
        extra = " + exp(sink)" if f.sink is not None else ""
        name = "log" if f.lse == "ln" else "log2"
        unit = "natural logarithm" if f.lse == "ln" else "base 2"
        yield Equation("lse", "lse", f"{name}(sum over j of exp(x){extra})   ({unit})", line.get("lse"))


def _lines(spans: Mapping[str, Span]) -> dict[str, int]:
    return {part: span.line for part, span in spans.items()}


def _score(f: Function, line: Mapping[str, int]) -> Iterator[Equation]:
    names = switches_of(f.mask, f)
    masks = [(setting, mask_at(f, setting)) for setting in settings_of(names)]
    if all(print_expr(mask) == "true" for _, mask in masks):
        yield Equation("score", "x", formula(f.score), line.get("score"))
        return
    yield Equation("score", "x", f"{formula(f.score)}   where", line.get("score"))
    same = len({print_expr(mask) for _, mask in masks}) == 1
    for n, (setting, mask) in enumerate(masks[:1] if same else masks):
        when = "" if same else "   if " + " and ".join(f"{k} = {int(v)}" for k, v in setting.items())
        text = "every key" if print_expr(mask) == "true" else formula(mask)
        yield Equation("mask", "", f"    {text}{when}", line.get("mask") if n == 0 else None)
    fill = print_const(f.fill.value) if isinstance(f.fill, Const) else formula(f.fill)
    yield Equation("fill", "", f"{fill}   elsewhere")


def _weights(f: Function, head: str, line: Mapping[str, int]) -> Iterator[Equation]:
    at = line.get("weights")
    row = f"sum over j of p * V[b, {head}, j, d]"
    if f.normaliser == "softmax":
        yield Equation("normaliser", "p", f"softmax over j of x{' and the sink' if f.sink is not None else ''}", at)
        yield from _output(f, row, at, divided=True)
        return
    yield Equation("normaliser", "p", "x   (no softmax: the score itself is the weight)", at)
    if f.normaliser in ("sum", "abs_sum"):
        yield Equation("divisor", "l", f"sum over j of {'|p|' if f.normaliser == 'abs_sum' else 'p'}")
    yield from _output(f, row, at, divided=False)


def _output(f: Function, row: str, at: int | None, divided: bool) -> Iterator[Equation]:
    if f.output == Var("s"):
        yield Equation("output", "o", row, at)
        return
    if divided and "l" in free_vars(f.output):
        row = row.replace("p *", "exp(x - max) *")
        yield Equation("divisor", "l", "sum over j of exp(x - max)")
    yield Equation("row", "r", row)
    yield Equation("output", "o", formula(substitute(f.output, {Var("s"): Var("r")})), at)
