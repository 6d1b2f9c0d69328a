"""Where in a program a rule puts its operations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..ir.nodes import For, If, Kernel, Mask, Op, RowReduce
from .draft import map_ops
from .semantics import kv_loop_of, score_tile_of, walk_ops


def _touches(op: Op, tile: str) -> bool:
    """True for an operation that masks the tile or takes its row maximum, or holds one that does."""
    return any(
        (isinstance(x, Mask) and x.tile == tile) or (isinstance(x, RowReduce) and x.src == tile)
        for x in walk_ops((op,))
    )


def insert_at_score_site(kernel: Kernel, make: Callable[[str], tuple[Op, ...]]) -> Kernel:
    """Insert ``make(tile)`` into the KV loop where S is complete: before its first mask, or before its row maximum."""
    loop = kv_loop_of(kernel)
    tile = score_tile_of(loop)

    def insert(op: Op) -> tuple[Op, ...]:
        if not isinstance(op, For) or op.role != "kv_loop":
            return (op,)
        at = next(n for n, x in enumerate(op.body) if _touches(x, tile))
        return (replace(op, body=(*op.body[:at], *make(tile), *op.body[at:])),)

    return replace(kernel, body=map_ops(kernel.body, insert))


def map_outside_loop(body: tuple[Op, ...], fn: Callable[[Op], Op], on_loop: Callable[[For], For]) -> tuple[Op, ...]:
    """Replace operations outside the KV loop by `fn`, the loop itself by `on_loop`; other loops are left alone."""
    out: list[Op] = []
    for op in body:
        if isinstance(op, For):
            out.append(on_loop(op) if op.role == "kv_loop" else op)
        elif isinstance(op, If):
            yes = map_outside_loop(op.body, fn, on_loop)
            out.append(replace(op, body=yes, orelse=map_outside_loop(op.orelse, fn, on_loop)))
        else:
            out.append(fn(op))
    return tuple(out)
