"""Preconditions of every operation, as a table: what a well-formed program must satisfy before it is executed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ..diagnostics import Diagnostic, Row, Severity, make, register
from .expr import Expr, free_vars, type_of
from .nodes import (
    Alloc,
    Copy,
    CpWait,
    For,
    If,
    Kernel,
    LaneReduce,
    Let,
    LoadTile,
    Map,
    Mask,
    Mma,
    Op,
    Origin,
    RowMap,
    RowReduce,
    Score,
)

# Opt-in dynamic shared memory per CTA, bytes (CUDA programming guide, compute capabilities table).
SHARED_LIMIT = {
    "sm_80": 163 * 1024,
    "sm_86": 99 * 1024,
    "sm_87": 163 * 1024,
    "sm_89": 99 * 1024,
    "sm_90": 227 * 1024,
    "sm_90a": 227 * 1024,
    "sm_100": 227 * 1024,
    "sm_120": 99 * 1024,
}
ELEMENT_BYTES = {"float16": 2, "bfloat16": 2, "io": 2, "float32": 4}
INDICES = frozenset({"b", "h", "hk", "i", "j", "s", "qt", "q0", "kv0", "lane", "B", "H", "Hkv", "Sq", "Sk", "D"})

register(
    {
        "CB150": Row(
            Severity.ERROR,
            "{tile} is used before it is allocated or produced",
            "the program is incomplete at this line",
        ),
        "CB151": Row(Severity.ERROR, "{what} has shape {got}, {want} is needed", "check the tile sizes"),
        "CB152": Row(
            Severity.ERROR, "{name} has no meaning in this expression", "name a parameter, an index or a row vector"
        ),
        "CB153": Row(
            Severity.ERROR, "the {what} must be {want}, this expression is {got}", "compare or convert the value"
        ),
        "CB154": Row(
            Severity.ERROR,
            "the program needs {bytes} bytes of shared memory, {arch} allows {limit}",
            "use smaller tiles, fewer stages or a smaller head dimension",
        ),
        "CB155": Row(
            Severity.ERROR,
            "asynchronous copies are never waited for",
            "add cp.async.wait_group before the tile is read",
        ),
    }
)


@dataclass(slots=True)
class _Scope:
    kernel: Kernel
    buffers: dict[str, Alloc] = field(default_factory=dict)
    tiles: set[str] = field(default_factory=set)
    rows: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    found: list[Diagnostic] = field(default_factory=list)

    def tile(self, name: str, origin: Origin) -> None:
        if name not in self.tiles and name not in self.buffers:
            self.found.append(make("CB150", origin.span, tile=name))

    def expr(self, expr: Expr | None, origin: Origin, *, boolean: bool | None = None, what: str = "value") -> None:
        if expr is None:
            return
        for name in sorted(free_vars(expr) - INDICES - self.rows - self.names):
            self.found.append(make("CB152", origin.span, name=name))
        got = type_of(expr)
        if (boolean is True and got != "bool") or (boolean is False and got == "bool"):
            self.found.append(
                make("CB153", origin.span, what=what, want="a condition" if boolean else "a number", got=got)
            )


def shared_bytes(kernel: Kernel) -> int:
    """Bytes of shared memory the program's buffers need."""
    return sum(
        op.slots * op.rows * op.cols * ELEMENT_BYTES.get(op.dtype, 4)
        for op in iterate(kernel.body)
        if isinstance(op, Alloc) and op.space == "shared"
    )


def iterate(body: tuple[Op, ...]) -> Iterator[Op]:
    """All operations, parents before children, in program order."""
    for op in body:
        yield op
        if isinstance(op, For):
            yield from iterate(op.body)
        elif isinstance(op, If):
            yield from iterate(op.body)
            yield from iterate(op.orelse)


def validate(kernel: Kernel, *, arch: str | None = None) -> tuple[Diagnostic, ...]:
    """Every violated precondition, with the span of the operation. Empty for a well-formed program."""
    scope = _Scope(kernel, names={p.name for p in kernel.params})
    _block(scope, kernel.body)
    ops = list(iterate(kernel.body))
    if any(isinstance(op, Copy) and op.is_async for op in ops) and not any(isinstance(op, CpWait) for op in ops):
        scope.found.append(make("CB155", kernel.origin.span))
    limit = SHARED_LIMIT.get(arch or "")
    if limit is not None and shared_bytes(kernel) > limit:
        scope.found.append(make("CB154", kernel.origin.span, bytes=shared_bytes(kernel), arch=arch, limit=limit))
    return tuple(scope.found)


