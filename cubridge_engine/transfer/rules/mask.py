"""Masks: first the kernel's own switches, then the conjuncts that are missing, with the guard that must let them be
tested.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np

from ...ir.expr import FALSE, NEG_INF, TRUE, Call, Const, Expr, Read, Var, conjoin, conjuncts, free_vars, walk
from ...ir.nodes import If, Kernel, Mask, Op, RowMap
from ...ir.simplify import simplify
from ...ir.text_expr import print_expr
from ..checks import before_loop, empty_row_safe, mask_guard_covers, tiles_of
from ..draft import Draft, map_ops
from ..model import MaskEdit, StateEdit, WalkEdit
from ..place import insert_at_score_site
from ..ranges import key_first, tidy, tile_guard
from ..rows import FINITE_START, is_lowest
from ..sampling import Env, bind, implies, value_at
from ..semantics import TAIL, is_tail, kv_loop_of, score_tile_of, semantics_of, state_names, walk_ops
from .rule import Example, Rule
from .score import used_conjuncts

_FEW = 50  # sample points


def flags_of(draft: Draft) -> list[str]:
    """Runtime switches of the kernel that its mask or range depends on."""
    return [p.name for p in draft.kernel.params if p.role.startswith("flag")]


def remaining(parts: tuple[Expr, ...], existing: Expr, env: Env, types: dict[str, str]) -> tuple[Expr, ...] | None:
    """The conjuncts that `existing` does not already give; None when the spec attends somewhere `existing` does not."""
    if not implies(conjoin(parts), existing, env, types):
        return None
    kept = list(parts)
    for part in parts:
        others = [p for p in kept if p is not part]
        premise = conjoin([existing, *others])
        # A premise that is hardly ever met proves nothing.
        met = int(np.count_nonzero(np.broadcast_to(value_at(premise, env, types), env["i"].shape)))
        if _decidable(part) and met > _FEW and implies(premise, part, env, types):
            kept = others
    return tuple(kept)


def _bind_flag(draft: Draft) -> Draft:
    names = flags_of(draft)
    if not names:
        return draft
    parts = used_conjuncts(draft)
    env = draft.sample(conjoin(parts), draft.sem.keep)
    best: tuple[int, int, dict[str, int]] | None = None
    for values in itertools.product((0, 1), repeat=min(len(names), 4)):
        chosen: dict[str, int] = dict(zip(names, values, strict=False))
        left = remaining(parts, simplify(bind(draft.sem.keep, chosen)), {**env, **chosen}, draft.types)
        if left is not None and (best is None or (len(left), sum(values)) < best[:2]):
            best = (len(left), sum(values), chosen)
    chosen = best[2] if best else dict.fromkeys(names, 0)
    for name in names:
        value = chosen.get(name, 0)
        draft = draft.bound(name, value, str(value))
    what = ", ".join(f"{n} = {chosen.get(n, 0)}" for n in names)
    return draft.step("bind_flag", "mask", f"the kernel's own mask is used as far as it serves: {what}")


def _mask(draft: Draft) -> Draft:
    parts = used_conjuncts(draft)
    existing = simplify(bind(draft.sem.keep, draft.bindings))
    env = draft.sample(conjoin(parts), existing)
    left = remaining(parts, existing, env, draft.types)
    if left is not None:
        left = _not_given_by_range(draft, left)
    if left == ():
        return draft
    if left is None and not draft.element_test and _has_test(draft):
        return draft.refuse("CB322", "mask", kernel=draft.kernel.name, have=print_expr(existing))
    edit = _replacement(draft, parts) if left is None else _addition(draft, left)
    edit = replace(edit, fill=_other_fill(draft))
    after = replace(draft, kernel=_rewrite(draft, edit))
    started = _safe_start(after)
    after = replace(after, kernel=started[0])
    sem = semantics_of(after.kernel, draft.bindings)
    checks = (
        mask_guard_covers(sem.tests, draft.sample(sem.keep), draft.types, draft.kernel),
        empty_row_safe(sem, sinks=_sinks(draft)),
    )
    reason = f"attend only where {print_expr(conjoin(parts))}"
    return after.step("mask", "mask", reason, edit, *started[1], checks=checks)


def _has_test(draft: Draft) -> bool:
    return any(isinstance(op, Mask) for op in walk_ops(draft.original.body))


def _sinks(draft: Draft) -> bool:
    """True where the row maximum is going to start at a sink, which is finite."""
    return draft.attention.sink is not None and is_lowest(draft.sem.m_init)


def _other_fill(draft: Draft) -> Expr | None:
    """-inf, where the kernel's own fill is the number that its row maximum starts from: a row that has seen no key
    would give every masked one the weight 1, and may be asked for.
    """
    fill = draft.sem.fill
    if draft.attention.empty_rows not in ("nan", "zero") or draft.attention.normaliser != "softmax" or _is_inf(fill):
        return None
    return NEG_INF if _has_test(draft) and is_lowest(fill) else None


def _safe_start(draft: Draft) -> tuple[Kernel, tuple[StateEdit, ...]]:
    """The kernel with a row maximum that starts from a finite number, where a tile without a key for a row would give
    exp(-inf - -inf): then its weights are exp(-inf), and the row sum stays 0.
    """
    sem = semantics_of(draft.kernel, draft.bindings)
    if sem.empty_tile_safe or _sinks(draft) or not _is_inf(draft.sem.m_init):
        return draft.kernel, ()
    loop = kv_loop_of(draft.kernel)
    m, _ = state_names(draft.kernel, loop)
    initial = [op for op in before_loop(draft.kernel.body, loop) if isinstance(op, RowMap) and op.row == m]

    def change(op: Op) -> tuple[Op, ...]:
        return (replace(op, expr=FINITE_START),) if any(op is x for x in initial) else (op,)

    kernel = replace(draft.kernel, body=map_ops(draft.kernel.body, change))
    safe = semantics_of(kernel, draft.bindings).empty_tile_safe
    return (kernel, (StateEdit("m", FINITE_START),)) if safe else (draft.kernel, ())


def _is_inf(expr: Expr) -> bool:
    return isinstance(expr, Const) and isinstance(expr.value, float) and math.isinf(expr.value)


def _not_given_by_range(draft: Draft, left: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """Without the conjuncts that hold on every tile the loop visits: whole chunks need no element test."""
    sem = semantics_of(draft.kernel, draft.bindings)
    env = draft.sample(*left, sem.lo, sem.hi)
    first, last = tiles_of(sem.lo, sem.hi, env, draft.types, draft.kernel.Bc)
    visited = (env["j"] >= first) & (env["j"] < last)
    if _always_a_tile(draft, env):  # where the range is empty, some other tile is looked at
        visited |= first >= last
    if np.count_nonzero(visited) <= _FEW:
        return left
    return tuple(
        c
        for c in left
        if not _decidable(c, uniform=True) or not bool(np.asarray(value_at(c, env, draft.types))[visited].all())
    )


def _always_a_tile(draft: Draft, env: Env) -> bool:
    """True for a kernel whose loop visits a tile even where there are no keys."""
    sem = semantics_of(draft.original, draft.bindings)
    first, last = tiles_of(sem.lo, sem.hi, {**env, "Sk": np.zeros_like(env["j"])}, draft.types, draft.kernel.Bc)
    return bool(np.all(first < last))


def _decidable(part: Expr, *, uniform: bool = False) -> bool:
    """True where sampling cannot miss an exception: orders of positions, equality of blocks; no single points. With
    `uniform`, the block may be that of a number which is the same for a whole CTA (a length of the batch).
    """
    uniform = uniform and isinstance(part, Call) and part.op == "eq"
    for e in walk(part):
        if isinstance(e, Read) and not (uniform and not free_vars(e) & {"i", "j"}):
            return False
        if isinstance(e, Call) and e.op in ("ne", "mod"):
            return False
        if isinstance(e, Call) and e.op == "eq" and not all(isinstance(a, Call) and a.op == "floordiv" for a in e.args):
            return False
    return True


def _site(draft: Draft) -> tuple[int, Mask | None]:
    """The kernel's test that takes the conjuncts: the one with the tail, else the first."""
    tile = score_tile_of(kv_loop_of(draft.original))
    tests = [op for op in walk_ops(draft.original.body) if isinstance(op, Mask) and op.tile == tile]
    if not draft.element_test:
        return 0, None
    for n, op in enumerate(tests):
        if any(is_tail(c) for c in conjuncts(simplify(op.keep))):
            return n, op
    return 0, tests[0] if tests else None


