"""Which step of a tile the steps of its keys amount to, found by numbers.

The kernel's own assignments are evaluated on random scores and states, and so is each step that they might be. Some
threads begin where the loop does, and some scores are -inf, so that what becomes of a row without keys is asked too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product

import numpy as np
from numpy.typing import NDArray

from .evaluation import Evaluator, Floats, Random
from .machine import Machine, bare
from .trace import Carried
from .values import Node, Value, is_uniform, same
from .walking import walk

_TOLERANCE = 2e-4  # relative; sums of float32
_SEEDS = 5
_LOW = -1e3  # scores below are fills of a mask
_EXP = {"exp": np.exp, "exp2": np.exp2}


@dataclass(slots=True)
class Key:
    """A key's score, and the conditions without which the key changes nothing."""

    score: Value
    conditions: tuple[Value, ...] = ()


@dataclass(slots=True)
class Row:
    """The states of one row of each thread: its maximum, the keys that a trip takes, in order, and what depends on it,
    with the element of V of each key ({}: its weight alone is added).
    """

    maximum: Carried
    keys: list[Key]
    states: list[tuple[Carried, dict[int, Node]]] = field(default_factory=list[tuple[Carried, dict[int, Node]]])


@dataclass(frozen=True, slots=True)
class Step:
    """The step of a tile: weights are ``op((s - m) * factor)``; `guarded`: with m = 0 for a row without keys;
    `normalised`: the states that are divided by the row sum. `open_start`: see `per_key.Folded`.
    """

    op: str
    factor: Value
    guarded: bool
    normalised: frozenset[int]  # by position among the row's states
    open_start: bool


@dataclass(slots=True)
class _Trial:
    """Numbers of one run: before the trip, of each key, and after it, by thread."""

    start: NDArray[np.bool_]
    top: Floats
    keys: list[Floats]
    before: list[Floats]
    after: list[Floats]
    after_top: Floats
    values: list[list[Floats]]  # of V, by state and key
    factors: dict[int, Floats]


def fitting(m: Machine, row: Row, order: list[Node]) -> Step | None:
    """The step that leaves the same as the row's own ones, evaluated in that `order`; None when none does."""
    exponentials = [n for n in walk([c.after for c, _ in row.states]) if n.op in _EXP]
    ops = {n.op for n in exponentials}
    factors = _factors(exponentials)
    if len(ops) != 1:
        return None
    with np.errstate(all="ignore"):
        trials = [_trial(m, row, order, factors, seed) for seed in range(_SEEDS)]
        for (at, factor), guarded in product(enumerate(factors), (False, True)):
            found = _fits(row, trials, ops.copy().pop(), at, guarded)
            if found is not None:
                return Step(ops.pop(), factor, guarded, found[0], found[1])
    return None


def _factors(exponentials: list[Node]) -> list[Value]:
    """1, and the uniform numbers that are multiplied within exponents."""
    found: dict[int, Value] = {}
    for node in walk([a for n in exponentials for a in n.args]):
        if node.op == "mul":
            for arg in node.args:
                inner = bare(arg)
                if isinstance(inner, Node) and inner.uniform and not any(n.op == "phi" for n in walk([inner])):
                    found[inner.uid] = arg
                elif isinstance(inner, float) and inner > 0:
                    found[hash(inner)] = inner
    return [1.0, *list(found.values())[:6]]


def _trial(m: Machine, row: Row, order: list[Node], factors: list[Value], seed: int) -> _Trial:
    threads = m.store.threads
    evaluator = Evaluator(m, Random(threads, seed), None)
    rng = np.random.default_rng([seed, 77])
    start = rng.random(threads) < 0.4
    constants = [bare(c.before) for c in (row.maximum, *(c for c, _ in row.states))]
    if not all(isinstance(x, float) for x in constants):
        start[:] = False
    states = [rng.normal(size=threads) * 2, *(rng.uniform(0.5, 3.0, threads) for _ in row.states)]
    for numbers, constant in zip(states, constants, strict=True):
        if isinstance(constant, float):
            numbers[start] = constant
    nodes = [row.maximum.node, *(c.node for c, _ in row.states)]
    evaluator.give(dict(zip(nodes, states, strict=True)))
    _give_scores(evaluator, row, rng, seed)
    _give_conditions(m, evaluator, row, rng, start, seed)
    for node in order:  # in program order, or the evaluation of long sums would go too deep
        evaluator.one(node)
    return _Trial(
        start,
        states[0],
        [evaluator.one(masked(m, key)) for key in row.keys],
        states[1:],
        [evaluator.one(c.after) for c, _ in row.states],
        evaluator.one(row.maximum.after),
        [[evaluator.one(v[k]) for k in sorted(v)] for _, v in row.states],
        {at: evaluator.one(f) for at, f in enumerate(factors)},
    )


def _give_scores(evaluator: Evaluator, row: Row, rng: np.random.Generator, seed: int) -> None:
    """Random scores; where the text masks them, some are the fill, in the second run all of half the rows."""
    threads = evaluator.shared.threads
    empty = (rng.random(threads) < 0.5) & (seed == 1)
    for key in row.keys:
        numbers = rng.normal(size=threads) * 2
        sides = [bare(a) for n in walk([key.score]) if n.op in ("select", "join") for a in n.args[1:]]
        if (fill := min((x for x in sides if isinstance(x, float)), default=0.0)) < _LOW:
            numbers[empty | (rng.random(threads) < (0.3 if seed else 0.0))] = fill
        for node in (key.score, bare(key.score)):
            if isinstance(node, Node):
                evaluator.give({node: numbers})


