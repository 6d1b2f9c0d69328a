"""Two kernels compared: the function apart from how they go about it.

Formulas are compared by value at many points, then both programs are executed on the same inputs. They are called the
same only where both agree; where they differ, the first element that shows it is named.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..compile import Contract
from ..ir.expr import free_vars
from ..ir.interp import Outputs
from ..ir.nodes import Kernel
from ..transfer.structure import NotAttention
from ..verify.contracts import contract_type
from .differences import semantic_difference
from .facts import facts_of
from .functions import bound, free_names, function_of_kernel, renamed
from .model import Change, Comparison, Difference, Fact, Function, Witness
from .trial import (
    ALL,
    EMPTY,
    TOLERANCE,
    CannotExecute,
    Inputs,
    Problem,
    dense,
    empty_kind,
    executable,
    has_own_sk,
    make_inputs,
    problems_of,
    run,
    settings,
    values_of,
)

Array = NDArray[Any]
_MOST_NAMINGS = 24  # ways to match switches, scalars and tensors with each other that are tried
_MOST_ROWS = 600  # of a problem that is executed only to show a difference
_NOT_ORCHESTRATION = frozenset({"heads"})


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two kernels, with its function in the names of the first."""

    kernel: Kernel
    function: Function
    names: Mapping[str, str]  # own name of a parameter -> its name in the first kernel


def compare(a: Kernel, b: Kernel, contracts: tuple[Contract | None, Contract | None] = (None, None)) -> Comparison:
    """Compare `b` with `a`. Never raises for what the kernels are."""
    orchestration = orchestration_changes(a, b, contracts)
    try:
        one = Side(a, function_of_kernel(a), {})
        other = matched(one.function, Side(b, function_of_kernel(b), {}))
    except NotAttention as why:
        return Comparison(None, f"the formula of one of them is not known: {why}", (), orchestration)
    differences = semantic_difference(other.function, one.function, strict=True)
    stated = tuple(_stated(d) for d in differences)
    setting = _agreeing(one, other) if differences else ""
    same = None if differences and all(d.part == "undecided" for d in differences) else False
    try:
        shown, count = _executed(one, other, stated)
    except CannotExecute as why:
        if not differences:
            return Comparison(None, f"their formulas agree; they were not executed: {why}", (), orchestration)
        return Comparison(same, f"read from both; not executed: {why}", stated, orchestration, setting)
    if shown is not None:
        stated = (*stated, *([shown.difference] if shown.new else []))
        return Comparison(
            False, f"executed on the same inputs, they differ at {shown.place}", stated, orchestration, setting
        )
    if not differences:
        why = f"their formulas agree, and so do {count} executions on the same inputs"
        return Comparison(True, why + _matching(other), (), orchestration)
    why = f"read from both; none of {count} executions on small problems shows it"
    return Comparison(same, why, stated, orchestration, setting)


def _matching(other: Side) -> str:
    moved = {own: name for own, name in other.names.items() if own != name}
    if not moved:
        return ""
    return ", with " + ", ".join(f"{name} of the first as {own} of the second" for own, name in sorted(moved.items()))


# ---- matching names ------------------------------------------------------------------------------------------------


def matched(first: Function, second: Side) -> Side:
    """`second` with its switches, scalars and tensors named as those of `first` that they stand for: the way under
    which the fewest parts differ, and of these the one that renames least.
    """
    best: tuple[int, Side] | None = None
    for names in itertools.islice(_namings(first, second.function), _MOST_NAMINGS):
        candidate = replace(second, function=renamed(second.function, names), names=names)
        count = len(semantic_difference(candidate.function, first, strict=True))
        if best is None or count < best[0]:
            best = (count, candidate)
        if count == 0:
            break
    return second if best is None else best[1]


def _namings(first: Function, second: Function) -> Iterator[dict[str, str]]:
    """Ways to name the free names of `second`, those that change the fewest names first: each name stays as it is
    (apart from the first's, where that has another of the name), or is that of one of its kind.
    """
    theirs = sorted(free_names(second))
    mine = sorted(free_names(first))
    options = [[n, *(m for m in mine if m != n and _alike(first, m, second, n))] for n in theirs]
    ways = [w for w in itertools.islice(itertools.product(*options), 50 * _MOST_NAMINGS) if len(set(w)) == len(w)]
    ways.sort(key=lambda way: sum(a != b for a, b in zip(theirs, way, strict=True)))
    for way in ways:
        names = dict(zip(theirs, way, strict=True))
        clash = {n for n, to in names.items() if n == to and n in first.kinds and not _alike(first, n, second, n)}
        yield {n: f"{to} of the second" if n in clash else to for n, to in names.items()}


def _alike(first: Function, a: str, second: Function, b: str) -> bool:
    return first.kinds.get(a) == second.kinds.get(b)


