"""Weights that are no softmax: the online softmax leaves the program for good, and the score becomes the weight.

Row maximum, exponential, correction and rescaling go; the row sum stays only where the divisor needs it. The weight is
computed where the raw scores are complete, and the kernel's own test then writes 0 where it wrote -inf: a key beyond
Sk weighs nothing even where the weight of a score of 0 is not 0 (sigmoid).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ...ir.expr import TRUE, Const, Expr, S, free_vars
from ...ir.nodes import Map, RowMap
from ...ir.text_expr import print_expr
from ..checks import score_before_mask
from ..draft import Draft
from ..model import Check, NormaliserEdit, ScoreEdit
from ..sampling import close, value_at
from ..semantics import Semantics, kv_loop_of, score_tile_of, semantics_of, state_names, walk_ops
from ..weights import Plan, base_two, without_softmax
from ..where_seen import where_seen
from .rule import Example, Rule
from .score import natural_score

# Beyond this a float32 is infinite, and so is the product that ought to be compared.
_LARGE = 1e30


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The weight in natural units (over the scaled score s) and as the kernel computes it (over its own S)."""

    natural: Expr
    value: Expr


def _apply(draft: Draft) -> Draft:
    att = draft.attention
    if att.normaliser == "softmax":
        return draft
    if any(o.role == "lse" for o in att.outputs):
        return draft.refuse("CB319", "lse")
    why = _untouchable(draft)
    if why:
        return draft.refuse("CB320", "normaliser", kernel=draft.kernel.name, why=why)
    spoken = natural_score(draft)
    natural = where_seen(spoken, att.mask, draft.types)
    wanted = _Wanted(natural, base_two(natural, draft.sem.unit))
    divisor = att.divisor
    plan = Plan(wanted.value, att.normaliser, divisor)
    kernel = without_softmax(draft.kernel, plan)
    after = replace(draft, kernel=kernel, original=kernel, sem=semantics_of(kernel))
    checks = (
        score_before_mask(kernel),
        _same_weight(draft, wanted, spoken),
        _no_row_state(after.sem, att.normaliser),
        _tail_weighs_nothing(after.sem),
        _same_divisor(after, divisor),
    )
    below = "" if divisor is None else f", O divided by {print_expr(divisor)}"
    edits = (ScoreEdit(wanted.value, natural, "P"), NormaliserEdit(att.normaliser, divisor))
    reason = f"no softmax: P = {print_expr(natural)}{below} (s: scaled score)"
    return after.step("normaliser", "normaliser", reason, *edits, checks=checks)


def _untouchable(draft: Draft) -> str:
    """Why the online softmax of the kernel cannot be taken out; '' when it can."""
    loop = kv_loop_of(draft.kernel)
    tile = score_tile_of(loop)
    ops = list(walk_ops(loop.body))
    if draft.sem.sink is not None:
        return f"its softmax starts with a sink of its own, {print_expr(draft.sem.sink)}"
    if not any(isinstance(op, Map) and op.role == "exp" and op.src == tile for op in ops):
        return "its exponential does not read the score tile"
    if not any(isinstance(op, RowMap) and op.role == "correction" for op in ops):
        return "its correction exp(m_old - m_new) is no value of its own"
    state_names(draft.kernel, loop)  # raises when m or l was not found
    return ""


def _same_weight(draft: Draft, wanted: _Wanted, spoken: Expr) -> Check:
    """value(S) == spoken(S * unit) at many points: units and the change to base two were carried right. A weight that
    relies on the mask is compared where the mask keeps.
    """
    unit = draft.sem.unit
    mask = draft.attention.mask if wanted.natural != spoken else None
    env = draft.sample(wanted.value, spoken, unit, mask or TRUE)
    factor = value_at(unit, env)
    with np.errstate(all="ignore"):
        seen = np.asarray(value_at(mask or TRUE, env, draft.types), bool)
        got = value_at(wanted.value, {**env, "s": env["s"] / factor}, draft.types)
        want = value_at(spoken, env, draft.types)
        got, want = (np.where(seen, np.clip(x, -_LARGE, _LARGE), 0.0) for x in (got, want))
        good = close(got, want)
    return Check("unit-of-scores", good and bool(seen.any()), f"unit {print_expr(unit)}")


def _no_row_state(sem: Semantics, normaliser: str) -> Check:
    found = sem.issues[0] if sem.issues else f"the rows are '{sem.normaliser}'"
    return Check("no-row-state", sem.normaliser == normaliser and not sem.issues and sem.lse == "none", found)


def _tail_weighs_nothing(sem: Semantics) -> Check:
    good = sem.tail and sem.fill == Const(0.0)
    return Check("tail-weighs-nothing", good, "keys from Sk on get the weight 0" if good else "keys beyond Sk count")


def _same_divisor(draft: Draft, divisor: Expr | None) -> Check:
    """What is stored is the sum over the keys by the divisor, for row sums of either sign."""
    want = S if divisor is None else S / divisor
    env = draft.sample(want, draft.sem.output)
    env["l"] = np.where(np.arange(len(env["s"])) % 2, 1.0, -1.0) * np.exp(env["s"] / 4)
    got, expected = value_at(draft.sem.output, env, draft.types), value_at(want, env, draft.types)
    stray = free_vars(draft.sem.output) - free_vars(want)
    return Check("divisor", close(got, np.asarray(expected)) and not stray, f"O = {print_expr(draft.sem.output)}")


RULE = Rule(
    "normaliser",
    "Take the online softmax out, compute the weight from the score, and divide by what the spec divides by.",
    ("score-before-mask", "unit-of-scores", "no-row-state", "tail-weighs-nothing", "divisor"),
    _apply,
    Example(
        {"score": "relu(s * 0.125)", "normaliser": "none", "fill": "0.0"},
        "map exp S <- S = exp2(s * c - ms)",
        ("score S = relu(s * (c * 0.6931471805599453))", "store_tile o <- O = s; limit=Sq"),
    ),
)
