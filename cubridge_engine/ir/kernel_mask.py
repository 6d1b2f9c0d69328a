"""What a kernel attends to: its masks, and the KV tiles that its loop visits, for given lengths and switches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .evaluate import evaluate
from .expr import Expr
from .nodes import For, If, Kernel, Let, Mask, Op
from .tile_map import Array, TileMap, tile_map
from .validate import iterate

Range = tuple[int, int]  # first key, and the one behind the last


@dataclass(frozen=True, slots=True)
class KernelMask:
    """`ranges` has, per query tile, the keys that the loop visits; a key outside is not attended."""

    tiles: TileMap
    ranges: tuple[Range, ...]


def conditions(kernel: Kernel) -> tuple[Expr, ...]:
    """What the masks of the program keep."""
    return tuple(op.keep for op in iterate(kernel.body) if isinstance(op, Mask))


def kernel_mask(kernel: Kernel, sizes: Mapping[str, int], values: Mapping[str, Any], *, b: int, h: int) -> KernelMask:
    """The tiles of one head; Br and Bc are the kernel's. `sizes` holds B, H, Hkv, Sq, Sk, `values` its switches.

    Raises UnboundName for what only a launch gives (a list of tiles, the length of a sequence), and ValueError as
    `tile_map` does.
    """
    env: dict[str, Any] = {**values, **sizes, "D": kernel.D, "b": b, "h": h}
    for p in kernel.params:
        if p.role in sizes:
            env.setdefault(p.name, sizes[p.role])
    env["hk"] = evaluate(kernel.grid.hk, env)
    masks = [op for op in iterate(kernel.body) if isinstance(op, Mask)]
    ranges: list[Range] = []

    def kept(rows: Array, columns: Array) -> Any:
        q0 = int(rows[0, 0])
        here = {**env, "q0": q0, "qt": q0 // kernel.Br}
        first, behind = _visited(kernel, here)
        ranges.append((first, behind))
        inside = {**here, "i": rows, "j": columns, "kv0": columns // kernel.Bc * kernel.Bc}
        true = (first <= columns) & (columns < behind)
        for op in masks:
            guarded = True if op.guard is None else evaluate(op.guard, inside)
            true = true & (np.asarray(evaluate(op.keep, inside), dtype=bool) | ~np.asarray(guarded, dtype=bool))
        return true

    tiles = tile_map(kept, Sq=sizes["Sq"], Sk=sizes["Sk"], Br=kernel.Br, Bc=kernel.Bc)
    return KernelMask(tiles, tuple(ranges))


def first_keys(kernel: Kernel, env: Mapping[str, Any], tensors: Mapping[str, Array] | None = None) -> tuple[int, ...]:
    """The first key of the tile of each trip that a CTA makes: which tiles it visits, in order.

    `env` holds the sizes, the parameters and ``b h hk q0 qt``, `tensors` what the program reads to know its tiles.
    Raises UnboundName for what neither holds.
    """
    here = dict(env)
    loop = _before_loop(kernel.body, here, tensors or {})
    if loop is None:
        return ()
    return tuple(
        _first_key(loop, {**here, loop.iv: t}, kernel, tensors or {}) for t in _trips(loop, here, tensors or {})
    )


def _visited(kernel: Kernel, env: dict[str, Any]) -> Range:
    """The keys of the loop's first to last tile. `env` gets the values that the prologue makes."""
    loop = _before_loop(kernel.body, env, {})
    if loop is None:
        return 0, int(env["Sk"])
    trips = _trips(loop, env, {})
    if not trips:
        return 0, 0
    starts = [_first_key(loop, {**env, loop.iv: trip}, kernel, {}) for trip in (trips[0], trips[-1])]
    return min(starts), min(max(starts) + kernel.Bc, int(env["Sk"]))


def _trips(loop: For, env: Mapping[str, Any], tensors: Mapping[str, Array]) -> range:
    return range(int(evaluate(loop.lo, env, tensors)), int(evaluate(loop.hi, env, tensors)), loop.step)


def _first_key(loop: For, env: dict[str, Any], kernel: Kernel, tensors: Mapping[str, Array]) -> int:
    """The first key of a trip's tile: what the body calls kv0."""
    for op in loop.body:
        if isinstance(op, Let):
            env[op.name] = int(evaluate(op.value, env, tensors))
        if "kv0" in env:
            return int(env["kv0"])
    return int(env[loop.iv]) * kernel.Bc


def _before_loop(body: tuple[Op, ...], env: dict[str, Any], tensors: Mapping[str, Array]) -> For | None:
    """Evaluate names and conditions up to the loop over KV tiles, which is returned."""
    for op in body:
        if isinstance(op, Let):
            env[op.name] = np.asarray(evaluate(op.value, env, tensors)).flat[0].item()
        elif isinstance(op, If):
            branch = op.body if evaluate(op.cond, env, tensors) else op.orelse
            found = _before_loop(branch, env, tensors)
            if found is not None:
                return found
        elif isinstance(op, For) and op.role == "kv_loop":
            return op
    return None