def _addition(draft: Draft, left: tuple[Expr, ...]) -> MaskEdit:
    index, op = _site(draft)
    partial = _on_partial_tiles(draft)
    if partial is not None:
        return _addition_to_list(draft, left, index, op, partial)
    if op is None:
        return MaskEdit(always=left)
    guarded_site = draft.sem.tests[index].guard is not None
    guarded: list[Expr] = []
    always: list[Expr] = []
    guard: Expr = FALSE
    for part in left:
        part = _tidied(part, draft)
        needs = tile_guard(part, draft.types)
        if guarded_site and needs == TRUE:
            always.append(part)
            continue
        guarded.append(part)
        guard = needs if guard == FALSE else Call("or", (guard, needs))
    return MaskEdit(tuple(guarded), tuple(always), guard if guarded_site and guarded else None, None, index)


def _on_partial_tiles(draft: Draft) -> Expr | None:
    """In a loop over a list of tiles: the condition that the trip's tile holds masked elements."""
    found = [edit for step in draft.steps for edit in step.edits if isinstance(edit, WalkEdit)]
    return Call("lt", (Var(found[0].iv), Var(found[0].partial))) if found else None


def _addition_to_list(draft: Draft, left: tuple[Expr, ...], index: int, op: Mask | None, partial: Expr) -> MaskEdit:
    """The list knows which tiles need the test, so no tile is tested for nothing, whatever the mask reads."""
    parts = tuple(_tidied(p, draft) for p in left)
    if op is not None and draft.sem.tests[index].guard is not None:
        return MaskEdit(guarded=parts, guard=partial, index=index)
    assert isinstance(partial, Call)
    spared = (Call("or", (Call("ge", partial.args), conjoin(parts))),)
    return MaskEdit(guarded=spared, index=index) if op is not None else MaskEdit(always=spared)


