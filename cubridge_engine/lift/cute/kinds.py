"""What a number is, from how it was made: the step of attention that an operation on numbers of given kinds is.

A kind is one of S (a score, scaled, capped or masked), m (a row maximum), nm (its negative), dm (a difference of two),
P (a weight), l (a row sum), corr (exp of dm), em (exp of a plain number less m: a sink, or the first trip's
correction), inv (1 / l), O (accumulated, not divided), On (divided), lse (log l, with m or without), and ``?``, which
nothing is said of. No name of the user's is looked at.
"""

from __future__ import annotations

from dataclasses import dataclass, field

Kinds = frozenset[str]
NONE: Kinds = frozenset()
LOST: Kinds = frozenset("?")


@dataclass(slots=True, eq=False)
class Cell:
    """A tensor or a variable: what its elements are now. `space`: g, s, r or ''. `origin`: the pointers that it was
    filled from.
    """

    kinds: Kinds = NONE
    space: str = ""
    origin: Kinds = NONE


@dataclass(frozen=True, slots=True)
class Value:
    """The result of an expression. `cells`: what it is a view or an element of. `made`: steps done to get it."""

    kinds: Kinds = NONE
    cells: tuple[Cell, ...] = ()
    made: Kinds = NONE
    origin: Kinds = NONE
    literal: str = ""
    thing: object = None  # an object with members, or a function written in place


@dataclass(slots=True)
class Target:
    """Where the value goes that is being computed."""

    cell: Cell | None = None
    notes: set[str] = field(default_factory=set[str])


def union(values: list[Value]) -> Value:
    """Any of these values."""
    kinds = NONE.union(*(v.kinds for v in values)) if values else NONE
    made = NONE.union(*(v.made for v in values)) if values else NONE
    origin = NONE.union(*(v.origin for v in values)) if values else NONE
    cells = tuple(dict.fromkeys(c for v in values for c in v.cells))
    return Value(kinds, cells, made, origin)


def lost(values: list[Value]) -> Value:
    """Something of these values that is no step of attention: nothing is said of it, unless it is of plain numbers."""
    both = union(values)
    return Value(LOST if both.kinds else NONE, made=both.made)


_EM = frozenset({"em"})


def exponential(argument: Value) -> Value:
    """exp of a score is a weight; of maxima alone it is the correction."""
    kinds = argument.kinds
    if "S" in kinds and kinds <= {"S", "m"}:
        return Value(frozenset("P"), made=argument.made | ({"exp"} if "m" in kinds else NONE))
    if kinds and kinds <= {"m", "nm", "dm"}:
        return Value(frozenset({"corr"}), made=argument.made | {"correction"}) if "dm" in kinds else Value(_EM)
    return Value(LOST if kinds else NONE, made=argument.made)


def maximum(values: list[Value], target: Cell | None) -> Value:
    """The larger of scores, or of a running maximum and a score. A bound on one score leaves it a score."""
    both = union(values)
    scores = [v for v in values if v.kinds and v.kinds <= {"S", "m"}]
    running = any(target is not None and target in v.cells for v in values)
    if not scores or not both.kinds <= {"S", "m"}:
        return Value(both.kinds and LOST, made=both.made)
    if len(scores) >= 2 or "m" in both.kinds or (running and target is not None and not target.kinds):
        return Value(frozenset("m"), made=both.made | {"row_max"})
    return Value(both.kinds, made=both.made)


def logarithm(argument: Value) -> Value:
    """log l."""
    if argument.kinds == frozenset({"l"}):
        return Value(frozenset({"lse"}), made=argument.made | {"lse"})
    return Value(LOST if argument.kinds else NONE, made=argument.made)


def added(left: Value, right: Value, target: Cell | None, minus: bool = False) -> Value:
    """Sums: of weights (a row sum), of log l and m (LSE), of scores and anything plain (scores)."""
    both = union([left, right])
    kinds, made = both.kinds, both.made
    if minus and left.kinds == right.kinds == frozenset({"m"}):
        return Value(frozenset({"dm"}), made=made)
    if kinds == frozenset({"P"}) and not minus:
        summed = left.kinds == right.kinds or (target is not None and target in both.cells and "P" not in target.kinds)
        return Value(frozenset("l"), made=made | {"row_sum"}) if summed else Value(kinds, made=made)
    if "l" in kinds and kinds <= {"l", "P", "em"} and not minus:
        return Value(frozenset("l"), made=made | {"row_sum"})
    if "lse" in kinds and kinds <= {"lse", "m"} and not (minus and "lse" in right.kinds):
        return Value(frozenset({"lse"}), made=made | {"lse"})
    if kinds <= {"S", "m", "nm"}:
        return Value(_shifted(left.kinds, right.kinds, minus), made=made)
    return Value(kinds if len(kinds) == 1 and not (minus and not left.kinds) else LOST, made=made)


def _shifted(left: Kinds, right: Kinds, minus: bool) -> Kinds:
    """Of scores and maxima: S - m, however it is spelled; S + m and m - S are nothing that is known."""
    if minus:
        right = negated(Value(right)).kinds
    both = left | right
    plus = any(side == frozenset({"m"}) for side in (left, right))  # a maximum that is added
    if "?" in both or ("S" in both and plus) or ("S" not in both and len(both) > 1):
        return LOST
    return both - {"nm"} | {"m"} if {"S", "nm"} <= both else both


def negated(value: Value) -> Value:
    """-m is what a score is added to; of anything else with its sign changed nothing is said."""
    swapped = {frozenset({"m"}): frozenset({"nm"}), frozenset({"nm"}): frozenset({"m"}), frozenset({"dm"}): value.kinds}
    return Value(swapped.get(value.kinds, LOST if value.kinds else NONE), made=value.made, literal=value.literal)


def multiplied(left: Value, right: Value) -> Value:
    """Products: a correction on O or l, the division of O, a plain factor on anything."""
    both = union([left, right])
    kinds, made = both.kinds, both.made
    if len(kinds) <= 1 and (not left.kinds or not right.kinds):
        scaled = kinds == frozenset({"S"}) and "softcap" not in made  # a cap's own factors are part of it
        return Value(kinds, made=made | ({"scale"} if scaled else NONE))
    for factor, result, step in (("corr", "O", "rescale"), ("corr", "l", "l_rescale"), ("inv", "O", "normalise")):
        if kinds == frozenset({factor, result}):
            return Value(frozenset({"On"} if factor == "inv" else {result}), made=made | {step})
    if kinds <= {"S", "m"} and not (left.kinds and right.kinds):
        return Value(kinds, made=made)
    return Value(LOST, made=made)


def divided(left: Value, right: Value) -> Value:
    """O / l, 1 / l, anything by a plain number."""
    made = left.made | right.made
    if right.kinds == frozenset({"l"}):
        if left.kinds == frozenset({"O"}):
            return Value(frozenset({"On"}), made=made | {"normalise"})
        return Value(frozenset({"inv"}) if not left.kinds else LOST, made=made)
    if right.kinds:
        return Value(LOST, made=made)
    return Value(left.kinds, made=made)
