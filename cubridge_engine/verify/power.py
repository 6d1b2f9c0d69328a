"""Can the grid fail? Wrong answers that it must reject: an all-zero output, the mean of V, every constant of the spec
nudged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..ir.expr import NEG_INF, Call, Const, Expr, Read
from ..spec.attention import Attention
from .measure import TOLERANCES, row_errors

Array = NDArray[Any]
MARGIN = 10.0  # a wrong answer must be that many tolerances away: at exactly one, rounding would decide


@dataclass(frozen=True, slots=True)
class Problem:
    """One case as power checks need it: its name, inputs by role, the reference O, and rows without a key."""

    name: str
    roles: dict[str, Array]
    sizes: dict[str, int]
    want: Array
    dead: Array | None


@dataclass(frozen=True, slots=True)
class Check:
    """A wrong answer, the case that is furthest from it, and whether that is far enough."""

    what: str
    kind: str  # output | constant
    case: str
    distance: float
    rejected: bool
    part: str = ""
    old: str = ""
    new: str = ""


@dataclass(frozen=True, slots=True)
class Mutation:
    """The spec with one constant of `part` changed. `others`: the same constant changed otherwise, for the case that
    the first change means nothing.
    """

    part: str
    old: str
    new: str
    attention: Attention
    others: tuple[Mutation, ...] = ()


def nudged(value: float | int) -> float | int | None:
    """The value next to a constant: integers by one, floats by a tenth; None for what has no neighbour (infinities,
    booleans).
    """
    if isinstance(value, bool) or not math.isfinite(value):
        return None
    if isinstance(value, int):
        return value + 1
    return value * 1.1 if value else 0.1


def other_values(value: float | int) -> tuple[int, ...]:
    """The neighbour below an integer, its double and its half: a constant whose next value means the same may be told
    from these.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        return ()
    return tuple(dict.fromkeys(n for n in (value - 1, 2 * value, value // 2) if n not in (value, value + 1)))


def _variants(expr: Expr, in_sign: bool = False) -> Iterable[tuple[Const, list[tuple[Const, Expr]]]]:
    """Each occurrence of a constant replaced by its neighbour, then by `other_values`. Indices of reads are left alone:
    they are layout, not maths. A factor `in_sign` counts by its own sign alone, so it is replaced by its opposite.
    """
    if isinstance(expr, Const):
        value = nudged(expr.value)
        if value is not None and in_sign and expr.value:
            yield expr, [(Const(-expr.value), Const(-expr.value))]
        elif value is not None:
            yield expr, [(Const(v), Const(v)) for v in (value, *other_values(expr.value))]
    elif isinstance(expr, Call):
        factors = expr.op == "sign" or (in_sign and expr.op in ("mul", "div", "neg"))
        for position, arg in enumerate(expr.args):
            for old, changes in _variants(arg, factors):
                before, behind = expr.args[:position], expr.args[position + 1 :]
                yield old, [(new, Call(expr.op, (*before, changed, *behind))) for new, changed in changes]
    else:
        assert not isinstance(expr, Read) or expr.index is not None


def mutations(attention: Attention) -> list[Mutation]:
    """Every constant of score, mask, sink and divisor nudged, one at a time, and a finite fill turned into -inf."""
    result: list[Mutation] = []
    fill = attention.fill
    if attention.mask is not None and isinstance(fill, Const) and math.isfinite(fill.value):
        result.append(Mutation("fill", repr(fill.value), "-inf", replace(attention, fill=NEG_INF)))
    for part in ("score", "mask", "sink", "divisor"):
        expr = getattr(attention, part)
        if expr is None:
            continue
        for old, changes in _variants(expr):
            made = [
                Mutation(part, repr(old.value), repr(new.value), replace(attention, **{part: changed}))
                for new, changed in changes
            ]
            result.append(replace(made[0], others=tuple(made[1:])))
    return result


def mean_of_v(problem: Problem, head_map: Array) -> Array:
    """What a kernel that ignores its scores computes: the mean over all keys of V, for every query."""
    v = problem.roles["v"]
    mean = v.mean(axis=2) if v.shape[2] else np.zeros((v.shape[0], v.shape[1], v.shape[3]))
    return np.broadcast_to(mean[:, head_map][:, :, None, :], problem.want.shape)


def power(
    attention: Attention,
    problems: Sequence[Problem],
    evaluate: Callable[[Attention, Problem], Array],
    head_map: Callable[[Problem], Array],
    dtype: str,
    equivalent: Callable[[Attention], bool] = lambda _: False,
) -> list[Check]:
    """Check that the grid rejects each wrong answer.

    `evaluate` gives O [B, H, Sq, D] of an Attention on a problem in float64; `dtype` is the coarsest element type a
    kernel is held to: whole wrong outputs must be rejected at its tolerance, nudged constants at that of the float64
    run. `equivalent` says that a changed spec has the same mask at all lengths: then another value of that constant
    must be rejected in its place.
    """
    problems = [p for p in problems if p.want.size and p.roles["k"].shape[2]]
    floor = TOLERANCES[dtype].floor
    checks: list[Check] = []
    outputs: tuple[tuple[str, Callable[[Problem], Array]], ...] = (
        ("an all-zero output", lambda p: np.zeros_like(p.want)),
        ("the mean of V", lambda p: mean_of_v(p, head_map(p))),
    )
    limit = MARGIN * TOLERANCES[dtype].relative
    for what, wrong in outputs:
        checks.append(_check(what, "output", problems, wrong, limit, floor))
    limit = MARGIN * TOLERANCES["float64"].relative
    for mutation in mutations(attention):
        check = _nudge(mutation, problems, evaluate, limit, floor)
        if not check.rejected and mutation.part == "mask" and equivalent(mutation.attention):
            tried = (_nudge(other, problems, evaluate, limit, floor) for other in mutation.others)
            other = next((c for c in tried if c.rejected), None)
            if other is not None:
                check = replace(other, what=f"{other.what} ({mutation.new} means the same as {mutation.old})")
        checks.append(check)
    return checks


def _nudge(
    mutation: Mutation,
    problems: Sequence[Problem],
    evaluate: Callable[[Attention, Problem], Array],
    limit: float,
    floor: float,
) -> Check:
    what = f"{mutation.part}: {mutation.old} -> {mutation.new}"
    check = _check(what, "constant", problems, lambda p: evaluate(mutation.attention, p), limit, floor)
    return replace(check, part=mutation.part, old=mutation.old, new=mutation.new)


def _check(
    what: str, kind: str, problems: Sequence[Problem], wrong: Callable[[Problem], Array], limit: float, floor: float
) -> Check:
    """The largest distance over the cases, stopping at the first that suffices."""
    best, name = 0.0, ""
    for problem in problems:
        errors = row_errors(wrong(problem), problem.want, floor)
        if problem.dead is not None:
            # Rows without a key are a matter of policy: they alone do not show that scores are right.
            errors = np.where(problem.dead[..., None], 0.0, errors) if kind == "output" else errors
        distance = float(errors.max(initial=0.0))
        if distance > best:
            best, name = distance, problem.name
        if best > limit:
            break
    return Check(what, kind, name, best, best > limit)