def _give_conditions(
    m: Machine, evaluator: Evaluator, row: Row, rng: np.random.Generator, start: NDArray[np.bool_], seed: int
) -> None:
    """Whether a key's conditions hold: at random, or for the first keys where they say that the keys end. A condition
    of the whole block holds for the first key that a row sees.
    """
    threads, count = evaluator.shared.threads, len(row.keys)
    for at in range(max(len(key.conditions) for key in row.keys)):
        conditions = [key.conditions[at] if at < len(key.conditions) else True for key in row.keys]
        known = {c.uid: c for c in conditions if isinstance(c, Node)}
        ends = _ends(m, conditions)
        shared = ends and all(is_uniform(c) for c in conditions)
        most = rng.integers(0, count + 1, threads) if seed else np.full(threads, count)
        most[start & shared] = np.maximum(most[start & shared], 1)
        for k, condition in enumerate(conditions):
            if isinstance(condition, Node) and condition.uid in known:
                del known[condition.uid]
                holds = k < most if ends else rng.random(threads) < (0.7 if seed else 1.0)
                negated = condition.op == "not" and isinstance(condition.args[0], Node)
                evaluator.decide(condition.args[0] if negated else condition, ~holds if negated else holds)  # type: ignore[arg-type]


_NOT = {"ge": "lt", "gt": "le", "lt": "ge", "le": "gt"}


def _ends(m: Machine, conditions: list[Value]) -> bool:
    """True for ``first + k < n`` of key k: from some key on, none is taken."""
    distances: list[Value] = []
    for condition in conditions:
        if not isinstance(condition, Node):
            return False
        inner = condition.args[0] if condition.op == "not" else None
        op = _NOT.get(inner.op, "") if isinstance(inner, Node) else condition.op
        sides = inner.args if isinstance(inner, Node) else condition.args
        if op not in ("lt", "le", "gt", "ge") or any(isinstance(x, float) for x in sides):
            return False
        low, high = sides if op in ("lt", "le") else sides[::-1]
        distances.append(m.store.add(low, high, -1))
    return all(same(m.store.add(d, distances[0], -1), k) for k, d in enumerate(distances))


def masked(m: Machine, key: Key) -> Value:
    """The key's score as an element of a tile: -inf where one of its conditions does not hold."""
    if not key.conditions:
        return key.score
    holds = key.conditions[0]
    for condition in key.conditions[1:]:
        holds = m.store.node("and", (holds, condition), kind="bool")
    return m.store.node("select", (holds, key.score, -math.inf))


def _fits(row: Row, trials: list[_Trial], op: str, factor: int, guarded: bool) -> tuple[frozenset[int], bool] | None:
    """(normalised states, whether rows without keys are told apart) where the step leaves what the keys leave."""
    forms = [{normalised for normalised, _ in results} for results in _results(row, trials[0], op, factor, guarded)]
    open_start = False
    for trial in trials:
        told = _first_is_masked(trial) if not guarded else np.zeros_like(trial.start)
        different = np.zeros_like(trial.start)
        for at, results in enumerate(_results(row, trial, op, factor, guarded)):
            own = trial.after[at]
            for normalised, numbers in results:
                wrong = ~np.isclose(numbers, own, rtol=_TOLERANCE, atol=1e-6, equal_nan=True)
                if (wrong & ~(told & np.isnan(own))).any():
                    forms[at].discard(normalised)
                elif wrong.any():
                    different |= wrong
        top = np.maximum.reduce([trial.top, *trial.keys])
        if not all(forms) or not np.array_equal(top, trial.after_top):
            return None
        open_start |= bool(different.any())
    return frozenset(at for at, form in enumerate(forms) if False not in form), open_start


def _first_is_masked(trial: _Trial) -> NDArray[np.bool_]:
    """Threads that have seen no key, and whose first one is masked."""
    return np.isneginf(trial.top) & np.isneginf(trial.keys[0])


def _results(row: Row, trial: _Trial, op: str, factor: int, guarded: bool) -> Iterator[list[tuple[bool, Floats]]]:
    """For each state: (divided by the row sum, its numbers after the step), as far as that makes sense."""
    exp, unit = _EXP[op], trial.factors[factor]
    top = np.maximum.reduce([trial.top, *trial.keys])
    safe = np.where(np.isneginf(top), 0.0, top) if guarded else top
    kept = exp((trial.top - safe) * unit)
    weights = [exp((s - safe) * unit) for s in trial.keys]
    sums = [at for at, (_, columns) in enumerate(row.states) if not columns]
    totals = [trial.before[at] * kept + sum(weights) for at in range(len(row.states))]
    for at, (_, columns) in enumerate(row.states):
        if not columns:
            yield [(False, totals[at])]
            continue
        product_ = sum(w * v for w, v in zip(weights, trial.values[at], strict=True))
        found = [(False, trial.before[at] * kept + product_)]
        if len(sums) == 1:
            old = trial.before[sums[0]]
            found.append((True, (trial.before[at] * old * kept + product_) / totals[sums[0]]))
        yield found
