"""Checks of a pipelined softmax by its numbers: its steps are evaluated, element by element, on random scores.

Two questions are answered. Does the half that is peeled off before the loop do what the loop does from some start of
its states? And is a tile that is done again, because a vote of the warp asked for it, the same as one that is not?
P, l and O of a row share a factor 2^reference, which cancels in O / l; two ways to the same P, l and O *times that
factor* are the same. The vote must be that some P, as rounded, has reached 2: below that nothing overflows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .machine import Machine
from .trace import Assign, Branch, Loop, Place
from .values import Cells, Node, NotUnderstood, Poly, Value, walk

if TYPE_CHECKING:
    from .rotation import Rotation

Floats = NDArray[np.float64]
Key = tuple[int, int]
TOP_BIT = 0x40004000  # of both halves of a register: the top exponent bit of fp16 and of bf16
_TOLERANCE = 1e-4  # relative; sums of float32


@dataclass(frozen=True, slots=True)
class Half:
    """What the first half of a trip leaves in the elements it writes, its raw scores by element, and what it got."""

    values: dict[Key, Value]
    raw: dict[Key, Value]
    before: dict[Key, Node]


@dataclass(frozen=True, slots=True)
class Start:
    """What a state starts from, and where the text says so, if it does."""

    value: Value
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class Before:
    """Of the half that is peeled off before the loop: the last product that each element got, and what floats were set
    to that no product has a part in, by element.
    """

    raw: dict[Key, Value]
    set_to: dict[Key, Start]


def peeled_before(items: Sequence[Any]) -> Before:
    """What these steps, the last of which are the peeled half, assign."""
    found = Before({}, {})
    for event in _assigns(items):
        key, bare = (event.cells.oid, event.index), _bare(event.value)
        if isinstance(bare, Node) and bare.op == "mma":
            found.raw[key] = bare
        elif _float_like(bare) and not any(n.op == "mma" for n in walk([bare])):
            found.set_to[key] = Start(bare, event.place)
    return found


def _assigns(items: Sequence[Any]) -> Iterator[Assign]:
    for event in items:
        if isinstance(event, Assign):
            yield event
        elif isinstance(event, Branch):
            yield from _assigns([*event.then, *event.orelse])


def _bare(value: Value) -> Value:
    while isinstance(value, Node) and value.op == "ver":
        value = value.args[0]
    return value


# ---- the peeled half


def starts(
    m: Machine,
    loop: Loop,
    rotation: Rotation,
    peeled: dict[Key, Value],
    before: Before,
    half: Half,
) -> dict[Key, Start]:
    """The start of each carried state for which the loop's first half does what the peeled one did. Raises
    NotUnderstood.
    """
    keys = [(c.cells.oid, c.index) for c in loop.carried]
    nodes = {half.before[k]: k for k in keys}
    outputs = [k for k in keys if _float_like(half.values[k]) and k[0] not in rotation.late and _float_like(peeled[k])]
    carried = {nodes[n] for n in walk([half.values[k] for k in outputs]) if n in nodes}
    states = sorted(k for k in carried if k[0] not in rotation.late and k not in half.raw)
    variables = sorted({k[0] for k in states})
    candidates = [_candidates([k for k in states if k[0] == v], peeled, before) for v in variables]

    def tile(node: Node) -> Value | None:
        return loop.lo if node is loop.iv else None

    for chosen in product(*candidates):
        start = {k: v for of_variable in chosen for k, v in of_variable.items()}
        if all(_same_half(m, half, peeled, before.raw, outputs, start, tile, seed) for seed in range(3)):
            return {**start, **{k: Start(0.0) for k in keys if k[0] in rotation.late}}
    raise NotUnderstood("the scores before a pipelined loop are not weighed as the loop weighs its own")


def _float_like(value: Value) -> bool:
    return isinstance(value, float) or (isinstance(value, Node) and value.kind in ("float", "reg", "wide"))


def _candidates(keys: list[Key], peeled: dict[Key, Value], before: Before) -> list[dict[Key, Start]]:
    """Starts that the elements of a variable may have: what they were set to before any score was looked at, and
    constants.
    """
    written = [{k: before.set_to[k] for k in keys}] if all(k in before.set_to for k in keys) else []
    return [*written, *({k: Start(x) for k in keys} for x in (0.0, *_constants([peeled[k] for k in keys])))]


def _constants(values: Sequence[Value]) -> list[float]:
    """The constants among which the start may be: those that the peeled half chooses for a row without keys."""
    found = [a for n in walk(values) if n.op == "select" for a in n.args[1:] if isinstance(a, float)]
    return list(dict.fromkeys(x for x in found if np.isfinite(x)))


def _same_half(
    m: Machine,
    half: Half,
    peeled: dict[Key, Value],
    raw_before: dict[Key, Value],
    outputs: list[Key],
    start: dict[Key, Start],
    tile: Any,
    seed: int,
) -> bool:
    """Both halves on the same random scores, compared."""
    threads = m.store.threads
    shared = _Random(threads, seed)
    mine = _Evaluator(m, shared, tile)
    mine.give({half.before[k]: mine.one(v.value) for k, v in start.items()})
    mine.give({raw: shared.scores(("raw", key)) for key, raw in half.raw.items() if isinstance(raw, Node)})
    other = _Evaluator(m, shared, None)
    other.give({raw: shared.scores(("raw", key)) for key, raw in raw_before.items() if isinstance(raw, Node)})
    if set(half.raw) != set(raw_before):
        return False
    with np.errstate(all="ignore"):
        return all(
            np.allclose(a, b, rtol=1e-5, atol=1e-30, equal_nan=True)
            for key in outputs
            for a, b in zip(mine.parts(half.values[key]), other.parts(peeled[key]), strict=True)
        )


# ---- a tile that is done again


def redone(m: Machine, loop: Loop, rotation: Rotation, quiet: Half, taken: Half) -> None:
    """A vote that is not followed leaves the same as one that is, up to the factor of the row. Raises NotUnderstood."""
    _vote_is_top_bit(rotation, quiet)
    of = {(c.cells.oid, c.index): c.cells for c in loop.carried}
    nodes = {n: k for k, n in taken.before.items()}
    live = {nodes[n] for n in walk(taken.values.values()) if n in nodes}
    factors = sorted({k[0] for k in live if k[0] not in rotation.late and k not in taken.raw})
    why = "a tile that is done again does not leave what it would have left"
    for factor in factors:
        if _same_up_to(m, quiet, taken, factor, of[(factor, 0)], live):
            return
    raise NotUnderstood(why)


def _vote_is_top_bit(rotation: Rotation, quiet: Half) -> None:
    """The vote is on the top exponent bit of every P of the tile: unless it is set, no P is 2 or more."""
    packed = {n for v in quiet.values.values() for n in walk([v]) if n.op == "pack"}
    for vote in {v.uid: v for v in rotation.votes}.values():
        test = _bare(vote.args[0])
        masked = _bare(test.args[0]) if isinstance(test, Node) and test.op == "ne" and test.args[1] == 0 else None
        if not isinstance(masked, Node) or masked.op != "bitand":
            raise NotUnderstood("a vote of a warp on something else than bits of P")
        mask = next((a for a in masked.args if isinstance(a, int)), 0)
        words = {n for a in masked.args if not isinstance(a, int) for n in _words(a)}
        if mask & TOP_BIT != TOP_BIT:
            raise NotUnderstood(
                "a vote of a warp that misses a P of 2 or more: it does not look at the top exponent bit"
            )
        if not packed or not packed <= words:
            raise NotUnderstood("a vote of a warp that does not look at every P of the tile")


def _words(value: Value) -> Iterator[Node]:
    """The registers whose bits are joined."""
    bare = _bare(value)
    if isinstance(bare, Node) and bare.op == "bitor":
        for arg in bare.args:
            yield from _words(arg)
    elif isinstance(bare, Node):
        yield bare


def _same_up_to(m: Machine, quiet: Half, taken: Half, factor: int, cells: Cells, live: set[Key]) -> bool:
    """Whether all results agree times 2^x, where x is the row's element of the variable `factor`."""
    rows = [(factor, r) for r in range(len(cells.values))]
    compared = list(_comparable(quiet, taken, rows, live))
    if not compared:
        return False
    grown = dict.fromkeys(rows, False)
    for seed in range(3):
        shared = _Random(m.store.threads, seed)
        lowest = {taken.before[row]: np.full(m.store.threads, _LOWEST) for row in rows}
        tops = {row: _prepared(m, shared, taken, lowest).one(taken.values[row]) for row in rows}
        # From far below the largest score to above it: some tiles need not be done again, others must be.
        factors = {taken.before[row]: tops[row] + shared.factor(row) for row in rows}
        pair = [_prepared(m, shared, half, factors) for half in (quiet, taken)]
        with np.errstate(all="ignore"):
            if not all(_agree(pair, quiet, taken, key, row, tops) for key, row in compared):
                return False
            for row in rows:
                grown[row] |= bool((pair[0].one(quiet.values[row]) != pair[1].one(taken.values[row])).any())
    return all(grown.values())  # else nothing was asked


