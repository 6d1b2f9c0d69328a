"""Mask, KV range and tile guard are one fact: the last two are derived here from the first.

Rows of a CTA are ``[q0, q0 + Br)``, columns of a tile ``[kv0, kv0 + Bc)``. Everything derived is conservative: a range
may be wider and a guard true more often than needed, never the other way.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..ir.expr import FALSE, SQ, TRUE, Call, Const, Expr, I, J, Var, call, free_vars, type_of
from ..ir.simplify import linear_terms, simplify

Q0, KV0, BR, BC = Var("q0"), Var("kv0"), Var("Br"), Var("Bc")
Types = Mapping[str, str] | None
Box = Mapping[Expr, tuple[Expr, Expr]]

ROWS: tuple[Expr, Expr] = (Q0, Q0 + BR - 1)
PRESENT_ROWS: tuple[Expr, Expr] = (Q0, call("min", Q0 + BR, SQ) - 1)  # without those that the last Q tile lacks
COLUMNS: tuple[Expr, Expr] = (KV0, KV0 + BC - 1)

# Names are ordered as people write them: position, tile, key length, minus query length, constant.
_ORDER = ("q0", "kv0", "i", "j", "Br", "Bc", "Sk", "Sq")
_TYPES = {"q0": "int", "kv0": "int", "Br": "int", "Bc": "int"}


def types_with_tiles(types: Types) -> dict[str, str]:
    """`types` plus the tile names this room uses."""
    return {**_TYPES, **(types or {})}


def tidy(expr: Expr, types: Types = None) -> Expr:
    """An integer expression written as a sum in the usual order; others are simplified part by part."""
    if isinstance(expr, Call) and expr.op in (
        "min",
        "max",
        "and",
        "or",
        "lt",
        "le",
        "gt",
        "ge",
        "eq",
        "ne",
        "floordiv",
    ):
        return Call(expr.op, tuple(tidy(a, types) for a in expr.args))
    if not isinstance(expr, Call) or expr.op not in ("add", "sub", "neg", "mul"):
        return expr
    terms, constant = linear_terms(expr, types_with_tiles(types))
    if list(terms) == [expr]:
        return expr
    result: Expr | None = None
    ordered = sorted(terms.items(), key=_place)
    # A sum starts with a positive term if it has one.
    leader = next((item for item in ordered if item[1] > 0), None)
    ordered.sort(key=lambda item: item != leader)
    for atom, factor in ordered:
        size = abs(factor)
        inner = tidy(atom, types)
        term = inner if size == 1 else Call("mul", (Const(size), inner))
        if result is None:
            result = term if factor > 0 else Call("neg", (term,))
        else:
            result = Call("add" if factor > 0 else "sub", (result, term))
    if result is None:
        return Const(constant)
    return result if not constant else Call("add" if constant > 0 else "sub", (result, Const(abs(constant))))


def _place(item: tuple[Expr, int]) -> tuple[float, str]:
    atom, factor = item
    name = atom.name if isinstance(atom, Var) else ""
    # Composite terms first, other names between positions and tile sizes.
    place = _ORDER.index(name) if name in _ORDER else _ORDER.index("Br") - 0.5 if name else -1
    return (place if factor > 0 or name in ("Sk", "Sq") else place + 20, str(atom))


# ---- bounds of an expression over a box ---------------------------------------------------------------------------


def bound(expr: Expr, upper: bool, box: Box, types: Types = None) -> Expr | None:
    """The largest (`upper`) or smallest value of integer `expr` with each variable of `box` in its closed interval;
    None: unknown.
    """
    if expr in box:
        return box[expr][1 if upper else 0]
    if not any(name.name in free_vars(expr) for name in box if isinstance(name, Var)):
        return expr
    if not isinstance(expr, Call):
        return None  # a tensor read at an index inside the box
    if expr.op in ("add", "sub", "neg", "mul"):
        return _bound_sum(expr, upper, box, types)
    if expr.op in ("min", "max"):
        parts = [bound(a, upper, box, types) for a in expr.args]
        return None if None in parts else Call(expr.op, tuple(p for p in parts if p is not None))
    if expr.op == "floordiv" and isinstance(expr.args[1], Const) and expr.args[1].value > 0:
        inner = bound(expr.args[0], upper, box, types)
        return None if inner is None else Call("floordiv", (inner, expr.args[1]))
    if expr.op == "mod" and isinstance(expr.args[1], Const) and expr.args[1].value > 0:
        return Const(int(expr.args[1].value) - 1) if upper else Const(0)
    if expr.op == "abs":
        if not upper:
            return Const(0)
        top, bottom = bound(expr.args[0], True, box, types), bound(expr.args[0], False, box, types)
        return None if top is None or bottom is None else call("max", top, -bottom)
    return None


def _bound_sum(expr: Expr, upper: bool, box: Box, types: Types) -> Expr | None:
    terms, constant = linear_terms(expr, types_with_tiles(types))
    if list(terms) == [expr]:
        return None  # a product that is not linear
    total: Expr = Const(constant)
    for atom, factor in terms.items():
        extreme = bound(atom, upper == (factor > 0), box, types)
        if extreme is None:
            return None
        total = total + extreme * factor
    return tidy(total, types)


def possible(expr: Expr, box: Box, types: Types = None) -> Expr:
    """A condition, free of the box's variables, that holds wherever `expr` is true somewhere in the box. TRUE when
    unknown.
    """
    expr = simplify(expr, types)
    if not isinstance(expr, Call):
        return expr if expr == FALSE else TRUE
    if expr.op in ("and", "or"):
        return simplify(Call(expr.op, tuple(possible(a, box, types) for a in expr.args)), types_with_tiles(types))
    if expr.op in ("lt", "le", "gt", "ge"):
        less = expr.op in ("lt", "le")
        left, right = bound(expr.args[0], not less, box, types), bound(expr.args[1], less, box, types)
        return TRUE if left is None or right is None else Call(expr.op, (left, right))
    if expr.op == "eq":
        a, b = expr.args
        return possible(Call("and", (Call("le", (a, b)), Call("ge", (a, b)))), box, types)
    if expr.op == "ne" and all(isinstance(a, Call) and a.op == "floordiv" for a in expr.args):
        # Other blocks, than which there are tiles without: of numbers that differ in every tile nothing is gained.
        a, b = expr.args
        return possible(Call("or", (Call("lt", (a, b)), Call("gt", (a, b)))), box, types)
    return TRUE


def tile_guard(keep: Expr, types: Types = None) -> Expr:
    """When must a tile be tested? A condition over q0, kv0 that is true on every tile where `keep` fails somewhere."""
    fails = simplify(Call("not", (key_first(keep, types),)), types)
    guard = tidy(possible(fails, {I: ROWS, J: COLUMNS}, types), types)
    return _decided(guard)


def _decided(guard: Expr) -> Expr:
    """Without comparisons of numbers: of ``7 >= 5``, as a remainder may be in any tile."""
    if not isinstance(guard, Call) or guard.op not in ("and", "or"):
        plain = isinstance(guard, Call) and all(isinstance(a, Const) for a in guard.args)
        return simplify(guard) if plain else guard
    parts = [_decided(a) for a in guard.args]
    settled = TRUE if guard.op == "or" else FALSE
    left = [p for p in parts if p not in (TRUE, FALSE)]
    if settled in parts or not left:
        return settled if settled in parts else parts[0]
    return Call(guard.op, tuple(left)) if len(left) == 2 else left[0]


def key_first(keep: Expr, types: Types = None) -> Expr:
    """Comparisons that are linear in j written with j alone on the left, as kernels write them; ``|x| <= c`` becomes
    two of them.
    """
    if not isinstance(keep, Call):
        return keep
    if keep.op in ("and", "or", "not"):
        return Call(keep.op, tuple(key_first(a, types) for a in keep.args))
    if keep.op not in _FLIPPED:
        return keep
    split = _without_abs(keep)
    if split is not None:
        return key_first(split, types)
    left, right = keep.args
    if type_of(left, types_with_tiles(types)) != "int" or type_of(right, types_with_tiles(types)) != "int":
        return keep
    terms, constant = linear_terms(left - right, types_with_tiles(types))
    factor = terms.pop(J, 0)
    if abs(factor) != 1 or any("j" in free_vars(atom) for atom in terms):
        return keep
    rest: Expr = Const(-factor * constant)
    for atom, times in terms.items():
        rest = rest + atom * (-factor * times)
    op = keep.op if factor > 0 else _FLIPPED[keep.op]
    return _closest(op, J, tidy(rest, types), types)


_FLIPPED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq", "ne": "ne"}


# The same integer comparison with the bound one higher or lower.
_NEIGHBOURS = {"lt": ("le", -1), "ge": ("gt", -1), "le": ("lt", 1), "gt": ("ge", 1)}


def _closest(op: str, left: Expr, right: Expr, types: Types) -> Expr:
    """``j <= i`` rather than ``j < i + 1``: of the two ways to write a bound, the one with the smaller constant."""
    if op in _NEIGHBOURS:
        other, step = _NEIGHBOURS[op]
        shifted = tidy(right + step, types)
        constants = [abs(linear_terms(e, types_with_tiles(types))[1]) for e in (right, shifted)]
        if constants[1] < constants[0] and constants[1] == 0:
            return Call(other, (left, shifted))
    return Call(op, (left, right))


def _without_abs(keep: Call) -> Expr | None:
    left, right = keep.args
    op = keep.op
    if isinstance(right, Call) and right.op == "abs":
        left, right, op = right, left, _FLIPPED[op]
    if isinstance(left, Call) and left.op == "abs" and op in ("lt", "le"):
        x = left.args[0]
        return Call("and", (Call(op, (x, right)), Call(op, (-x, right))))
    return None


# ---- range of key columns -------------------------------------------------------------------------------------------

Interval = tuple[Expr | None, Expr | None]
EVERYWHERE: Interval = (None, None)


def key_range(keep: Expr, types: Types = None, rows: tuple[Expr, Expr] = ROWS) -> Interval:
    """Columns ``[lo, hi)`` outside which `keep` is false for every row of the Q tile, whose first and last are `rows`;
    None is unbounded.
    """
    keep = simplify(keep, types)
    if not isinstance(keep, Call):
        return EVERYWHERE
    if keep.op in ("and", "or"):
        both = [key_range(a, types, rows) for a in keep.args]
        pick = _tightest if keep.op == "and" else _loosest
        return pick("max" if keep.op == "and" else "min", both[0][0], both[1][0]), pick(
            "min" if keep.op == "and" else "max", both[0][1], both[1][1]
        )
    if keep.op == "eq":
        a, b = keep.args
        return key_range(Call("and", (Call("le", (a, b)), Call("ge", (a, b)))), types, rows)
    if keep.op in ("lt", "le", "gt", "ge"):
        return _from_comparison(keep, types, rows)
    return EVERYWHERE


def uniform(interval: Interval) -> Interval:
    """The bounds made of sizes, q0 and reads at (b, h) only: those that are the same for all threads of a CTA."""
    lo, hi = (None if e is None or free_vars(e) & {"i", "j", "s"} else e for e in interval)
    return lo, hi


def _tightest(op: str, a: Expr | None, b: Expr | None) -> Expr | None:
    if a is None or b is None:
        return b if a is None else a
    return a if a == b else Call(op, (a, b))


def _loosest(op: str, a: Expr | None, b: Expr | None) -> Expr | None:
    return None if a is None or b is None else a if a == b else Call(op, (a, b))


def _from_comparison(keep: Call, types: Types, rows: tuple[Expr, Expr]) -> Interval:
    """Solve ``difference >= 0`` for j with the rows at their extreme."""
    left, right = keep.args
    difference = right - left if keep.op in ("lt", "le") else left - right
    if keep.op in ("lt", "gt"):
        difference = difference - 1
    terms, constant = linear_terms(difference, types_with_tiles(types))
    for atom, factor in terms.items():
        # -k * |x| + r >= 0 is two plain comparisons.
        if isinstance(atom, Call) and atom.op == "abs" and factor < 0:
            rest = difference + atom * -factor
            x = atom.args[0] * factor
            pair = (Call("ge", (rest + x, Const(0))), Call("ge", (rest - x, Const(0))))
            return key_range(Call("and", pair), types, rows)
    of_j = {atom: factor for atom, factor in terms.items() if "j" in free_vars(atom)}
    if len(of_j) != 1:
        return EVERYWHERE
    (atom, factor), *_ = of_j.items()
    width = _block_width(atom)
    rest: Expr = Const(constant)
    for other, times in terms.items():
        if other != atom:
            rest = rest + other * times
    top = bound(rest, True, {I: rows}, types)
    if width is None or top is None:
        return EVERYWHERE
    return _solve(top, factor, width, types)


def _block_width(atom: Expr) -> int | None:
    """1 for ``j``, C for ``j // C``; None for anything else."""
    if atom == J:
        return 1
    if isinstance(atom, Call) and atom.op == "floordiv" and atom.args[0] == J and isinstance(atom.args[1], Const):
        return int(atom.args[1].value)
    return None


def _solve(top: Expr, factor: int, width: int, types: Types) -> Interval:
    """``factor * (j // width) + top >= 0``."""
    size = abs(factor)
    if factor < 0:  # j // width <= top // size
        last = top if size == 1 else Call("floordiv", (top, Const(size)))
        return None, tidy((last + 1) * width, types)
    first = -top if size == 1 else -Call("floordiv", (top, Const(size)))
    return tidy(first * width, types), None
