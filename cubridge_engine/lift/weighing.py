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

from .evaluation import Evaluator, Floats, Random, float_like
from .machine import Machine, bare
from .trace import Assign, Branch, Loop, Place
from .values import Cells, Node, NotUnderstood, Value
from .walking import walk

if TYPE_CHECKING:
    from .rotation import Rotation

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
        key, inner = (event.cells.oid, event.index), bare(event.value)
        if isinstance(inner, Node) and inner.op == "mma":
            found.raw[key] = inner
        elif float_like(inner) and not any(n.op == "mma" for n in walk([inner])):
            found.set_to[key] = Start(inner, event.place)
    return found


def _assigns(items: Sequence[Any]) -> Iterator[Assign]:
    for event in items:
        if isinstance(event, Assign):
            yield event
        elif isinstance(event, Branch):
            yield from _assigns([*event.then, *event.orelse])


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
    outputs = [k for k in keys if float_like(half.values[k]) and k[0] not in rotation.late and float_like(peeled[k])]
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
    shared = Random(threads, seed)
    mine = Evaluator(m, shared, tile)
    mine.give({half.before[k]: mine.one(v.value) for k, v in start.items()})
    mine.give({raw: shared.scores(("raw", key)) for key, raw in half.raw.items() if isinstance(raw, Node)})
    other = Evaluator(m, shared, None)
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
        test = bare(vote.args[0])
        masked = bare(test.args[0]) if isinstance(test, Node) and test.op == "ne" and test.args[1] == 0 else None
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
    inner = bare(value)
    if isinstance(inner, Node) and inner.op == "bitor":
        for arg in inner.args:
            yield from _words(arg)
    elif isinstance(inner, Node):
        yield inner


def _same_up_to(m: Machine, quiet: Half, taken: Half, factor: int, cells: Cells, live: set[Key]) -> bool:
    """Whether all results agree times 2^x, where x is the row's element of the variable `factor`."""
    rows = [(factor, r) for r in range(len(cells.values))]
    compared = list(_comparable(quiet, taken, rows, live))
    if not compared:
        return False
    grown = dict.fromkeys(rows, False)
    for seed in range(3):
        shared = Random(m.store.threads, seed)
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


def _prepared(m: Machine, shared: Random, half: Half, factors: dict[Node, Floats]) -> Evaluator:
    """An evaluator with random scores and states, and these factors of rows."""
    evaluator = Evaluator(m, shared, None)
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
        if key in rows or key in taken.raw or not (float_like(value) and float_like(quiet.values[key])):
            continue
        if value is taken.before[key] and key in live:
            yield key, _MIXED  # a result that is not corrected
        if value is taken.before[key] or (bare(quiet.values[key]) is quiet.before[key] and key not in live):
            continue
        own = {row_of[n] for n in walk([value]) if n in row_of}
        if own:
            yield key, min(own) if len(own) == 1 else _MIXED


_MIXED: Key = (-1, -1)


def _agree(pair: list[Evaluator], quiet: Half, taken: Half, key: Key, row: Key, tops: dict[Key, Floats]) -> bool:
    if row == _MIXED:
        return False
    before, after = (
        [x * np.exp2(e.one(half.values[row]) - tops[row]) for x in e.parts(half.values[key])]
        for e, half in zip(pair, (quiet, taken), strict=True)
    )
    return all(np.allclose(a, b, rtol=_TOLERANCE, atol=1e-12) for a, b in zip(before, after, strict=True))
