"""Reads of extra tensors: from one linear element index to logical indices and strides."""

from __future__ import annotations

from collections import Counter

from ..ir.expr import Call, Const, Expr, Var, walk
from ..ir.simplify import linear_terms, simplify

_AXES = ("b", "h", "hk", "qt", "i", "j")
_SIZES = ("B", "H", "Hkv", "Sq", "Sk")


def split_index(
    byte_index: Expr, size: int, types: dict[str, str], name: str
) -> tuple[tuple[Expr, ...], tuple[Expr, ...]]:
    """(logical indices, element strides) of an access ``name[byte_index / size]``.

    ``slopes[h]`` -> ((h), (1)); ``bias[(b * H + h) * Sq * Sk + i * Sk + j]`` -> ((b, h, i, j), (H*Sq*Sk, Sq*Sk, Sk,
    1)). What is not a
    product of one index and a stride stays together as the last index, with stride 1.
    """
    parts = _gathered(_products(byte_index, types))
    by_axis: dict[str, _Terms] = {}
    rest: list[tuple[int, list[Expr]]] = []
    for factor, atoms in parts:
        if factor % size:
            return (byte_index,), (Const(1),)
        factor //= size
        axes = [a for a in atoms if isinstance(a, Var) and a.name in _AXES]
        inner = {v.name for a in atoms for v in walk(a) if isinstance(v, Var)} & set(_AXES)
        if len(axes) == 1 and inner == {axes[0].name}:
            others = [a for a in atoms if a is not axes[0]]
            by_axis.setdefault(axes[0].name, []).append((factor, others))
        else:
            rest.append((factor, atoms))
    for axis in _sharing(by_axis):
        rest.extend((f, [Var(axis), *others]) for f, others in by_axis.pop(axis))
    if not _separable(by_axis, rest):
        for axis in ("i", "j"):
            rest.extend((f, [Var(axis), *others]) for f, others in by_axis.pop(axis, []))
    strided, rest = _by_stride(rest)
    placed = [(_place(terms), simplify(_sum(terms), types), stride) for stride, terms in strided]
    placed += [(n, Var(axis), simplify(_sum(by_axis[axis]), types)) for n, axis in enumerate(_AXES) if axis in by_axis]
    placed.sort(key=lambda item: (item[2] == Const(1), item[0]))  # contiguous tensors end with their axis of stride 1
    indices: list[Expr] = [index for _, index, _ in placed]
    strides: list[Expr] = [stride for _, _, stride in placed]
    # A row per Q tile has entries: the first one is at 0.
    if rest or not indices or ("qt" in by_axis and Const(1) not in strides):
        indices.append(simplify(_sum(rest), types) if rest else Const(0))
        strides.append(Const(1))
    return tuple(indices), tuple(strides)


_Terms = list[tuple[int, list[Expr]]]


def _by_stride(rest: _Terms) -> tuple[list[tuple[Expr, _Terms]], _Terms]:
    """Terms that a parameter multiplies, ``(b % 4) * stride + i * row_stride``: each parameter strides an axis of its
    own, outer indices first. What has no such factor is left over.
    """
    groups: dict[Expr, _Terms] = {}
    left: _Terms = []
    for factor, atoms in rest:
        inside = [bool({v.name for v in walk(a) if isinstance(v, Var)} & set(_AXES)) for a in atoms]
        outer = [a for a, inner in zip(atoms, inside, strict=True) if not inner]
        if len(outer) == 1 and isinstance(outer[0], Var) and any(inside):
            groups.setdefault(outer[0], []).append((factor, [a for a in atoms if a is not outer[0]]))
        else:
            left.append((factor, atoms))
    # An offset on a strided axis: ``(i - j) * stride + 39 * stride``.
    for factor, atoms in left:
        if len(atoms) == 1 and atoms[0] in groups:
            groups[atoms[0]].append((factor, []))
    left = [(factor, atoms) for factor, atoms in left if not (len(atoms) == 1 and atoms[0] in groups)]
    return list(groups.items()), left


def _sharing(by_axis: dict[str, _Terms]) -> list[str]:
    """Axes with one stride parameter in common are one axis: ``(b * 4 + h) * stride``."""
    owners: dict[Expr, list[str]] = {}
    for axis, terms in by_axis.items():
        for _, others in terms:
            if len(others) == 1 and isinstance(others[0], Var) and others[0].name not in _SIZES:
                owners.setdefault(others[0], []).append(axis)
    shared = {axis for axes in owners.values() if len(axes) > 1 and axes != ["i", "j"] for axis in axes}
    return [axis for axis in by_axis if axis in shared]


def _place(terms: _Terms) -> int:
    """Where an index stands among the axes: by the innermost one in it."""
    names = {v.name for _, atoms in terms for a in atoms for v in walk(a) if isinstance(v, Var)}
    return max(n for n, axis in enumerate(_AXES) if axis in names)


def _separable(by_axis: dict[str, list[tuple[int, list[Expr]]]], rest: list[tuple[int, list[Expr]]]) -> bool:
    """i and j are axes of their own unless they are mixed into one (relative) index or something is left over."""
    if rest:
        return False
    unit = [a for a in ("i", "j") if any(not others and abs(f) == 1 for f, others in by_axis.get(a, []))]
    negative = any(f < 0 for terms in by_axis.values() for f, _ in terms)
    return len(unit) < 2 and not negative


def _gathered(parts: list[tuple[int, list[Expr]]]) -> list[tuple[int, list[Expr]]]:
    """Equal products together; what cancels is gone: ``s * (n - 1) - s * (n - 1 - qt)`` is ``s * qt``."""
    found: dict[frozenset[tuple[Expr, int]], tuple[int, list[Expr]]] = {}
    for factor, atoms in parts:
        key = frozenset(Counter(atoms).items())
        known = found.get(key)
        found[key] = (factor + known[0], known[1]) if known is not None else (factor, atoms)
    return [(factor, atoms) for factor, atoms in found.values() if factor]


def _products(expr: Expr, types: dict[str, str]) -> list[tuple[int, list[Expr]]]:
    """An integer expression as a list of (factor, atoms): products multiplied out."""
    terms, constant = linear_terms(expr, types)
    result: list[tuple[int, list[Expr]]] = []
    for atom, factor in terms.items():
        result.extend((factor * f, atoms) for f, atoms in _expand(atom, types))
    if constant:
        result.append((constant, []))
    return result


def _expand(expr: Expr, types: dict[str, str]) -> list[tuple[int, list[Expr]]]:
    if isinstance(expr, Const):
        return [(int(expr.value), [])]
    if isinstance(expr, Call) and expr.op == "mul":
        return [
            (fa * fb, [*a, *b]) for fa, a in _products(expr.args[0], types) for fb, b in _products(expr.args[1], types)
        ]
    return [(1, [expr])]


def _sum(terms: list[tuple[int, list[Expr]]]) -> Expr:
    result: Expr | None = None
    for factor, atoms in terms:
        term: Expr | None = None
        for atom in atoms:
            term = atom if term is None else Call("mul", (term, atom))
        if term is None:
            term = Const(factor)
        elif factor != 1:
            term = Call("mul", (term, Const(factor)))
        result = term if result is None else Call("add", (result, term))
    return result if result is not None else Const(0)
