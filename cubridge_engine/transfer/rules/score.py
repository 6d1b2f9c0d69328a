"""The scale is bound; any other change of the scores is one expression where the raw score tile is complete."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from ...ir.expr import Call, Const, Expr, S, Var, conjuncts, free_vars, walk
from ...ir.nodes import Score
from ...ir.simplify import simplify
from ...ir.text_expr import print_expr
from ..algebra import coefficient_of_s, linear_parts, number, scaled, split_product, to_site
from ..checks import score_before_mask
from ..draft import Draft
from ..model import Check, ScoreEdit
from ..place import insert_at_score_site
from ..ranges import key_first
from ..sampling import bind, close, value_at
from .rule import Example, Rule

# A sentinel only has to lie below every score and be equal for the whole row; this is as far as it may lie. On a row
# of sentinels the kernel computes exp2(fma(m, c, -round(m * c))) for its correction, whose argument is the rounding
# error of m * c and not 0. At 1e4 that is 5e-4 and the tiles of the row keep their weights; at 1e6 it is 0.06, which
# an H200 showed as an error of 9e-3; at 1e30 it overflows.
_LARGEST_FILL = 1e4
# exp of this is 0 in every float type beside any score a kernel of 16-bit inputs can meet.
_NEGLIGIBLE_FILL = -1e4


def fill_is_score(draft: Draft) -> bool:
    """True when masked elements keep a weight that matters: a finite fill, and rows that may have no other key.

    Where every row has a key, a fill this far below gives the weight 0 exactly as -inf does.
    """
    att = draft.attention
    if att.normaliser != "softmax":
        return False  # what is masked weighs 0, and the kernel's own test writes that
    if att.mask is None or not isinstance(att.fill, Const) or math.isinf(float(att.fill.value)):
        return False
    return att.empty_rows != "none" or float(att.fill.value) > _NEGLIGIBLE_FILL


def spec_score(draft: Draft) -> Expr:
    """The spec's score; a finite fill is part of it, so that its masked elements keep their weight on rows without a
    key.
    """
    att = draft.attention
    if att.mask is None or not fill_is_score(draft):
        return att.score
    return Call("where", (key_first(att.mask, draft.types), att.score, att.fill))


def _bind_scale(draft: Draft) -> Draft:
    att = draft.attention
    draft = replace(draft, mask=None if fill_is_score(draft) else att.mask)
    score = spec_score(draft)
    parts = linear_parts(score, lambda name: name == "D")
    alpha_expr = _alpha(score, parts, draft)
    alpha = number(alpha_expr, D=draft.kernel.D)
    draft = replace(draft, alpha=alpha)
    roles = {p.name: p.role for p in draft.kernel.params}
    factor = coefficient_of_s(draft.sem.score, lambda name: name in roles or name == "D")
    if factor is None:
        return draft.refuse("CB307", "score", kernel=draft.kernel.name, have=print_expr(draft.sem.score))
    scales = [n for n in free_vars(factor) if roles.get(n) in ("scale", "scale_log2", "scalar")]
    if not scales:
        # The kernel's scale is a constant of its own: keep it, and let the score rule make up the difference.
        return replace(draft, alpha=number(factor, D=draft.kernel.D))
    name = scales[0]
    per_unit = simplify(bind(factor, {name: 1.0}))
    value = alpha / number(per_unit, D=draft.kernel.D)
    text = print_expr(simplify(alpha_expr / per_unit))
    linear = np.isclose(number(bind(factor, {name: value}), D=draft.kernel.D), alpha)
    check = Check("unit-of-scores", bool(linear), f"natural = s * {print_expr(factor)}")
    reason = f"scores are scaled by {print_expr(alpha_expr)}"
    return draft.bound(name, value, text).step("bind_scale", "score", reason, checks=(check,))


def _alpha(score: Expr, parts: list[Expr], draft: Draft) -> Expr:
    """The scale a person would name: the slope of the score at s = 0 if it is a coefficient times a constant that
    occurs.
    """
    if not parts:
        return Const(1.0)
    first = parts[0]
    base = abs(number(first, D=draft.kernel.D))
    if base == 0:
        return Const(1.0)
    env = draft.sample(score)
    step = 1e-4
    up = value_at(score, {**env, "s": step}, draft.types)
    down = value_at(score, {**env, "s": -step}, draft.types)
    with np.errstate(all="ignore"):
        slopes = np.abs(up - down) / (2 * step)
    slopes = slopes[np.isfinite(slopes) & (slopes > 0)]
    positive = first if number(first, D=draft.kernel.D) > 0 else simplify(-first)
    if not slopes.size:
        return positive
    slope = float(np.median(slopes))
    constants = {abs(float(e.value)) for e in walk(score) if isinstance(e, Const) and not isinstance(e.value, bool)}
    for c in sorted(constants):
        if c and math.isfinite(c) and math.isclose(base * c, slope, rel_tol=1e-6):
            return simplify(positive * Const(float(c))) if c != 1 else positive
    return positive


def natural_score(draft: Draft) -> Expr:
    """The spec's score over the scaled score ``s``, as a person would write it."""
    return _readable(scaled(_limited_fill(spec_score(draft)), draft.alpha, draft.kernel.D))