def _block(scope: _Scope, body: tuple[Op, ...]) -> None:
    for op in body:
        check = CHECKS.get(type(op))
        if check is not None:
            check(scope, op)


def _alloc(scope: _Scope, op: Alloc) -> None:
    if op.space == "shared":
        scope.buffers[op.name] = op
    else:
        scope.tiles.add(op.name)


def _copy(scope: _Scope, op: Copy) -> None:
    buffer = scope.buffers.get(op.buffer)
    if buffer is None and op.buffer in scope.tiles:
        pass  # a register tile loaded straight from global memory
    elif buffer is None:
        scope.found.append(make("CB150", op.origin.span, tile=op.buffer))
    elif buffer.rows != op.rows:
        scope.found.append(
            make("CB151", op.origin.span, what=op.buffer, got=f"{buffer.rows} rows", want=f"{op.rows} rows")
        )
    for expr in (op.slot, op.row0, op.limit, op.head):
        scope.expr(expr, op.origin, boolean=False)


def _load(scope: _Scope, op: LoadTile) -> None:
    scope.tile(op.buffer, op.origin)
    scope.tiles.add(op.dst)
    scope.expr(op.slot, op.origin, boolean=False)


def _for(scope: _Scope, op: For) -> None:
    scope.expr(op.lo, op.origin, boolean=False)
    scope.expr(op.hi, op.origin, boolean=False)
    scope.names.add(op.iv)
    # Row state written late in the body is read early in the next trip: names of the whole body are in scope.
    for inner in iterate(op.body):
        if isinstance(inner, RowMap | RowReduce):
            scope.rows.add(inner.row if isinstance(inner, RowMap) else inner.dst)
    _block(scope, op.body)


def _if(scope: _Scope, op: If) -> None:
    scope.expr(op.cond, op.origin)
    _block(scope, op.body)
    _block(scope, op.orelse)


def _let(scope: _Scope, op: Let) -> None:
    scope.expr(op.value, op.origin)
    scope.names.add(op.name)


def _mma(scope: _Scope, op: Mma) -> None:
    for name in (op.acc, op.a, op.b):
        scope.tile(name, op.origin)
    if op.b in scope.buffers and op.slot is None:
        scope.found.append(make("CB150", op.origin.span, tile=f"a slot of {op.b}"))


def _score(scope: _Scope, op: Score) -> None:
    scope.tile(op.tile, op.origin)
    scope.expr(op.expr, op.origin, boolean=False, what="score")


def _mask(scope: _Scope, op: Mask) -> None:
    scope.tile(op.tile, op.origin)
    scope.expr(op.keep, op.origin, boolean=True, what="mask")
    scope.expr(op.fill, op.origin, boolean=False, what="fill")
    scope.expr(op.guard, op.origin, boolean=True, what="tile guard")


def _map(scope: _Scope, op: Map) -> None:
    scope.tile(op.src, op.origin)
    scope.expr(op.expr, op.origin)
    scope.tiles.add(op.dst)


def _row_reduce(scope: _Scope, op: RowReduce) -> None:
    scope.tile(op.src, op.origin)
    scope.rows.add(op.dst)
    scope.expr(op.init, op.origin)


def _row_map(scope: _Scope, op: RowMap) -> None:
    scope.expr(op.expr, op.origin)
    scope.rows.add(op.row)


def _lane_reduce(scope: _Scope, op: LaneReduce) -> None:
    if op.row not in scope.rows:
        scope.found.append(make("CB150", op.origin.span, tile=op.row))


CHECKS: dict[type[Op], Callable[[_Scope, Any], None]] = {
    Alloc: _alloc,
    Copy: _copy,
    LoadTile: _load,
    For: _for,
    If: _if,
    Let: _let,
    Mma: _mma,
    Score: _score,
    Mask: _mask,
    Map: _map,
    RowReduce: _row_reduce,
    RowMap: _row_map,
    LaneReduce: _lane_reduce,
}
