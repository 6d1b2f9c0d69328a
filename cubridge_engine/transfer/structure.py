"""The shape of a program: its KV loop, its score tile, what lies outside the loop, and what its names stand for."""

from __future__ import annotations

from collections.abc import Iterator

from ..ir.expr import Call, Expr, Var, call, substitute
from ..ir.nodes import For, If, Kernel, Let, Mma, Op


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


def resolve_lets(kernel: Kernel, expr: Expr) -> Expr:
    """`expr` in terms of q0, kv0, sizes and parameters: Let names, the query tile and the loop variable replaced by
    what they stand for.
    """
    loop = kv_loop_of(kernel)
    known: dict[Expr, Expr] = {Var("qt"): call("floordiv", Var("q0"), kernel.Br)}
    known = _collect_lets(kernel.body, known, loop)
    kv0 = Var("kv0")
    if loop.iv != "kv0":
        known[Var(loop.iv)] = kv0 if loop.step == kernel.Bc else call("floordiv", kv0, kernel.Bc)
    return substitute(expr, known)


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
