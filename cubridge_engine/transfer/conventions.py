"""Conventions of a program, found by running its row operations on one row of numbers: LSE, empty rows, -inf safety."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np

from ..ir.evaluate import UnboundName, evaluate
from ..ir.expr import Expr, free_vars
from ..ir.nodes import For, If, Kernel, LaneReduce, Map, Op, RowMap, RowReduce, StoreRow, StoreTile

_FAILURES = (UnboundName, ValueError, TypeError)


def _parameter_values(*exprs: Expr) -> dict[str, float]:
    return {name: 0.25 for e in exprs for name in free_vars(e)}


def _run_rows(
    ops: Iterable[Op], env: dict[str, float], tile: str, value: float, known: dict[str, float] | None = None
) -> dict[str, float]:
    """Run row and element operations on a single row whose elements all hold one value. Unknown names take 0.25.

    `known`: elements of tiles; those of every tile that is written are put in.
    """
    tiles: dict[str, float] = {tile: value} if known is None else known

    def number(expr: Expr, s: float | None = None) -> float:
        scope: dict[str, float] = {**_parameter_values(expr), "lane": 0, **env}
        if s is not None:
            scope["s"] = s
        return float(np.asarray(evaluate(expr, scope)))

    with np.errstate(all="ignore"):
        for op in ops:
            if isinstance(op, RowMap):
                env[op.row] = number(op.expr)
            elif isinstance(op, RowReduce):
                start, element = number(op.init), tiles.get(op.src, math.nan)
                env[op.dst] = float(np.fmax(start, element)) if op.role == "row_max" else start + element
            elif isinstance(op, Map) and op.src in tiles:
                tiles[op.dst] = number(op.expr, tiles[op.src])
            elif isinstance(op, StoreTile):
                env["<o>"] = number(op.expr, tiles.get(op.src, 0.0))
            elif isinstance(op, StoreRow):
                env["<lse>"] = number(op.expr)
    return env


def _after_loop(kernel: Kernel, loop: For) -> tuple[Op, ...]:
    seen = False
    out: list[Op] = []
    for op in _flat(kernel.body):
        if seen:
            out.append(op)
        seen = seen or op is loop
    return tuple(op for op in out if not isinstance(op, LaneReduce))


def _flat(body: tuple[Op, ...]) -> Iterator[Op]:
    """Operations in order, Ifs opened, loops kept whole."""
    for op in body:
        if isinstance(op, If):
            yield from _flat(op.body)
        else:
            yield op


def empty_rows(kernel: Kernel, loop: For, m: str, total: str) -> str:
    """What the epilogue makes of a row that saw no key."""
    try:
        env = _run_rows(_after_loop(kernel, loop), {m: -math.inf, total: 0.0}, "", 0.0)
    except _FAILURES:
        return "none"
    if "<o>" not in env:
        return "none"
    return "nan" if math.isnan(env["<o>"]) else "zero" if env["<o>"] == 0 else "none"


def lse_convention(kernel: Kernel, loop: For, m: str, total: str, unit: Expr) -> str:
    if not any(isinstance(op, StoreRow) for op in _flat(kernel.body)):
        return "none"
    top, mass = 1.75, 3.5
    try:
        env = _run_rows(_after_loop(kernel, loop), {m: top, total: mass}, "", 0.0)
        factor = float(np.asarray(evaluate(unit, _parameter_values(unit))))
    except _FAILURES:
        return "the stored value could not be evaluated"
    if "<lse>" not in env:
        return "none"
    if abs(env["<lse>"] - (top * factor + math.log(mass))) < 1e-5:
        return "ln"
    if abs(env["<lse>"] - (top * factor + math.log(mass)) / math.log(2)) < 1e-5:
        return "it is a base-2 logarithm"
    return "it is not m + log(l)"


def shares_factor(loop: For, m: str, total: str, tile: str, base: float) -> bool:
    """True when a trip keeps what l and O stand for, l * base^m and O * base^m, whatever the reference m becomes: the
    row sum grows by the weight of the new score, O (before its product) by nothing.
    """
    ops = tuple(op for op in _flat(loop.body) if isinstance(op, RowMap | RowReduce | Map))
    outputs = {op.dst for op in ops if isinstance(op, Map) and op.role == "rescale"}
    scale = next((op.expr for op in ops if isinstance(op, Map) and op.role == "exp"), None)
    if scale is None or len(outputs) != 1:
        return False
    output = next(iter(outputs))
    for reference, score in ((0.5, 3.0), (0.5, 30.0), (-3.0, 2.0), (12.0, -8.0), (-2.0, 8.5)):
        try:
            tiles = {tile: score, output: 1.5}
            env = _run_rows(ops, {m: reference, total: 2.5}, tile, score, tiles)
            weight = float(np.asarray(evaluate(scale, {**_parameter_values(scale), "s": score, m: 0.0})))
        except _FAILURES:
            return False
        factor = base ** env[m]
        wanted = 2.5 * base**reference + weight
        if not math.isclose(env[total] * factor, wanted, rel_tol=1e-5):
            return False
        if not math.isclose(tiles[output] * factor, 1.5 * base**reference, rel_tol=1e-5):
            return False
    return True


def empty_tile_safe(loop: For, m: str, total: str, tile: str, start: float) -> bool:
    """True when a row whose first visited tile is wholly masked keeps finite state: no exp(-inf - -inf)."""
    ops = tuple(op for op in _flat(loop.body) if isinstance(op, RowMap | RowReduce | Map))
    try:
        env = _run_rows(ops, {m: start, total: 0.0}, tile, -math.inf)
    except _FAILURES:
        return False
    return not any(math.isnan(v) for v in env.values())
