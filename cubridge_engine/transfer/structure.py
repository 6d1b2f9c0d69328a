"""The shape of a program: its KV loop, its score tile, what lies outside the loop, and what its names stand for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..ir.expr import Call, Const, Expr, Read, Var, call, free_vars, rebuild, substitute, walk
from ..ir.nodes import For, If, Kernel, Let, Mma, Op
from ..ir.simplify import simplify


class NotAttention(ValueError):
    """The program lacks a landmark (no KV loop, no score tile, no row maximum); the message names it."""


def walk_ops(body: tuple[Op, ...]) -> Iterator[Op]:
    """All operations, parents first."""
    for op in body:
        yield op
        if isinstance(op, For):
            yield from walk_ops(op.body)
        elif isinstance(op, If):
            yield from walk_ops(op.body)
            yield from walk_ops(op.orelse)


def kv_loop_of(kernel: Kernel) -> For:
    """The KV loop. Raises NotAttention."""
    for op in walk_ops(kernel.body):
        if isinstance(op, For) and op.role == "kv_loop":
            return op
    raise NotAttention("it has no loop over key tiles")


def score_tile_of(loop: For) -> str:
    """Name of the S tile. Raises NotAttention."""
    for op in walk_ops(loop.body):
        if isinstance(op, Mma) and op.role == "qk":
            return op.acc
    raise NotAttention("no product of Q and K was found in the loop")


def bounds_of(loop: For) -> tuple[Expr, Expr]:
    """First and last-plus-one value of the loop variable, whichever way the loop goes."""
    if loop.step > 0:
        return loop.lo, loop.hi
    # ``t >= 0`` ends at the first tile, whatever the step.
    first = Const(0) if loop.hi == Const(-1) else simplify(loop.hi - loop.step)
    return first, simplify(loop.lo - loop.step)


def trips_of(loop: For) -> Expr:
    """The number of trips of a loop over positions, as it is written: n of ``0 .. n`` and of ``n - 1 .. -1``."""
    if loop.step > 0:
        return loop.hi
    known = isinstance(loop.lo, Call) and loop.lo.op == "sub" and loop.lo.args[1] == Const(1)
    return loop.lo.args[0] if isinstance(loop.lo, Call) and known else bounds_of(loop)[1]


PARTIAL = Var("<partial>")  # in guards: the tile is among those of a tile list that hold masked elements


@dataclass(frozen=True, slots=True)
class TileWalk:
    """A KV loop over a list: trip `iv` works on tile `tile`, the element of a tensor; there are `count` trips."""

    iv: str
    tensor: str
    tile: Read
    count: Expr
    column: Expr  # first key of the tile


def tile_walk(kernel: Kernel) -> TileWalk | None:
    """How the KV loop takes its tiles from a list; None for a loop over neighbouring tiles. Raises NotAttention."""
    loop = kv_loop_of(kernel)
    first = next((op.value for op in loop.body if isinstance(op, Let) and op.name == "kv0"), None)
    if first is None:
        return None
    found = [e for e in walk(first) if isinstance(e, Read) and loop.iv in free_vars(e)]
    if len(found) != 1 or first not in (found[0] * kernel.Bc, kernel.Bc * found[0]):
        return None
    count = substitute(trips_of(loop), _collect_lets(kernel.body, {}, loop))
    return TileWalk(loop.iv, found[0].tensor, found[0], count, first)


def resolve_lets(kernel: Kernel, expr: Expr) -> Expr:
    """`expr` in terms of q0, kv0, sizes and parameters: Let names, the query tile and the loop variable replaced by
    what they stand for.

    In a loop over a list of tiles, the test whether a trip works on one of the partial tiles is `PARTIAL`.
    """
    loop = kv_loop_of(kernel)
    known: dict[Expr, Expr] = {Var("qt"): call("floordiv", Var("q0"), kernel.Br)}
    kv0 = Var("kv0")
    listed = tile_walk(kernel)
    if listed is not None:
        expr = _off_list(substitute(expr, _collect_lets(kernel.body, {}, loop)), listed, kernel)
        return substitute(expr, known)
    known = _collect_lets(kernel.body, known, loop)
    if loop.iv != "kv0":
        known[Var(loop.iv)] = kv0 if abs(loop.step) == kernel.Bc else call("floordiv", kv0, kernel.Bc)
    return substitute(expr, known)


def _off_list(expr: Expr, listed: TileWalk, kernel: Kernel) -> Expr:
    """`expr` without the list: the tile is kv0 / Bc, and ``iv < list[.., partial]`` is `PARTIAL`."""
    kv0 = Var("kv0")
    if expr == listed.column:
        return kv0
    if expr == listed.tile:
        return call("floordiv", kv0, kernel.Bc)
    if isinstance(expr, Call) and expr.op in ("lt", "gt", "ge", "le"):
        sides = expr.args if expr.op in ("lt", "ge") else expr.args[::-1]
        end = _entry(sides[1])
        if sides[0] == Var(listed.iv) and end is not None and end.tensor == listed.tensor:
            return PARTIAL if expr.op in ("lt", "gt") else Call("not", (PARTIAL,))
    return rebuild(expr, lambda e: _off_list(e, listed, kernel))


def _entry(end: Expr) -> Read | None:
    """A number that the list says, or the larger of it and 1: a loop that visits a tile even where the list is empty
    tests that one.
    """
    if isinstance(end, Call) and end.op == "max" and Const(1) in end.args:
        end = next((a for a in end.args if a != Const(1)), end)
    return end if isinstance(end, Read) else None


def partial_of(kernel: Kernel) -> Read | None:
    """The element of the list that a loop over it compares its trip with, to know the partial tiles."""
    listed = tile_walk(kernel)
    if listed is None:
        return None
    lets = _collect_lets(kernel.body, {}, kv_loop_of(kernel))
    for op in walk_ops(kv_loop_of(kernel).body):
        for part in (getattr(op, name, None) for name in ("guard", "keep", "cond", "expr")):
            for e in walk(substitute(part, lets)) if isinstance(part, Expr) else ():
                if isinstance(e, Call) and e.op in ("lt", "gt", "ge", "le") and Var(listed.iv) in e.args:
                    own = [x for a in e.args if (x := _entry(a)) is not None and x.tensor == listed.tensor]
                    ends = [a for a in own if a != _entry(listed.count)]
                    if ends:
                        return ends[0]
    return None


def _collect_lets(body: tuple[Op, ...], known: dict[Expr, Expr], loop: For) -> dict[Expr, Expr]:
    """The names defined before the loop, in order; a name set again inside an If becomes a where."""
    known = dict(known)
    for op in body:
        if op is loop:
            break
        if isinstance(op, Let):
            known[Var(op.name)] = substitute(op.value, known)
        elif isinstance(op, If):
            cond = substitute(op.cond, known)
            yes, no = _collect_lets(op.body, known, loop), _collect_lets(op.orelse, known, loop)
            for name in {**yes, **no}:
                a, b = yes.get(name, known.get(name)), no.get(name, known.get(name))
                if a is not None and b is not None and a != b:
                    known[name] = Call("where", (cond, a, b))
                elif a is not None or b is not None:
                    known[name] = a if a is not None else b or name
    return known


def outside_loop(body: tuple[Op, ...]) -> Iterator[Op]:
    """Operations with Ifs opened; loops are given whole."""
    for op in body:
        yield op
        if isinstance(op, If):
            yield from outside_loop(op.body)
