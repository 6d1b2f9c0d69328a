"""The function of a kernel or of a spec, brought to one form.

Tile indices are written out over ``i`` and ``j``, guards and the visited range become part of where a key counts, and
the scale parameter is ``scale`` whatever its unit: what is left depends on no tile shape and on no name but those of
switches, scalars and extra tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..diagnostics import Span
from ..ir.evaluate import UnboundName
from ..ir.expr import SK, TRUE, Call, Const, Expr, I, J, Read, S, Var, conjoin, free_vars, reads, rebuild, substitute
from ..ir.nodes import NOWHERE, Kernel, Map, Mask, Mma, Op, Param, RowMap, RowReduce, Score, StoreRow, StoreTile
from ..ir.simplify import simplify
from ..spec.attention import Attention
from ..transfer.draft import map_ops
from ..transfer.rows import output_of
from ..transfer.sampling import bind, bind_unknown, close, value_at
from ..transfer.semantics import NotAttention, Semantics, kv_loop_of, semantics_of, state_names, walk_ops
from ..verify.contracts import contract_type
from .model import Function
from .readable import readable

SCALE = Var("scale")
LOG2E = 1.0 / math.log(2.0)
_LSE = {"it is a base-2 logarithm": "log2", "it is not m + log(l)": "another value than m + log(l)"}
_OPERATIONS: dict[str, tuple[type[Op], ...]] = {
    "score": (Score,),
    "mask": (Mask,),
    "fill": (Mask,),
    "sink": (RowMap,),
    "weights": (StoreTile,),
    "output": (StoreTile,),
    "lse": (StoreRow,),
}


def function_of_kernel(
    kernel: Kernel, values: Mapping[str, float | int] | None = None, operands: Mapping[str, str] | None = None
) -> Function:
    """The function of `kernel` with `values` of its parameters put in, extra tensors named by `operands` (parameter ->
    name). Raises NotAttention for a program without the landmarks of attention.
    """
    sem = _semantics(kernel, dict(values or {}))
    put = _Canonical(kernel, operands or {})
    weight = _sink_weight(sem, kernel)
    kinds = {
        put.names.get(p.name, p.name): kind_of(p)
        for p in kernel.params
        if p.role in ("flag", "scalar") or p.role.startswith("operand:")
    }
    return Function(
        name=kernel.name,
        score=readable(put(sem.score)),
        mask=put(sem.keep),
        attended=put(_attended(sem)),
        fill=put(sem.fill),
        sink=None if sem.sink is None or weight == 0 else readable(put(sem.sink)),
        sink_weight=weight,
        floor=readable(put(sem.sink)) if sem.sink is not None and weight == 0 else None,
        normaliser=sem.normaliser,
        output=put(_output(kernel, sem)),
        head_map=put(sem.head_map),
        lse=_LSE.get(sem.lse, sem.lse),
        empty_rows=sem.empty_rows,
        D=kernel.D,
        Dv=kernel.Dv,
        kinds=kinds,
        spans=dict(_spans(kernel)),
        issues=sem.issues,
        tile=(kernel.Br, kernel.Bc),
    )


def _semantics(kernel: Kernel, values: Mapping[str, float | int]) -> Semantics:
    try:
        return semantics_of(kernel, values)
    except NotAttention:
        plain = _maximum_of_scores(kernel)
        if plain is None:
            raise
        return semantics_of(plain, values)


def _maximum_of_scores(kernel: Kernel) -> Kernel | None:
    """`kernel` with the row maximum taken of S where it is taken of a tile made from S for nothing else: what is
    subtracted in the exponent cancels. None where there is no such tile, or where the maximum shows in an LSE.
    """
    ops = list(walk_ops(kernel.body))
    if any(isinstance(op, StoreRow) for op in ops):
        return None
    reduced = {op.src: op.role for op in ops if isinstance(op, RowReduce)}
    used = {op.a for op in ops if isinstance(op, Mma)} | {op.src for op in ops if isinstance(op, Map | StoreTile)}
    made = {op.dst: op.src for op in ops if isinstance(op, Map) and reduced.get(op.dst) == "row_max"}
    made = {tile: source for tile, source in made.items() if tile not in used and tile != source}
    if not made:
        return None

    def change(op: Op) -> tuple[Op, ...]:
        if isinstance(op, RowReduce) and op.src in made:
            return (replace(op, src=made[op.src]),)
        return () if isinstance(op, Map) and op.dst in made else (op,)

    return replace(kernel, body=map_ops(kernel.body, change))


def function_of_attention(attention: Attention) -> Function:
    """The function that a spec means."""
    mask = attention.mask if attention.mask is not None else TRUE
    softmax = attention.normaliser == "softmax"
    named = {"head_map": "heads", "normaliser": "weights"}
    return Function(
        name=attention.name,
        score=attention.score,
        mask=mask,
        attended=mask,
        fill=attention.fill if softmax else Const(0.0),
        sink=attention.sink,
        sink_weight=0.0 if attention.sink is None else 1.0,
        normaliser=attention.normaliser,
        output=S if softmax or attention.divisor is None else S / attention.divisor,
        head_map=attention.head_map,
        lse="ln" if any(o.role == "lse" for o in attention.outputs) else "none",
        empty_rows=attention.empty_rows,
        D=attention.specialised.get("D"),
        Dv=attention.specialised.get("Dv", attention.specialised.get("D")),
        kinds={o.name: _number(o.dtype) for o in attention.operands},
        spans={named.get(part, part): span for part, span in attention.spans.items()},
    )


def free_names(function: Function) -> frozenset[str]:
    """Switches, scalars and extra tensors that the function depends on, by name."""
    parts = expressions_of(function)
    return frozenset().union(*(free_vars(e) | reads(e) for e in parts)) & frozenset(function.kinds)


def expressions_of(function: Function) -> tuple[Expr, ...]:
    """All expressions of a function."""
    sink = () if function.sink is None else (function.sink,)
    return (function.score, function.attended, function.mask, function.fill, function.output, function.head_map, *sink)


def renamed(function: Function, names: Mapping[str, str]) -> Function:
    """`function` with its free names replaced."""

    def put(expr: Expr) -> Expr:
        if isinstance(expr, Var):
            return Var(names.get(expr.name, expr.name))
        expr = rebuild(expr, put)
        return Read(names.get(expr.tensor, expr.tensor), expr.index) if isinstance(expr, Read) else expr

    kinds = {names.get(name, name): kind for name, kind in function.kinds.items()}
    return replace(_mapped(function, put), kinds=kinds)


def bound(function: Function, values: Mapping[str, float | int | bool]) -> Function:
    """`function` with values for some of its free names."""
    return _mapped(function, lambda expr: simplify(bind(expr, values)))


def _mapped(function: Function, put: Callable[[Expr], Expr]) -> Function:
    return replace(
        function,
        score=put(function.score),
        mask=put(function.mask),
        attended=put(function.attended),
        fill=put(function.fill),
        sink=None if function.sink is None else put(function.sink),
        output=put(function.output),
        head_map=put(function.head_map),
    )


class _Canonical:
    """Expressions of a kernel over indices, sizes and `scale`."""

    def __init__(self, kernel: Kernel, operands: Mapping[str, str]) -> None:
        self.names = dict(operands)
        q0, kv0 = _tile_start(I, kernel.Br), _tile_start(J, kernel.Bc)
        self.known: dict[Expr, Expr] = {
            Var("q0"): q0,
            Var("kv0"): kv0,
            Var("qt"): Call("floordiv", (I, Const(kernel.Br))),
        }
        for p in kernel.params:
            if p.role == "scale":
                self.known[Var(p.name)] = SCALE
            elif p.role == "scale_log2":
                self.known[Var(p.name)] = SCALE * LOG2E
            elif p.role == "group":
                self.known[Var(p.name)] = Call("floordiv", (Var("H"), Var("Hkv")))

    def __call__(self, expr: Expr) -> Expr:
        return simplify(self._renamed(substitute(expr, self.known)))

    def _renamed(self, expr: Expr) -> Expr:
        expr = rebuild(expr, self._renamed)
        if isinstance(expr, Read):
            return Read(self.names.get(expr.tensor, expr.tensor), expr.index)
        # log2(e) * ln 2 of a kernel that scales in base two, whichever way its product is bracketed.
        return _unit_pair(expr) if isinstance(expr, Call) and expr.op == "mul" else expr


def _unit_pair(expr: Call) -> Expr:
    """A product without a pair of numbers in it whose product is 1."""
    parts = _factors(expr)
    numbers = [p for p in parts if isinstance(p, Const)]
    if len(numbers) < 2 or not math.isclose(math.prod(float(n.value) for n in numbers), 1.0, rel_tol=1e-6):
        return expr
    rest = [p for p in parts if not isinstance(p, Const)]
    result = rest[0] if rest else Const(1.0)
    for part in rest[1:]:
        result = result * part
    return result


def _factors(expr: Expr) -> list[Expr]:
    if isinstance(expr, Call) and expr.op == "mul":
        return [f for arg in expr.args for f in _factors(arg)]
    return [expr]


def _tile_start(index: Expr, size: int) -> Expr:
    return Call("mul", (Call("floordiv", (index, Const(size))), Const(size)))


def _attended(sem: Semantics) -> Expr:
    """Where a key counts: every test on the tiles that its guard names, inside the visited range. A list of tiles is
    taken to name every tile that holds an attended key: only its own mask is known.
    """
    if sem.walk is not None:
        return sem.keep
    tests = [t.keep if t.guard is None else Call("or", (t.keep, Call("not", (t.guard,)))) for t in sem.tests]
    lower = [] if sem.lo == Const(0) else [Call("ge", (J, sem.lo))]
    upper = [] if sem.hi == SK else [Call("lt", (J, sem.hi))]
    return conjoin([*tests, *lower, *upper])


def _sink_weight(sem: Semantics, kernel: Kernel) -> float:
    """How often the sink is in the row sum before any key: its sum over the lanes that share a row."""
    if sem.normaliser != "softmax":
        return 0.0
    lanes = np.arange(sem.lanes)
    env = bind_unknown({"lane": lanes, "D": kernel.D, "b": 0, "h": 1, "hk": 0, "i": 0}, free_vars(sem.l_init))
    try:
        value: Any = value_at(sem.l_init, env)
    except (UnboundName, ValueError, TypeError):
        return math.nan
    return float(np.broadcast_to(np.asarray(value, dtype=float), lanes.shape).sum())


def _output(kernel: Kernel, sem: Semantics) -> Expr:
    """What is stored for the accumulated row: ``s`` where a softmax is divided by its row sum and nothing else."""
    if sem.normaliser != "softmax":
        return sem.output
    loop = kv_loop_of(kernel)
    stored = output_of(kernel, loop, state_names(kernel, loop)[1])
    env = bind_unknown({"s": np.linspace(-3.0, 3.0, 31), "l": np.geomspace(0.4, 90.0, 31)}, free_vars(stored))
    try:
        value = value_at(stored, env)
    except (UnboundName, ValueError, TypeError):
        return stored
    return S if close(np.asarray(value, dtype=float), env["s"] / env["l"], 1e-5) else stored


def kind_of(param: Param) -> str:
    """float | int | bool | flag, by role and C type; a pointer to a type that is no known one is to the kernel's own
    element type.
    """
    if param.role == "flag":
        return "flag"
    if "*" in param.ctype:
        return _number(contract_type(param.ctype, "T*").replace("T*", "float*"))
    return _number(param.ctype)


def _number(ctype: str) -> str:
    if "bool" in ctype:
        return "bool"
    return "float" if any(word in ctype for word in ("float", "half", "double")) else "int"


def _spans(kernel: Kernel) -> Iterator[tuple[str, Span]]:
    """The operation responsible for each part: the last of its kind."""
    ops = list(walk_ops(kernel.body))
    whole = kernel.origin.span
    heads = kernel.grid.origin.span or whole
    if heads is not None:
        yield "heads", heads
    for part, kinds in _OPERATIONS.items():
        chosen = [op for op in ops if isinstance(op, kinds) and (part != "sink" or getattr(op, "role", "") == "init")]
        span = _last_span(chosen) or (_where_scaled(ops) if part == "score" else None) or whole
        if span is not None:
            yield part, span


def _where_scaled(ops: Sequence[Op]) -> Span | None:
    """Where scores are scaled in a kernel without an operation of its own for it: the exponential, or the product."""
    powers = [op for op in ops if isinstance(op, Map) and op.role == "exp"]
    products = [op for op in ops if isinstance(op, Mma) and op.role == "qk"]
    return _last_span(powers) or _last_span(products)


def _last_span(ops: Sequence[Op]) -> Span | None:
    spans = [getattr(op, "origin", NOWHERE).shown for op in ops]
    return next((span for span in reversed(spans) if span is not None), None)
