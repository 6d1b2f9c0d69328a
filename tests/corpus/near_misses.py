"""Near misses of an `Attention`, made from its expressions: what a hurried reader, rule or person would have it mean.

Which of them mean the same after all (a per-row constant cancels in softmax) is found by brute force, never listed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cubridge_engine.ir.expr import Call, Const, Expr, Read, Var, call, rebuild, type_of
from cubridge_engine.ir.text_expr import print_expr
from cubridge_engine.spec import Attention, evaluate_attention, make_inputs
from cubridge_engine.verify.derive import choose_heads

ROW, KEY, HEAD, BATCH = Var("i"), Var("j"), Var("h"), Var("b")
KV_HEADS, SQ, SK = Var("Hkv"), Var("Sq"), Var("Sk")
LARGE_NEGATIVE = Const(-1e30)


@dataclass(frozen=True)
class NearMiss:
    """A wrong reading: what was changed, where, and the value."""

    kind: str
    what: str
    attention: Attention

    @property
    def name(self) -> str:
        """Unique among the near misses of one Attention."""
        return f"{self.kind}: {self.what}"


Change = Callable[[Expr], Iterator[Expr]]


def _everywhere(expr: Expr, change: Change) -> Iterator[tuple[Expr, Expr, Expr]]:
    """For each subexpression that `change` has something for: the old one, the new one, and the whole."""
    for new in change(expr):
        yield expr, new, new
    if isinstance(expr, Call):
        for position, arg in enumerate(expr.args):
            for old, new, inner in _everywhere(arg, change):
                args = (*expr.args[:position], inner, *expr.args[position + 1 :])
                yield old, new, Call(expr.op, args)


_STRICT = {"lt": "le", "le": "lt", "gt": "ge", "ge": "gt"}
_ORDERS = (*_STRICT, "eq", "ne")
_OTHER_SIGN = {"add": "sub", "sub": "add"}


class _Changes:
    """The table of changes, over expressions whose operands have the types given."""

    def __init__(self, attention: Attention) -> None:
        self.types = {item.name: _kind(item.dtype) for item in attention.operands}
        self.axes = {item.name: item.axes for item in attention.operands}

    def is_int(self, expr: Expr) -> bool:
        return type_of(expr, self.types) == "int"

    def shifted(self, e: Expr) -> Iterator[Expr]:
        if isinstance(e, Call) and e.op in _ORDERS and all(map(self.is_int, e.args)):
            yield Call(e.op, (e.args[0], e.args[1] + 1))
            yield Call(e.op, (e.args[0], e.args[1] - 1))

    def strict(self, e: Expr) -> Iterator[Expr]:
        if isinstance(e, Call) and e.op in _STRICT:
            yield Call(_STRICT[e.op], e.args)

    def sign(self, e: Expr) -> Iterator[Expr]:
        if isinstance(e, Call) and e.op in _OTHER_SIGN:
            yield Call(_OTHER_SIGN[e.op], e.args)
        if isinstance(e, Call) and e.op == "neg":
            yield e.args[0]

    def dropped(self, e: Expr) -> Iterator[Expr]:
        if isinstance(e, Call) and e.op in ("add", "sub", "and", "or"):
            yield e.args[0]
            if e.op != "sub":
                yield e.args[1]
        if isinstance(e, Call) and e.op in ("tanh", "abs", "sign", "relu", "sigmoid"):
            yield e.args[0]

    def exchanged(self, e: Expr) -> Iterator[Expr]:
        if isinstance(e, Call) and e.op in ("and", "or"):
            yield Call("or" if e.op == "and" else "and", e.args)

    def aligned(self, e: Expr) -> Iterator[Expr]:
        if e == ROW:
            yield ROW + (SK - SQ)
        if e in (SK, SQ):
            yield Const(0)

    def transposed(self, e: Expr) -> Iterator[Expr]:
        if not isinstance(e, Read):
            return
        axes = self.axes[e.tensor]
        for a in range(len(axes)):
            for b in range(a + 1, len(axes)):
                if {axes[a], axes[b]} <= {"Sq", "Sk"} or axes[a] == axes[b]:
                    index = list(e.index)
                    index[a], index[b] = index[b], index[a]
                    if tuple(index) != e.index:
                        yield Read(e.tensor, tuple(index))

    def distance(self, e: Expr) -> Iterator[Expr]:
        if isinstance(e, Call) and e.op == "sub" and set(e.args) == {ROW, KEY}:
            yield call("abs", e)
        if isinstance(e, Call) and e.op == "floordiv":
            yield Call("mod", e.args)

    def table_shifted(self, e: Expr) -> Iterator[Expr]:
        """The neighbour of a looked up column; the last one stays."""
        if not isinstance(e, Read):
            return
        for a, (at, axis) in enumerate(zip(e.index, self.axes[e.tensor], strict=True)):
            if axis.isdigit() and int(axis) > 1 and not isinstance(at, Const):
                yield Read(e.tensor, (*e.index[:a], call("min", at + 1, int(axis) - 1), *e.index[a + 1 :]))

    def another_head(self, e: Expr) -> Iterator[Expr]:
        if isinstance(e, Read) and HEAD in e.index:
            index = tuple(HEAD % 2 if x == HEAD else x for x in e.index)
            yield Read(e.tensor, index)

    def another_batch(self, e: Expr) -> Iterator[Expr]:
        if isinstance(e, Read) and BATCH in e.index:
            yield Read(e.tensor, tuple(Const(0) if x == BATCH else x for x in e.index))


def near_misses(attention: Attention) -> list[NearMiss]:
    """All near misses, each once."""
    changes = _Changes(attention)
    table: tuple[tuple[str, Change], ...] = (
        ("comparison shifted by one", changes.shifted),
        ("strict for non-strict", changes.strict),
        ("sign flipped", changes.sign),
        ("term dropped", changes.dropped),
        ("and for or", changes.exchanged),
        ("alignment", changes.aligned),
        ("operand axes swapped", changes.transposed),
        ("distance", changes.distance),
        ("head of an operand", changes.another_head),
        ("column of a table", changes.table_shifted),
        ("batch of an operand", changes.another_batch),
    )
    found: dict[tuple[Any, ...], NearMiss] = {}

    def add(kind: str, what: str, changed: Attention) -> None:
        key = (changed.score, changed.mask, changed.sink, changed.head_map, changed.fill)
        if key != (attention.score, attention.mask, attention.sink, attention.head_map, attention.fill):
            found.setdefault(key, NearMiss(kind, what, changed))

    for part in ("score", "mask", "sink"):
        expr = getattr(attention, part)
        for kind, change in table if expr is not None else ():
            for old, new, whole in _everywhere(expr, change):
                add(kind, f"{part}: {print_expr(old)} -> {print_expr(new)}", replace(attention, **{part: whole}))
    for kind, what, changed in _whole(attention):
        add(kind, what, changed)
    return list(found.values())


def _whole(attention: Attention) -> Iterator[tuple[str, str, Attention]]:
    """Near misses of the parts together."""
    if attention.mask is not None:
        yield "term dropped", "no mask", replace(attention, mask=None)
        yield "sign flipped", "mask negated", replace(attention, mask=call("not", attention.mask))
    if attention.sink is not None:
        yield "term dropped", "no sink", replace(attention, sink=None)
    # A map that says the same as h // (H // Hkv) wherever H is Hkv is wrong as soon as heads are shared.
    if ("H", "Hkv") not in attention.equal_sizes and attention.specialised.get("Hkv") != 1:
        yield "head map", "h % Hkv", replace(attention, head_map=HEAD % KV_HEADS)
        yield "head map", "h // Hkv", replace(attention, head_map=call("min", HEAD // KV_HEADS, KV_HEADS - 1))
    capped = _cap(attention.score)
    if capped is not None:
        outer, inner = capped
        if attention.mask is not None:
            masked = call("where", attention.mask, inner, LARGE_NEGATIVE)
            yield "order", "softcap after the mask", replace(attention, score=outer(masked), mask=None)
        if isinstance(inner, Call) and inner.op in ("add", "sub") and not _has_s(inner.args[1]):
            moved = Call(inner.op, (outer(inner.args[0]), inner.args[1]))
            yield "order", "bias after the softcap", replace(attention, score=moved)
    if isinstance(attention.score, Call) and attention.score.op in ("add", "sub"):
        first, second = attention.score.args
        capped = _cap(first)
        if capped is not None and not _has_s(second):
            moved = capped[0](Call(attention.score.op, (capped[1], second)))
            yield "order", "bias before the softcap", replace(attention, score=moved)


def _has_s(expr: Expr) -> bool:
    return expr == Var("s") or (isinstance(expr, Call) and any(map(_has_s, expr.args)))


def _cap(score: Expr) -> tuple[Callable[[Expr], Expr], Expr] | None:
    """``c * tanh(inner / c)`` taken apart: what puts the cap on, and what it is put on."""
    for cap in (e for e in _walk(score) if isinstance(e, Call) and e.op == "tanh"):
        (argument,) = cap.args
        inner = argument
        if isinstance(argument, Call) and argument.op in ("div", "mul") and isinstance(argument.args[1], Const):
            inner = argument.args[0]

        def outer(x: Expr, cap: Expr = cap, inner: Expr = inner) -> Expr:
            return _with(score, cap, _with(cap, inner, x))

        rest = _with(score, cap, Const(0.0))
        return (outer, inner) if not _has_s(rest) else None
    return None


def _walk(expr: Expr) -> Iterator[Expr]:
    yield expr
    for arg in expr.args if isinstance(expr, Call) else ():
        yield from _walk(arg)


def _with(expr: Expr, old: Expr, new: Expr) -> Expr:
    return new if expr == old else rebuild(expr, lambda e: _with(e, old, new))


def _kind(dtype: str) -> str:
    return "bool" if dtype == "bool" else "int" if dtype.startswith(("int", "uint")) else "float"


# ---- do they differ? ------------------------------------------------------------------------------------------------

# Short first: most near misses show at once. The last two are beyond the numbers of most specs.
LENGTHS = ((24, 40), (40, 24), (97, 97), (1, 33), (430, 430), (9, 1100))
CLEARLY = 1e-4


def problems(attention: Attention) -> Iterator[list[Any]]:
    """Inputs in float64 at lengths below and beyond every number of the spec, with shared heads where it takes them."""
    heads = choose_heads(attention)
    assert heads is not None
    step = attention.size_step
    for seed, (sq, sk) in enumerate(LENGTHS):
        sizes = {"B": 2, "H": heads.grouped[0], "Hkv": heads.grouped[1]}
        sizes |= {"Sq": -(-sq // step) * step, "Sk": -(-sk // step) * step, **attention.specialised}
        for a, b in attention.equal_sizes:
            sizes[b] = sizes[a]
        tensors = make_inputs(attention, sizes, "float32", seed=seed)
        yield [(t.double() if t.dtype.is_floating_point else t).numpy() for t in tensors]


def difference(attention: Attention, other: Attention) -> float:
    """The largest difference of O relative to its largest element, over `problems`; stops where it is plain to see.
    Infinity where one is NaN and the other is not, or reads beyond a tensor. Rounding alone gives less than 1e-9.
    """
    worst = 0.0
    place = next(n for n, output in enumerate(attention.outputs) if output.role == "o")
    for arrays in problems(attention):
        mine = evaluate_attention(attention, arrays)[place]
        try:
            theirs = evaluate_attention(other, arrays)[place]
        except (IndexError, ValueError):
            return float("inf")
        if not np.array_equal(np.isfinite(mine), np.isfinite(theirs)):
            return float("inf")
        finite = np.isfinite(mine)
        scale = max(float(np.abs(mine[finite]).max(initial=0.0)), 1e-30)
        worst = max(worst, float(np.abs(mine - theirs)[finite].max(initial=0.0)) / scale)
        if worst > CLEARLY:
            break
    return worst