def _score(draft: Draft) -> Draft:
    natural = natural_score(draft)
    if natural == S or draft.attention.normaliser != "softmax":
        return draft
    unit = _unit(draft)
    value = split_product(to_site(natural, unit), lambda e: not free_vars(e) & {"s", "i", "j"})
    value = _with_conditions(value, draft.types)
    kernel = insert_at_score_site(draft.kernel, lambda tile: (Score(tile, value),))
    after = replace(draft, kernel=kernel)
    checks = (score_before_mask(kernel), _same_score(draft, value, natural, unit))
    return after.step(
        "score", "score", f"S = {print_expr(natural)} (s: scaled score)", ScoreEdit(value, natural), checks=checks
    )


def _unit(draft: Draft) -> Expr:
    """Natural per S at the site. The site's own value is ``c * s``; with the scale bound, natural = site * unit =
    alpha * s.
    """
    return draft.sem.unit


def _same_score(draft: Draft, value: Expr, natural: Expr, unit: Expr) -> Check:
    """value(s / unit) * unit == natural(s), at many points: the unit was carried right."""
    env = draft.sample(value, natural, unit)
    factor = value_at(unit, env)
    with np.errstate(all="ignore"):
        got = value_at(value, {**env, "s": env["s"] / factor}, draft.types) * factor
        want = value_at(natural, env, draft.types)
    # Sentinels are not carried exactly (they need only be far below), so compare what a float weight can tell apart.
    low = -1e4
    return Check("unit-of-scores", close(np.maximum(got, low), np.maximum(want, low)), f"unit {print_expr(unit)}")


def _limited_fill(expr: Expr) -> Expr:
    if (
        isinstance(expr, Const)
        and isinstance(expr.value, float)
        and math.isfinite(expr.value)
        and expr.value < -_LARGEST_FILL
    ):
        return Const(-_LARGEST_FILL)
    if isinstance(expr, Call):
        return Call(expr.op, tuple(_limited_fill(a) for a in expr.args))
    return expr


def _readable(expr: Expr) -> Expr:
    """Factors that are the reciprocal of a whole number become divisions: ``s * 0.02`` reads ``s / 50``."""
    if not isinstance(expr, Call):
        return expr
    args = tuple(_readable(a) for a in expr.args)
    if expr.op == "mul" and isinstance(args[1], Const) and isinstance(args[1].value, float):
        value = args[1].value
        whole = round(1.0 / value) if 0 < abs(value) < 1 else 0
        if whole and math.isclose(1.0 / value, whole, rel_tol=1e-9):
            return args[0] / Const(float(whole))
    return Call(expr.op, args)


def _with_conditions(expr: Expr, types: dict[str, str]) -> Expr:
    """Conditions of selections in the form kernels write them."""
    if not isinstance(expr, Call):
        return expr
    args = tuple(_with_conditions(a, types) for a in expr.args)
    return Call(expr.op, (key_first(args[0], types), *args[1:]) if expr.op == "where" else args)


def used_conjuncts(draft: Draft) -> tuple[Expr, ...]:
    """The parts of the mask that is left for the mask rules."""
    return conjuncts(simplify(draft.mask, draft.types)) if draft.mask is not None else ()


BIND_SCALE = Rule(
    "bind_scale",
    "Give the kernel's scale argument the linear coefficient of the spec's score, in its unit; no text changes.",
    ("unit-of-scores",),
    _bind_scale,
    None,
)

SCORE = Rule(
    "score",
    "Insert the spec's score expression, in the unit of S, where the raw score tile is complete and before any mask.",
    ("score-before-mask", "unit-of-scores"),
    _score,
    Example(
        {"score": "50.0 * tanh(s * 0.125 / 50.0)"},
        "mask S keep j < Sk & (!causal | j <= i + (Sk - Sq)); fill=-inf",
        ("score S = tanh(s * (c * 0.6931471805599453 / 50.0)) * (50.0 / (c * 0.6931471805599453))",),
    ),
)

_ = Var  # the scalar language's variables appear in examples only