def _replacement(draft: Draft, parts: tuple[Expr, ...]) -> MaskEdit:
    """The kernel masks elements the spec attends: its whole test is replaced, the tail kept."""
    index, op = _site(draft)
    parts = tuple(_tidied(p, draft) for p in parts)
    if op is None:
        return MaskEdit(always=parts)
    guarded_site = draft.sem.tests[index].guard is not None
    partial = _on_partial_tiles(draft)
    if partial is not None:
        return MaskEdit(guard=partial if guarded_site else None, replace=conjoin([TAIL, *parts]), index=index)
    unknown = tuple(p for p in parts if guarded_site and tile_guard(p, draft.types) == TRUE)
    known = tuple(p for p in parts if p not in unknown)
    keep = conjoin([TAIL, *known])
    return MaskEdit((), unknown, tile_guard(keep, draft.types) if guarded_site else None, keep, index)


def _tidied(part: Expr, draft: Draft) -> Expr:
    """A comparison with the key alone on the left, as kernels write it; other forms as they are."""
    return key_first(part, draft.types)


def _constants(expr: Expr, draft: Draft) -> Expr:
    """Br and Bc as numbers, for the program."""
    return tidy(bind(expr, {"Br": draft.kernel.Br, "Bc": draft.kernel.Bc}), draft.types)


def _rewrite(draft: Draft, edit: MaskEdit) -> Kernel:
    kernel = draft.kernel
    _, site = _site(draft)

    def change(op: Op) -> tuple[Op, ...]:
        if isinstance(op, Mask) and site is not None and op == site and (edit.guarded or edit.replace is not None):
            keep = edit.replace if edit.replace is not None else conjoin([op.keep, *edit.guarded])
            guard = op.guard
            if guard is not None and edit.guard is not None:
                more = _constants(edit.guard, draft)
                guard = more if edit.replace is not None else Call("or", (guard, more))
            return (replace(op, keep=keep, guard=guard),)
        if (
            isinstance(op, If)
            and site is not None
            and site.guard is None
            and edit.guard is not None
            and _holds(op, site)
        ):
            more = _constants(edit.guard, draft)
            return (replace(op, cond=more if edit.replace is not None else Call("or", (op.cond, more))),)
        return (op,)

    kernel = replace(kernel, body=map_ops(kernel.body, change))
    if edit.always:
        own = next((op.fill for op in walk_ops(draft.original.body) if isinstance(op, Mask)), NEG_INF)
        kernel = insert_mask_after_score(kernel, conjoin(edit.always), own)
    if edit.fill is not None:
        fill = edit.fill
        body = map_ops(kernel.body, lambda op: (replace(op, fill=fill),) if isinstance(op, Mask) else (op,))
        kernel = replace(kernel, body=body)
    return kernel


def _holds(op: If, site: Mask) -> bool:
    """True for the If around the (already changed) test."""
    return any(isinstance(x, Mask) and x.tile == site.tile for x in op.body)


def insert_mask_after_score(kernel: Kernel, keep: Expr, fill: Expr) -> Kernel:
    """A test on every tile, after the score and before the kernel's own test."""
    return insert_at_score_site(kernel, lambda tile: (Mask(tile, keep, fill, None),))


BIND_FLAG = Rule(
    "bind_flag",
    "Set the kernel's own switches so that the spec implies its mask and the least is left to add; no text changes.",
    (),
    _bind_flag,
)

MASK = Rule(
    "mask",
    "Add the missing conjuncts to the kernel's element test; widen the tile guard to every partial tile.",
    ("mask-guard-covers", "empty-row-safe"),
    _mask,
    Example(
        {"mask": "j <= i + (Sk - Sq) & j > i + (Sk - Sq) - 8"},
        "mask S keep j < Sk & (!causal | j <= i + (Sk - Sq)); fill=-inf; guard=kv0 + 16 > Sk | causal",
        ("j > i + Sk - Sq - 8; fill=-inf", "kv0 <= q0 + Sk - Sq + 7"),
    ),
)