_LOWEST = -1e6


def _prepared(m: Machine, shared: _Random, half: Half, factors: dict[Node, Floats]) -> _Evaluator:
    """An evaluator with random scores and states, and these factors of rows."""
    evaluator = _Evaluator(m, shared, None)
    evaluator.give({raw: shared.scores(("raw", k)) for k, raw in half.raw.items() if isinstance(raw, Node)})
    evaluator.give({n: shared.carried(k) for k, n in half.before.items()})
    evaluator.give(factors)
    return evaluator


def _comparable(quiet: Half, taken: Half, rows: list[Key], live: set[Key]) -> Iterator[tuple[Key, Key]]:
    """(element, its row's factor) of the results of a trip. An element that only a followed vote sets, and that no
    later trip reads, is none: the correction itself.
    """
    row_of = {taken.before[k]: k for k in rows}
    for key, value in taken.values.items():
        if key in rows or key in taken.raw or not (_float_like(value) and _float_like(quiet.values[key])):
            continue
        if value is taken.before[key] and key in live:
            yield key, _MIXED  # a result that is not corrected
        if value is taken.before[key] or (_bare(quiet.values[key]) is quiet.before[key] and key not in live):
            continue
        own = {row_of[n] for n in walk([value]) if n in row_of}
        if own:
            yield key, min(own) if len(own) == 1 else _MIXED


