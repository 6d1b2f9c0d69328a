"""KV range: tiles that the mask leaves empty for every row of the Q tile are not visited."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ...ir.expr import SK, Const, Expr, Var, call, conjoin, free_vars, substitute
from ...ir.nodes import Copy, For, If, Kernel, Let, Op
from ...ir.simplify import simplify
from ..checks import prefetch_distance, prologue_matches_lo, range_covers_mask, range_uniform, tiles_of
from ..draft import Draft, map_ops
from ..holes import exact_range
from ..model import RangeEdit
from ..place import map_outside_loop
from ..ranges import tidy
from ..sampling import Array, Env, bind
from ..semantics import bound_semantics, kv_loop_of, semantics_of, walk_ops
from ..structure import bounds_of
from .rule import Example, Rule
from .score import used_conjuncts


@dataclass(frozen=True, slots=True)
class _Plan:
    """The range a spec's mask asks for, and where each sample point's tile row starts and ends visiting keys."""

    keep: Expr
    lo: Expr | None
    hi: Expr | None
    env: Env
    first: Array
    last: Array


def _plan(draft: Draft) -> _Plan:
    """The range for the draft's mask, at points chosen for it."""
    keep = conjoin(used_conjuncts(draft))
    lo, hi = draft.interval or exact_range(keep, draft.attention, (draft.kernel.Br, draft.kernel.Bc), draft.types)[0]
    sem = bound_semantics(draft.sem, draft.bindings)
    tile = {"Br": draft.kernel.Br, "Bc": draft.kernel.Bc}
    env = draft.sample(keep, sem.lo, sem.hi, *(bind(e, tile) for e in (lo, hi) if e is not None))
    want_lo = Const(0) if lo is None else call("max", Const(0), lo)
    want_hi: Expr = SK if hi is None else call("min", SK, hi)
    first, last = tiles_of(want_lo, want_hi, env, draft.types, draft.kernel.Bc)
    return _Plan(keep, lo, hi, env, first, last)


def _apply(draft: Draft) -> Draft:
    if draft.tiles is not None:
        return draft  # a list of tiles knows better
    p = _plan(draft)
    sem = bound_semantics(draft.sem, draft.bindings)
    have_first, have_last = tiles_of(sem.lo, sem.hi, p.env, draft.types, draft.kernel.Bc)
    # Where the range is empty its exact place does not matter.
    live = p.first < p.last
    too_short = bool(np.any(live & ((have_last < p.last) | (have_first > p.first))))
    skips_left = draft.moves[0] and bool(np.any(live & (p.first > have_first)))
    skips_right = draft.moves[1] and bool(np.any(live & (p.last < have_last)))
    if not too_short and not skips_left and not skips_right:
        return draft
    edit = RangeEdit(
        p.lo if skips_left or too_short else None,
        (p.hi if p.hi is not None else SK) if skips_right or too_short else None,
        replace_hi=bool(np.any(live & (have_last < p.last))),
    )
    after = replace(draft, kernel=_rewrite(draft.kernel, edit, draft.types))
    new = semantics_of(after.kernel, draft.bindings)
    checks = (
        range_uniform(p.lo, p.hi),
        range_covers_mask(p.keep, new.lo, new.hi, p.env, draft.types, draft.kernel.Bc),
        prologue_matches_lo(after.kernel, p.env, draft.types),
    )
    return after.step("kv_range", "mask", "tiles without an attended key are skipped", edit, checks=checks)


def lower_bound(lo: Expr, kernel: Kernel, step: int) -> Expr:
    """The first value of the loop variable: a tile index (step 1) or a column that is a multiple of Bc."""
    tile = call("floordiv", call("max", Const(0), lo), Const(kernel.Bc))
    return tile if step != kernel.Bc else tile * kernel.Bc


def upper_bound(hi: Expr, kernel: Kernel, step: int, types: dict[str, str]) -> Expr:
    """The bound of the loop variable: a tile count, or a column."""
    return hi if step == kernel.Bc else call("floordiv", tidy(hi + (kernel.Bc - 1), types), Const(kernel.Bc))


def _rewrite(kernel: Kernel, edit: RangeEdit, types: dict[str, str]) -> Kernel:
    sizes = {"Br": kernel.Br, "Bc": kernel.Bc}
    if edit.hi is not None:
        kernel = _with_upper(kernel, tidy(bind(edit.hi, sizes), types), edit.replace_hi, types)
    if edit.lo is not None:
        kernel = _with_lower(kernel, tidy(bind(edit.lo, sizes), types))
    return kernel


