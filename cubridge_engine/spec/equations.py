"""An `Attention` as a page of mathematics: one equation a line, in the user's names, with the user's lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..ir.expr import Call, Const, Expr, Var
from ..ir.text_expr import print_const, print_expr
from .attention import Attention, TensorInput
from .inputs import shape_of

EMPTY_ROWS = {
    "nan": "a row without keys gives NaN, as softmax of -inf alone does",
    "zero": "a row without keys gives 0 (and a logsumexp of -inf)",
    "computed": "a row without keys follows the formula as it stands: its fill is finite, or a sink remains",
    "none": "every row has a key",
}
_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "int32": 4, "int64": 8, "bool": 1}


@dataclass(frozen=True)
class Equation:
    """`left` = `text` (or, with an empty `left`, a continuation); `line` is the user's, from 0, where one stands
    behind it.
    """

    part: str
    left: str
    text: str
    line: int | None = None


def equations(attention: Attention) -> tuple[Equation, ...]:
    """The definition of the outputs for one batch b, head h, query i and key j."""
    return tuple(_equations(attention))


def _equations(a: Attention) -> Iterator[Equation]:
    line = _lines(a)
    q, k, v = (a.input(role) for role in "qkv")
    shared = a.head_map != Var("h")
    if shared:
        yield Equation("head_map", "hk", print_expr(a.head_map), line.get("head_map"))
    yield Equation("product", "s", f"sum over d of {_element(q, shared)} * {_element(k, shared)}", line.get("product"))
    yield from _score(a, line)
    if a.sink is not None:
        own = "one more column of this logit, with no value"
        yield Equation("sink", "sink", f"{print_expr(a.sink)}   ({own})", line.get("sink"))
    yield from _weights(a, line)
    over = f"sum over j of p * {_element(v, shared)}"
    yield Equation("output", "o", over + (f" / ({print_expr(a.divisor)})" if a.divisor is not None else ""))
    if any(o.role == "lse" for o in a.outputs):
        extra = " + exp(sink)" if a.sink is not None else ""
        yield Equation("lse", "lse", f"log(sum over j of exp(x){extra})   (natural logarithm)")


def _lines(a: Attention) -> dict[str, int]:
    """The user's line of each part; of the score, the last one that changes it before the mask does."""
    line = {part: span.line for part, span in a.spans.items()}
    for meaning in a.meanings:
        if "product" in meaning.kinds:
            line.setdefault("product", meaning.line)
        if "score" in meaning.kinds and "mask" not in meaning.kinds and meaning.line != line.get("mask"):
            line["score"] = meaning.line
    return line


def _score(a: Attention, line: Mapping[str, int]) -> Iterator[Equation]:
    score = print_expr(a.score)
    if a.mask is None:
        yield Equation("score", "x", score, line.get("score"))
        return
    yield Equation("score", "x", f"{score}   where", line.get("score"))
    for n, part in enumerate(_conjuncts(a.mask)):
        text = print_expr(part)
        yield Equation("mask", "", f"  {'and ' if n else '    '}{text}", line.get("mask") if n == 0 else None)
    fill = print_const(a.fill.value) if isinstance(a.fill, Const) else print_expr(a.fill)
    yield Equation("fill", "", f"{'0' if a.normaliser != 'softmax' else fill}   elsewhere")


def _conjuncts(expr: Expr) -> list[Expr]:
    if isinstance(expr, Call) and expr.op == "and":
        return [part for arg in expr.args for part in _conjuncts(arg)]
    return [expr]


def _weights(a: Attention, line: Mapping[str, int]) -> Iterator[Equation]:
    at = line.get("normaliser")
    if a.normaliser == "softmax":
        yield Equation("normaliser", "p", f"softmax over j of x{' and the sink' if a.sink is not None else ''}", at)
        return
    yield Equation("normaliser", "p", "x   (no softmax: the score itself is the weight)", at)
    if a.normaliser in ("sum", "abs_sum"):
        yield Equation("divisor", "l", f"sum over j of {'|p|' if a.normaliser == 'abs_sum' else 'p'}")


def _element(item: TensorInput, shared: bool) -> str:
    axes = (("hk" if shared else "h") if axis == "hk" else axis for axis in item.axes)
    return f"{item.name}[{', '.join(axes)}]"


def tensor_bytes(item: TensorInput, sizes: Mapping[str, int]) -> int | None:
    """Bytes of an input at these sizes; None where a size is not known."""
    try:
        shape = shape_of(item, sizes)
    except KeyError:
        return None
    count = _BYTES.get(item.dtype, 0)
    for n in shape:
        count *= n
    return count


def size_words(attention: Attention) -> tuple[str, ...]:
    """For which sizes the reading holds, in words; empty when for all."""
    words: list[str] = []
    if attention.specialised:
        words.append(", ".join(f"{k} = {v}" for k, v in attention.specialised.items()) + " only")
    words += [f"{a} = {b}" for a, b in attention.equal_sizes]
    words += [f"{a} at most {b}" for a, b in attention.ordered_sizes]
    if attention.size_step > 1:
        words.append(f"Sq and Sk multiples of {attention.size_step}")
    return tuple(words)
