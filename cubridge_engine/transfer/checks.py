"""Named safety conditions, evaluated on a program: the same for a target and for an adapted kernel lifted again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ..ir.expr import Call, Const, Expr, Var, conjoin, free_vars, substitute
from ..ir.nodes import Copy, For, If, Kernel, Let, Op
from ..ir.text_expr import print_expr
from .model import Check
from .sampling import Env, implies, value_at
from .scores import TAIL, compose_scores
from .semantics import PARTIAL, ElementTest, Semantics, TileWalk, kv_loop_of, resolve_lets, walk_ops
from .structure import tile_walk


def score_before_mask(kernel: Kernel) -> Check:
    """No score expression touches S after a mask did (it would map the fill to a finite number)."""
    late = [issue for issue in compose_scores(kernel, kv_loop_of(kernel)).issues if "after a mask" in issue]
    return Check("score-before-mask", not late, late[0] if late else "the score comes first")


def mask_guard_covers(
    tests: tuple[ElementTest, ...],
    env: Env,
    types: Mapping[str, str],
    kernel: Kernel,
) -> Check:
    """Wherever an element fails a test, the guard of that test is true on its tile. Columns of the tail are part of
    the question. A tile of a list counts as partial where any of the tests fails: that is how the list is made.
    """
    masked = Call("not", (conjoin([TAIL, *(t.keep for t in tests)]),))
    tests = tuple(replace(t, guard=substitute(t.guard, {PARTIAL: masked}) if t.guard else None) for t in tests)
    scope = dict(env)
    # The columns from Sk to the end of the last tile exist in the tile, so they must be covered as well.
    tail = {**scope, "j": scope["kv0"] + np.minimum(kernel.Bc - 1, np.abs(scope["Sk"] - scope["kv0"]))}
    for test in tests:
        if test.guard is None:
            continue
        fails = Call("not", (test.keep,))
        for where in (scope, tail):
            if not implies(fails, test.guard, where, types):
                return Check(
                    "mask-guard-covers", False, f"{print_expr(test.guard)} is false on a tile with masked elements"
                )
    return Check("mask-guard-covers", True, "every partial tile is tested")


def empty_row_safe(sem: Semantics, *, sinks: bool = False) -> Check:
    """A row whose first visited tile is wholly masked must not produce exp(-inf - -inf). `sinks`: a sink is going to be
    where the row maximum starts.
    """
    finite = isinstance(sem.fill, Const) and np.isfinite(float(sem.fill.value))
    if sem.empty_tile_safe or finite or sinks:
        return Check("empty-row-safe", True, "the exponent is guarded against a row maximum of -inf")
    return Check("empty-row-safe", False, "exp(-inf - -inf) would give NaN where a visited tile has no key for a row")


def tiles_of(lo: Expr, hi: Expr, env: Env, types: Mapping[str, str], Bc: int) -> tuple[np.ndarray, np.ndarray]:
    """First and last-plus-one column the loop visits, rounded to whole tiles."""
    first = np.maximum(np.asarray(value_at(lo, env, types)).astype(np.int64), 0) // Bc * Bc
    last = -(-np.asarray(value_at(hi, env, types)).astype(np.int64) // Bc) * Bc
    return first, last


def range_covers_mask(keep: Expr, lo: Expr, hi: Expr, env: Env, types: Mapping[str, str], Bc: int) -> Check:
    """Every attended key lies in the visited columns."""
    kept = np.broadcast_to(np.asarray(value_at(keep, env, types), dtype=bool), np.shape(env["j"]))
    first, last = tiles_of(lo, hi, env, types, Bc)
    lost = kept & ((env["j"] < first) | (env["j"] >= last))
    if lost.any():
        n = int(np.argmax(lost))
        at = ", ".join(f"{name}={int(np.broadcast_to(env[name], lost.shape)[n])}" for name in ("Sq", "Sk", "i", "j"))
        return Check("range-covers-mask", False, f"an attended key is never visited ({at})")
    return Check("range-covers-mask", True, "every attended key is visited")


def range_uniform(lo: Expr | None, hi: Expr | None) -> Check:
    """Loop bounds must be the same for all threads of the CTA: nothing in them varies with a row or a column."""
    bad = {n for e in (lo, hi) if e is not None for n in free_vars(e) if n in ("i", "j", "s", "lane", "row", "kv0")}
    return Check(
        "range-uniform", not bad, f"depends on {', '.join(sorted(bad))}" if bad else "the same for the whole CTA"
    )


def prologue_matches_lo(kernel: Kernel, env: Env, types: Mapping[str, str]) -> Check:
    """The tiles loaded before the loop are the first ones it visits, in the slots it reads them from."""
    loop = kv_loop_of(kernel)
    listed = tile_walk(kernel)
    if listed is not None:
        return prefetch_follows_list(kernel, listed, env, types)
    before = [op for op in before_loop(kernel.body, loop) if isinstance(op, Copy) and op.tensor != "q"]
    if not before:
        return Check("prologue-matches-lo", True, "nothing is loaded before the loop")
    steady = {op.tensor: op for op in walk_ops(loop.body) if isinstance(op, Copy)}
    scale = kernel.Bc if loop.step != kernel.Bc else 1
    lo = np.maximum(np.asarray(value_at(resolve_lets(kernel, loop.lo), env, types)), 0)
    lo = np.broadcast_to(lo, np.shape(env["i"]))
    step = 1 if scale != 1 else kernel.Bc
    seen: dict[str, int] = {}
    for op in before:
        ahead = seen.get(op.tensor, 0)
        seen[op.tensor] = ahead + 1
        row0 = np.asarray(value_at(resolve_lets(kernel, op.row0), env, types))
        if not np.array_equal(np.broadcast_to(row0, lo.shape), (lo + ahead * step) * scale):
            return Check(
                "prologue-matches-lo", False, f"{op.tensor} is loaded from row {print_expr(op.row0)} before the loop"
            )
        again = steady.get(op.tensor)
        if again is None:
            continue
        distance = prefetch_distance(again, loop, kernel.Bc)
        slot = np.asarray(value_at(resolve_lets(kernel, op.slot), env, types))
        want = value_at(_at(again.slot, loop, Var("<t>")), {**env, "<t>": lo + (ahead - distance) * step}, types)
        if not np.array_equal(np.broadcast_to(slot, lo.shape), np.broadcast_to(np.asarray(want), lo.shape)):
            return Check(
                "prologue-matches-lo", False, f"{op.tensor} is loaded into slot {print_expr(op.slot)} before the loop"
            )
    return Check("prologue-matches-lo", True, "the prologue loads the first tile")


_POSITIONS = np.arange(8)


def prefetch_follows_list(kernel: Kernel, listed: TileWalk, env: Env, types: Mapping[str, str]) -> Check:
    """The tiles loaded before the loop are the first ones of the list, in the slots that the loop reads them from; a
    copy in the loop takes a later one of the list, and only while there is one.
    """
    name = "prefetch-follows-list"
    loop = kv_loop_of(kernel)
    scope = {**env, "n": 0}
    scope = {k: np.asarray(v).reshape(-1, 1)[:64] if np.ndim(v) else v for k, v in scope.items()}
    kinds = {**types, listed.tensor: "int", listed.iv: "int"}

    def value(expr: Expr, position: np.ndarray | int) -> np.ndarray:
        return np.broadcast_to(value_at(expr, {**scope, listed.iv: position}, kinds), (64, 8))

    def column(ahead: int) -> np.ndarray:
        return value(listed.column, _POSITIONS + ahead)

    distance: dict[str, int] = {}
    for op in walk_ops(loop.body):
        if isinstance(op, Copy):
            row0 = value(_replace_kv0(op.row0, listed.column), _POSITIONS)
            ahead = next((n for n in range(6) if np.array_equal(row0, column(n))), None)
            if ahead is None or (ahead and not _only_while_left(loop, op, listed, ahead)):
                return Check(name, False, f"{op.tensor} is loaded from row {print_expr(op.row0)} in the loop")
            distance[op.tensor] = ahead
    steady = {op.tensor: op for op in walk_ops(loop.body) if isinstance(op, Copy)}
    seen: dict[str, int] = {}
    for op in before_loop(kernel.body, loop):
        if not isinstance(op, Copy) or op.tensor == "q":
            continue
        ahead = seen.get(op.tensor, 0)
        seen[op.tensor] = ahead + 1
        if not np.array_equal(value(_lets_of(kernel, op.row0), 0), value(listed.column, ahead)):
            return Check(name, False, f"{op.tensor} is loaded from row {print_expr(op.row0)} before the loop")
        again = steady.get(op.tensor)
        if again is not None and not np.array_equal(value(op.slot, 0), value(again.slot, ahead - distance[op.tensor])):
            return Check(name, False, f"{op.tensor} is loaded into slot {print_expr(op.slot)} before the loop")
    return Check(name, True, "every copy takes its tile from the list")


def _lets_of(kernel: Kernel, expr: Expr) -> Expr:
    lets: dict[Expr, Expr] = {}
    for op in before_loop(kernel.body, kv_loop_of(kernel)):
        if isinstance(op, Let):
            lets[Var(op.name)] = substitute(op.value, lets)
    return substitute(expr, lets)


def _only_while_left(loop: For, copy: Copy, listed: TileWalk, ahead: int) -> bool:
    """True when the copy stands under the condition that the list has that many tiles more."""
    for op in loop.body:
        if isinstance(op, If) and any(x is copy for x in walk_ops(op.body)):
            return _exceeds(op.cond, loop, listed, ahead)
    return False


def _exceeds(cond: Expr, loop: For, listed: TileWalk, ahead: int) -> bool:
    """``iv + ahead < count``, tried for every position of a list of five."""
    cond = substitute(cond, {loop.hi: Const(5), listed.count: Const(5)})
    if free_vars(cond) - {loop.iv}:
        return False
    held = np.broadcast_to(np.asarray(value_at(cond, {loop.iv: _POSITIONS[:5]})), (5,))
    return bool((held == (_POSITIONS[:5] + ahead < 5)).all())


def _at(expr: Expr, loop: For, value: Expr) -> Expr:
    return substitute(expr, {Var(loop.iv): value})


def prefetch_distance(copy: Copy, loop: For, Bc: int) -> int:
    """How many tiles ahead the copy in the loop runs: its first row at loop variable 0, in tiles."""
    row0 = _at(copy.row0, loop, Const(0))
    for op in loop.body:
        if isinstance(op, Let) and op.name == "kv0":
            row0 = _at(_replace_kv0(copy.row0, op.value), loop, Const(0))
    return int(value_at(row0, {"kv0": 0}).item()) // Bc


def _replace_kv0(expr: Expr, value: Expr) -> Expr:
    return substitute(expr, {Var("kv0"): value})


def before_loop(body: tuple[Op, ...], loop: For) -> list[Op]:
    """Operations before the loop, Ifs opened."""
    out: list[Op] = []
    for op in body:
        if op is loop:
            break
        if isinstance(op, If):
            out += before_loop(op.body, loop)
        else:
            out.append(op)
    return out


def state_lane_role(l_init: Expr, lanes: int, partial: bool) -> Check:
    """The initial row sum counts once per row: on one lane when lanes hold partial sums, on all when they hold the
    whole.
    """
    values = np.broadcast_to(value_at(l_init, {"lane": np.arange(lanes)}), (lanes,))
    good = float(values.sum()) == 1.0 if partial else bool((values == 1.0).all())
    return Check(
        "state-lane-role", good, "the sink counts once per row" if good else f"the sum starts at {values.tolist()}"
    )