def _with_upper(kernel: Kernel, hi: Expr, replaces: bool, types: dict[str, str]) -> Kernel:
    loop = kv_loop_of(kernel)
    new = upper_bound(hi if not replaces or hi == SK else call("min", SK, hi), kernel, loop.step, types)
    name = fresh(kernel, "kv_tiles" if loop.step != kernel.Bc else "kv_end")
    old = bounds_of(loop)[1]
    let = Let(name, new if replaces else call("min", old, new))

    def ask_again(op: Op) -> tuple[Op, ...]:
        # The prefetch in the loop asks for the same bound.
        return (replace(op, cond=substitute(op.cond, {old: Var(name)})),) if isinstance(op, If) else (op,)

    def bounded(op: For) -> For:
        body = map_ops(op.body, ask_again)
        return replace(op, hi=Var(name), body=body) if op.step > 0 else replace(op, lo=Var(name) + op.step, body=body)

    body = map_outside_loop(kernel.body, lambda op: op, bounded)
    return define(replace(kernel, body=body), let)


def define(kernel: Kernel, let: Let) -> Kernel:
    """Insert `let` directly before the first K/V copy or the loop, and after the definitions its value needs."""
    body = list(kernel.body)
    at = next(n for n, op in enumerate(body) if _uses_range(op))
    needed = [n + 1 for n, op in enumerate(body) if _defines(op, free_vars(let.value))]
    body.insert(max([at, *needed]), let)
    return replace(kernel, body=tuple(body))


def _uses_range(op: Op) -> bool:
    return any(
        (isinstance(x, For) and x.role == "kv_loop") or (isinstance(x, Copy) and x.tensor != "q")
        for x in walk_ops((op,))
    )


def _defines(op: Op, names: frozenset[str]) -> bool:
    return any(isinstance(x, Let) and x.name in names for x in walk_ops((op,)) if not isinstance(op, For))


def fresh(kernel: Kernel, name: str) -> str:
    """A name no Let, loop or parameter of the program has."""
    taken = {p.name for p in kernel.params}
    for op in walk_ops(kernel.body):
        taken |= {op.name} if isinstance(op, Let) else {op.iv} if isinstance(op, For) else set()
    while name in taken:
        name += "_"
    return name


def _with_lower(kernel: Kernel, lo: Expr) -> Kernel:
    loop = kv_loop_of(kernel)
    in_tiles = loop.step != kernel.Bc
    name = fresh(kernel, "kv_begin")
    types = {name: "int"}
    steady = {op.tensor: op for op in walk_ops(loop.body) if isinstance(op, Copy)}
    ahead: dict[str, int] = {}

    def moved(op: Op) -> Op:
        if not isinstance(op, Copy) or op.tensor == "q":
            return op
        n = ahead.get(op.tensor, 0)
        ahead[op.tensor] = n + 1
        first: Expr = Var(name) + (n if in_tiles else n * kernel.Bc)
        slot = op.slot
        if op.tensor in steady:
            # The slot the loop would use for that tile, from the slot of its own prefetch, which runs ahead.
            back = prefetch_distance(steady[op.tensor], loop, kernel.Bc) * (1 if in_tiles else kernel.Bc)
            slot = simplify(substitute(steady[op.tensor].slot, {Var(loop.iv): first - back}), types)
        row0 = simplify(first * kernel.Bc if in_tiles else first, types)
        return replace(op, row0=row0, slot=slot)

    def first_at(op: For) -> For:
        return replace(op, lo=Var(name)) if op.step > 0 else replace(op, hi=Var(name) + op.step)

    body = map_outside_loop(kernel.body, moved, first_at)
    return define(replace(kernel, body=body), Let(name, lower_bound(lo, kernel, loop.step)))


RULE = Rule(
    "kv_range",
    "Start and end the KV loop at the first and last tile that holds an attended key; the prologue follows.",
    ("range-uniform", "range-covers-mask", "prologue-matches-lo"),
    _apply,
    Example(
        {"mask": "j <= i + (Sk - Sq) & j > i + (Sk - Sq) - 8"},
        "copy Ks[0] <- k[0 : +16]",
        (
            "let kv_begin = max(0, q0 + Sk - Sq - 7) // 16",
            "copy Ks[kv_begin % 2] <- k[kv_begin * 16 : +16]",
            "for t in kv_begin .. n",
        ),
    ),
)