_MIXED: Key = (-1, -1)


def _agree(pair: list[_Evaluator], quiet: Half, taken: Half, key: Key, row: Key, tops: dict[Key, Floats]) -> bool:
    if row == _MIXED:
        return False
    before, after = (
        [x * np.exp2(e.one(half.values[row]) - tops[row]) for x in e.parts(half.values[key])]
        for e, half in zip(pair, (quiet, taken), strict=True)
    )
    return all(np.allclose(a, b, rtol=_TOLERANCE, atol=1e-12) for a, b in zip(before, after, strict=True))


# ---- evaluation


class _Random:
    """Random numbers by name: the same name gives the same numbers."""

    def __init__(self, threads: int, seed: int) -> None:
        self.threads = threads
        self.seed = seed
        self._known: dict[Any, Any] = {}

    def normal(self, name: Any) -> Floats:
        return self._get(name, lambda rng: rng.normal(size=self.threads))

    def scores(self, name: Any) -> Floats:
        """Raw scores; in the second run every other row has none."""
        lowest = -np.inf if self.seed == 1 else 0.0
        return self.normal(name) + np.where(np.arange(self.threads) // 4 % 2, lowest, 0.0)

    def condition(self, name: Any, uniform: bool) -> NDArray[np.bool_]:
        """Conditions of the block hold but in the first run; of others each holds for most threads, in the second run
        for none: a row without keys.
        """
        share = 0.8 if self.seed != 1 else 0.0
        return self._get(name, lambda rng: (rng.random(self.threads) < share) | (uniform and self.seed > 0))

    def positive(self, name: Any) -> Floats:
        return self._get(name, lambda rng: np.full(self.threads, rng.uniform(0.2, 1.0)))

    def carried(self, name: Any) -> Floats:
        return self._get(("state", name), lambda rng: rng.uniform(0.5, 4.0, size=self.threads))

    def factor(self, name: Any) -> Floats:
        """How far a row's factor lies above its largest score: the same for the threads of a row."""
        return self._get(("factor", name), lambda rng: np.repeat(rng.uniform(-12.0, 4.0, size=self.threads // 4), 4))

    def _get(self, name: Any, make: Any) -> Any:
        if name not in self._known:
            self._known[name] = make(np.random.default_rng([self.seed, len(self._known)]))
        return self._known[name]


class _Evaluator:
    """Floats of a trace as numbers per thread. What is no arithmetic is a random number, named after what it is."""

    def __init__(self, m: Machine, shared: _Random, tile: Any) -> None:
        self.m = m
        self.shared = shared
        self.tile = tile
        self._known: dict[int, Any] = {}

    def give(self, known: dict[Node, Floats]) -> None:
        """Values of nodes."""
        self._known.update({n.uid: v for n, v in known.items()})

    def parts(self, value: Value) -> list[Floats]:
        """The numbers of a value: one, or those packed into a register."""
        bare = _bare(value)
        if isinstance(bare, Node) and bare.op in ("pack", "vec"):
            return [x for a in bare.args for x in self.parts(a)]
        return [self.one(bare)]

    def one(self, value: Value) -> Floats:
        """A float for every thread."""
        if isinstance(value, bool | int | float):
            return np.full(self.shared.threads, float(value))
        if isinstance(value, Poly):
            return self.shared.normal(("integer", self._name(value)))
        assert isinstance(value, Node)
        if value.uid not in self._known:
            self._known[value.uid] = self._compute(value)
        return self._known[value.uid]

    def _compute(self, node: Node) -> Floats:
        if node.op == "ver":
            return self.one(node.args[0])
        if node.op in ("select", "join"):
            return np.where(self._holds(node.args[0]), self.one(node.args[1]), self.one(node.args[2]))
        if node.op in _FLOAT:
            return _FLOAT[node.op](*(self.one(a) for a in node.args))
        if node.op == "shfl" and node.data[0] == "xor":
            return self.one(node.args[0])[np.arange(self.shared.threads) ^ node.data[1]]
        if node.op == "param":
            return self.shared.positive(("param", node.data))
        return self.shared.normal(("other", self._name(node)))

    def _holds(self, value: Value) -> NDArray[np.bool_]:
        if isinstance(value, bool):
            return np.full(self.shared.threads, value)
        assert isinstance(value, Node)
        if value.op in _COMPARE and any(isinstance(a, float) or _float_like(a) for a in value.args):
            return _COMPARE[value.op](*(self.one(a) for a in value.args))
        if value.op == "not":
            return ~self._holds(value.args[0])
        return self.shared.condition(("condition", self._name(value)), value.uniform)

    def _name(self, value: Value) -> Any:
        if self.tile is not None:
            value = self.m.store.substitute(value, self.tile)
        return value.uid if isinstance(value, Node) else value.key if isinstance(value, Poly) else value


def _f32(operation: Any) -> Any:
    return lambda *a: operation(*(x.astype(np.float32) for x in a)).astype(np.float64)


_FLOAT: dict[str, Any] = {
    "add": _f32(np.add),
    "sub": _f32(np.subtract),
    "mul": _f32(np.multiply),
    "div": _f32(np.divide),
    "neg": np.negative,
    "abs": np.abs,
    "max": np.maximum,
    "min": np.minimum,
    "exp": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "log2": np.log2,
    "tanh": np.tanh,
    "fp16": lambda x: x,  # where P is rounded is the same on both sides, and small P lose their digits
    "bf16": lambda x: x,
}
_COMPARE: dict[str, Any] = {
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
}