def _agreeing(a: Side, b: Side) -> str:
    """At which settings of the switches the formulas agree, where they do not at all of them."""
    flags = sorted({n for side in (a, b) for n in free_names(side.function) if side.function.kinds[n] == "flag"})
    if not flags or len(flags) > 2:
        return ""
    agree: list[str] = []
    for number in range(2 ** len(flags)):
        setting = {name: bool(number >> at & 1) for at, name in enumerate(flags)}
        one, other = (bound(side.function, setting) for side in (a, b))
        if not semantic_difference(other, one, strict=True):
            agree.append(" and ".join(f"{name} = {int(value)}" for name, value in setting.items()))
    return f"with {' or with '.join(agree)} their formulas agree" if agree else ""


# ---- in words ------------------------------------------------------------------------------------------------------

_WORDS: dict[str, str] = {
    "widths": "width",
    "heads": "KV head of query head h",
    "mask": "attended keys",
    "fill": "masked scores become",
    "score": "score",
    "sink": "softmax with",
    "weights": "O is",
    "lse": "returned beside O",
    "structure": "structure",
    "undecided": "cannot be compared",
}


def _stated(d: Difference) -> Difference:
    """The difference as a sentence about two kernels; `found` is that of the second, `expected` that of the first."""
    text = f"{_WORDS[d.part]}: first {d.expected or 'none'}; second {d.found or 'none'}"
    if d.witness is not None:
        w = d.witness
        text += f"; first differs at {w.place}: {w.expected} in the first, {w.found} in the second"
    return replace(d, sentence=text)


# ---- executing both ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Shown:
    """The first element of the outputs that differs. `new`: no difference of the formulas accounts for it."""

    difference: Difference
    place: str
    new: bool


def _executed(a: Side, b: Side, stated: tuple[Difference, ...]) -> tuple[_Shown | None, int]:
    """Run both on the same inputs. Raises CannotExecute."""
    for side in (a, b):
        executable(side.kernel)
    if (a.kernel.D, a.kernel.Dv) != (b.kernel.D, b.kernel.Dv):
        raise CannotExecute("they were read with other widths")
    count = 0
    for problem in _problems(a, b, stated):
        for setting in _settings(a, b):
            first, second = _both(a, b, problem, setting)
            count += 1
            found = _first_difference(problem, (a, first), (b, second), new=not stated)
            if found is not None:
                return found, count
    return None, count


def _settings(a: Side, b: Side) -> Iterator[dict[str, int]]:
    """Settings of the switches of both, in the names of the first."""
    own = [name for name, kind in b.function.kinds.items() if kind == "flag" and name not in a.function.kinds]
    for one in settings(a.kernel):
        for value in (0, 1) if own else (0,):
            yield {**one, **dict.fromkeys(own, value)}


def _problems(a: Side, b: Side, stated: tuple[Difference, ...]) -> list[Problem]:
    """The one that shows the first difference of the formulas, and those around the tiles of both."""
    found: list[Problem] = []
    for witness in (d.witness for d in stated if d.witness is not None):
        sizes = witness.sizes
        if max(sizes["Sq"], sizes["Sk"]) <= _MOST_ROWS and sizes["B"] * sizes["H"] <= 32:
            found.append(Problem("witness", {**sizes, "D": a.kernel.D, "Dv": a.kernel.Dv}))
    one_length = not (has_own_sk(a.kernel) and has_own_sk(b.kernel))
    for side in (a, b):
        found += problems_of(side.kernel, side.function, ALL)
    shared = any("Hkv" in free_vars(side.function.head_map) for side in (a, b))
    usable = [
        p
        for p in found
        if (not one_length or p.sizes["Sq"] == p.sizes["Sk"]) and (shared or p.sizes["H"] == p.sizes["Hkv"])
    ]
    return list({(p.late, tuple(sorted(p.sizes.items()))): p for p in usable}.values())


@dataclass(frozen=True, slots=True)
class _Run:
    """One side on one problem: its switches, what came out, and which rows have a key by its formula."""

    switches: dict[str, float | int]
    got: Outputs
    live: Array


def _both(a: Side, b: Side, problem: Problem, setting: Mapping[str, int]) -> tuple[_Run, _Run]:
    """Both programs on one problem, with equal inputs under the names of each. `setting` is in the first's names."""
    mine = make_inputs(a.kernel, a.function, problem.sizes, {n: v for n, v in setting.items() if n in a.function.kinds})
    own = {name: own for own, name in b.names.items()}
    values = values_of(b.kernel)
    for name, value in (*mine.values.items(), *setting.items()):
        if name in free_names(b.function) and own.get(name, name) in values:
            values[own.get(name, name)] = value
    # Under the first's names, for the second's formula; tensors that only the second has are made for it.
    told = {b.names.get(name, name): value for name, value in values.items()}
    theirs = make_inputs(b.kernel, b.function, problem.sizes, told)
    tensors = {n: mine.tensors.get(n, t) for n, t in theirs.tensors.items()}
    passed = Inputs({own.get(n, n): t for n, t in tensors.items()}, values)
    runs: list[_Run] = []
    for side, given, formula in ((a, mine, mine), (b, passed, Inputs(tensors, told))):
        got = run(side.kernel, given, problem)
        live = np.asarray(dense(side.function, formula, problem.sizes).attended.any(axis=-1))
        switches = {n: v for n, v in formula.values.items() if side.function.kinds.get(n) == "flag"}
        runs.append(_Run(switches, got, live))
    return runs[0], runs[1]


