"""Parts of a function in words: the mask by the settings of switches, the score, the scale, the log-sum-exp."""

from __future__ import annotations

import itertools
import math

import numpy as np

from ..ir.evaluate import UnboundName
from ..ir.expr import TRUE, Call, Const, Expr, J, Var, conjoin, conjuncts, free_vars, reads, substitute
from ..ir.simplify import linear_terms, simplify
from ..ir.text_expr import print_expr
from ..spec.describe import mask_words, score_words
from ..transfer.sampling import bind, bind_unknown, points, value_at
from ..transfer.scores import is_tail
from .model import Function

MOST_SWITCHES = 2  # four settings are still read; beyond that the formula says more
LN2 = math.log(2.0)


def formula(expr: Expr) -> str:
    """The text of an expression, its numbers ln 2 and log2(e) by name."""
    text = print_expr(expr)
    for number, name in ((LN2, "ln 2"), (1.0 / LN2, "log2(e)")):
        for spelled in (repr(number), f"{number:.9g}", f"{number:.8g}"):
            text = text.replace(spelled, name)
    return text


def switches_of(expr: Expr, function: Function) -> tuple[str, ...]:
    """The switches that an expression depends on."""
    return tuple(sorted(n for n in free_vars(expr) if function.kinds.get(n) == "flag"))


def settings_of(names: tuple[str, ...]) -> tuple[dict[str, bool], ...]:
    """All settings of switches, those that are set first."""
    return tuple(
        dict(zip(names, values, strict=True)) for values in itertools.product((True, False), repeat=len(names))
    )


def mask_at(function: Function, setting: dict[str, bool]) -> Expr:
    """The mask with switches set, its bounds taken apart, without the tail ``j < Sk``."""
    bound = simplify(bind(function.mask, setting))
    return conjoin(
        [c for part in conjuncts(bound) for c in _bounds(part) if not is_tail(c) and not _always(c, function)]
    )


def _always(condition: Expr, function: Function) -> bool:
    """True for a condition that holds for every key of every row: it masks nothing."""
    if condition == TRUE or reads(condition):
        return condition == TRUE
    env = points((condition,), tile=function.tile)
    known = {"i", "j", "b", "h", "hk", "B", "H", "Hkv", "Sq", "Sk"}
    return free_vars(condition) <= known and bool(np.all(value_at(condition, env)))


def _bounds(expr: Expr) -> list[Expr]:
    """``j < min(a, b)`` as two bounds: each of them may have a name."""
    if isinstance(expr, Call) and expr.op in ("lt", "le") and expr.args[0] == J:
        end = expr.args[1]
        if isinstance(end, Call) and end.op == "min":
            return [c for arg in end.args for c in _bounds(simplify(Call(expr.op, (J, arg))))]
        terms, constant = linear_terms(end)
        if expr.op == "lt" and constant == 1 and terms:
            return [Call("le", (J, simplify(end - 1)))]
    return [expr]


def mask_phrase(mask: Expr) -> str:
    """``causal (bottom-right): key j counts for query i where j <= i + Sk - Sq``, or ``every key is attended``."""
    if mask == TRUE:
        return "every key is attended"
    text, words = formula(mask), ", ".join(mask_words(mask))
    where = f"key j counts for query i where {text}"
    own = not words or "mask of its own" in words or words == text
    return where if own else f"the mask is {words}: {where}"


def mask_sentence(function: Function) -> str:
    """The mask at every setting of its switches."""
    names = switches_of(function.mask, function)
    if len(names) > MOST_SWITCHES:
        return f"Key j counts for query i where {formula(function.mask)}."
    parts: dict[str, list[str]] = {}
    for setting in settings_of(names):
        parts.setdefault(mask_phrase(mask_at(function, setting)), []).append(_setting_words(setting))
    if len(parts) == 1:
        phrase = next(iter(parts))
        return phrase[0].upper() + phrase[1:] + "."
    whole = "; ".join(f"with {' or '.join(when)}, {phrase}" for phrase, when in parts.items())
    return whole[0].upper() + whole[1:] + "."


def _setting_words(setting: dict[str, bool]) -> str:
    return " and ".join(f"{name} = {int(value)}" for name, value in setting.items())


def mask_name(function: Function) -> str:
    """The mask in a few words for a title: ``causal (bottom-right) if causal``, ``full``, or ``its own mask``."""
    names = switches_of(function.mask, function)
    if len(names) > 1:
        return "masked by switches"
    found = list(dict.fromkeys(_short(mask_at(function, setting)) for setting in settings_of(names)))
    return found[0] if len(found) == 1 else f"{found[0]} or {found[1]}, by {', '.join(names)}"


def mask_text(function: Function) -> str:
    """The mask with its name, where it has one: ``causal (bottom-right): j <= i + Sk - Sq``, ``every key``."""
    if function.mask == TRUE:
        return "every key"
    text, name = formula(function.mask), mask_name(function)
    return text if name.startswith("masked") else f"{name}: {text}"


def _short(mask: Expr) -> str:
    if mask == TRUE:
        return "full"
    words = ", ".join(mask_words(mask))
    return words if words and "mask of its own" not in words and words != print_expr(mask) else "masked"


def score_parts(function: Function) -> list[str]:
    """What is done to the raw product beside a usual scale: softcap, biases, another scale."""
    d = function.D or 64
    usual = simplify(substitute(function.score, {Var("scale"): Const(float(d) ** -0.5)}))
    return score_words(usual, d)


def scale_number(function: Function) -> float | None:
    """The scale where it is a number of the kernel's own: the slope of the score at 0, the same everywhere. None where
    the caller gives it, or where it differs from place to place.
    """
    if "scale" in free_vars(function.score):
        return None
    step = 1e-4
    env = points((function.score,), tile=function.tile, count=200)
    env = {**bind_unknown(env, free_vars(function.score)), "D": function.D or 64}
    try:
        up, down = (value_at(function.score, {**env, "s": np.full(200, x)}, {}) for x in (step, -step))
    except (UnboundName, ValueError, TypeError):
        return None
    slope = (np.asarray(up, dtype=float) - np.asarray(down, dtype=float)) / (2 * step)
    first = float(slope.flat[0])
    return first if np.allclose(slope, first, rtol=1e-3) and first != 0 else None