def _first_difference(problem: Problem, one: tuple[Side, _Run], other: tuple[Side, _Run], new: bool) -> _Shown | None:
    (a, first), (b, second) = one, other
    for output in ("o", "lse"):
        both: list[Array | None] = [getattr(side.got, output) for side in (first, second)]
        x, y = both
        where = None if x is None or y is None else _unequal(x, y)
        if x is None or y is None or where is None:
            continue
        column = f"[d={where[-1]}]" if output == "o" else ""
        words = [f"{output.upper()}{column} = {v[where]:.6g}" for v in (x, y)]
        row = where[:3]
        witness = Witness(problem.sizes, *row, None, words[1], words[0], {**first.switches, **second.switches})
        place = f"{witness.place}: {words[0]} in the first, {words[1]} in the second"
        empty = not (first.live[row] or second.live[row])
        sentence = f"the formulas agree, what is computed does not: at {place}"
        if empty:
            kinds = [EMPTY.get(empty_kind(r.got.o[row][None]), "other values") for r in (first, second)]
            sentence = f"a row without keys gives {kinds[0]} in the first, {kinds[1]} in the second; at {place}"
        part = "empty_rows" if empty else "output"
        at_b, at_a = (side.function.spans.get("output") for side in (b, a))
        return _Shown(Difference(part, sentence, words[1], words[0], at_b, at_a, witness), place, new or empty)
    return None


def _unequal(x: Array, y: Array) -> tuple[int, int, int, int] | tuple[int, int, int] | None:
    """The first element that clearly differs, if one does beyond rounding; NaN equals NaN, infinities themselves."""
    with np.errstate(all="ignore"):
        size = np.nanmax(np.where(np.isfinite(x), np.abs(x), 0.0), axis=-1, keepdims=True, initial=1e-3)
        near = np.abs(x - y) <= 2 * TOLERANCE * size
    same = near | (x == y) | (np.isnan(x) & np.isnan(y))
    if same.all():
        return None
    with np.errstate(all="ignore"):
        far = np.nan_to_num(np.abs(x - y) / size, nan=np.inf, posinf=np.inf) * ~same
    clear = far >= min(far.max() / 10, 1.0)  # not the first one where the difference is barely above rounding
    b, h, i, *d = (int(n) for n in np.argwhere(clear & ~same)[0])
    return (b, h, i, d[0]) if d else (b, h, i)


# ---- orchestration --------------------------------------------------------------------------------------------------


def orchestration_changes(
    a: Kernel, b: Kernel, contracts: tuple[Contract | None, Contract | None] = (None, None)
) -> tuple[Change, ...]:
    """Rows of the two that differ, in the order of the rows; then parameters that only one has."""
    mine, theirs = ({f.key: f for f in facts_of(k, c)} for k, c in zip((a, b), contracts, strict=True))
    changes: list[Change] = []
    for key in dict.fromkeys((*mine, *theirs)):
        x, y = mine.get(key), theirs.get(key)
        if key not in _NOT_ORCHESTRATION and _value(x) != _value(y):
            name = x.name if x is not None else y.name if y is not None else key
            changes.append(Change(key, name, _value(x), _value(y), _lines(x), _lines(y)))
    changes += _parameters(a, b)
    return tuple(changes)


def _value(fact: Fact | None) -> str:
    return "" if fact is None else fact.value


def _lines(fact: Fact | None) -> tuple[Any, ...]:
    return () if fact is None else fact.spans


def _parameters(a: Kernel, b: Kernel) -> Iterator[Change]:
    """Signatures that differ in what a caller passes: roles, or types, by position."""
    mine, theirs = ([(p.role.partition(":")[0], contract_type(p.ctype)) for p in k.params] for k in (a, b))
    if mine == theirs:
        return
    common = next(
        (n for n, (x, y) in enumerate(zip(mine, theirs, strict=False)) if x != y), min(map(len, (mine, theirs)))
    )
    texts = [_listed([f"{p.ctype} {p.name}" for p in k.params[common:]]) for k in (a, b)]
    yield Change("parameters", f"parameters from position {common} on", texts[0], texts[1])


def _listed(texts: list[str], most: int = 3) -> str:
    rest = f" and {len(texts) - most} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + rest if texts else "none"
