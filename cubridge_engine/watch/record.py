"""The observer of a watched run: sampled values of every result that may be a float, and who touches which rows.

Some lanes of every CTA are chosen before the run. Of each result at most ``MOST`` executions are kept, a random choice
that gets thinner as more come, so that an accumulation that is complete at every 64th step is seen complete too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from ..simulate import Buffer
from ..simulate.calling import Call
from ..simulate.lanes import LaneState

Array = NDArray[Any]
MOST = 48  # executions of a result
LANES = 128  # sampled lanes of the launch
_WORD = np.uint64(0xFFFFFFFF)


@dataclass(slots=True)
class Series:
    """The sampled results of one register of one instruction."""

    site: int
    result: int
    visits: Array  # (lanes,) executions by each sampled lane
    count: int = 0
    limit: int = 1 << 32
    hashes: list[int] = field(default_factory=list[int])
    values: list[Array] = field(default_factory=list[Array])  # (lanes,) bits
    active: list[Array] = field(default_factory=list[Array])  # (lanes,) bool
    trips: list[Array] = field(default_factory=list[Array])

    def thin(self) -> None:
        """Keep about half."""
        self.limit //= 2
        keep = [i for i, h in enumerate(self.hashes) if h < self.limit]
        self.hashes = [self.hashes[i] for i in keep]
        self.values, self.active, self.trips = ([x[i] for i in keep] for x in (self.values, self.active, self.trips))


@dataclass(frozen=True, slots=True)
class Sample:
    """The lanes that are looked at: CTA (linear, x fastest, and its three coordinates) and thread of each."""

    cta: Array
    coords: Array  # (lanes, 3)
    thread: Array

    def __len__(self) -> int:
        return len(self.cta)


def choose_lanes(grid: tuple[int, int, int], threads: int, seed: int = 1) -> Sample:
    """About ``LANES`` lanes, spread over CTAs (at most 32 of them) and over the warps of each."""
    rng = np.random.default_rng(seed)
    ctas = int(np.prod(grid))
    some = np.unique(np.linspace(0, ctas - 1, min(ctas, 32)).round().astype(int))
    each = min(max(LANES // len(some), 4), threads)
    warps = -(-threads // 32)
    cta: list[int] = []
    thread: list[int] = []
    for number, c in enumerate(some):
        order = rng.permutation(threads)
        # One lane of every warp in turn, another warp first in every CTA.
        key = np.argsort((order // 32 + number) % warps + warps * _rank_in_warp(order), kind="stable")
        cta += [int(c)] * each
        thread += order[key][:each].tolist()
    linear = np.array(cta)
    x, y, _ = grid
    coords = np.stack([linear % x, linear // x % y, linear // (x * y)], 1)
    return Sample(linear, coords, np.array(thread))


def _rank_in_warp(order: Array) -> Array:
    """How many threads of the same warp stand before each in `order`."""
    rank = np.zeros(len(order), int)
    seen: dict[int, int] = {}
    for i, warp in enumerate((order // 32).tolist()):
        rank[i] = seen.get(warp, 0)
        seen[warp] = rank[i] + 1
    return rank


@dataclass(slots=True)
class Touched:
    """Rows of a tensor in the order in which each CTA first touches them: (cta, b, h, row) per entry."""

    seen: Array  # (ctas, b, h, rows) bool
    order: list[Array] = field(default_factory=list[Array])
    sites: dict[int, int] = field(default_factory=dict[int, int])  # instruction -> lanes that accessed
    warps: set[int] = field(default_factory=set[int])  # of a CTA, that accessed


class Recorder:
    """A ``simulate.Observer`` for one launch of a `Call`."""

    def __init__(
        self, call: Call, roles: tuple[str, ...] = ("q", "k", "v", "o", "lse"), *, timeline: bool = False
    ) -> None:
        """`timeline`: every read of Q, K and V is kept, not only the first of a row by a CTA."""
        self.timeline: dict[str, list[Array]] = {}
        self._timed = timeline
        self.grid, self.block = call.grid, call.block
        self.threads = int(np.prod(call.block))
        self.sample = choose_lanes(call.grid, self.threads)
        self.series: dict[tuple[int, int], Series] = {}
        self.touched: dict[tuple[str, str], Touched] = {}
        self._call = call
        self._roles = [r for r in roles if r in call.buffers]
        self._number = np.full(int(np.prod(call.grid)) * self.threads, -1, np.int64)
        self._number[self.sample.cta * self.threads + self.sample.thread] = np.arange(len(self.sample))
        self._positions: WeakKeyDictionary[LaneState, tuple[Array, Array]] = WeakKeyDictionary()
        self._starts: dict[str, tuple[int, int]] = {}

    # -- values
    def _where(self, lanes: LaneState) -> tuple[Array, Array]:
        """Positions of sampled lanes among `lanes`, and their numbers in the sample."""
        found = self._positions.get(lanes)
        if found is None:
            thread = lanes.warp * 32 + lanes.lane
            real = thread < self.threads
            cta = lanes.machine.cta_linear[lanes.cta].astype(np.int64)
            number = np.where(real, self._number[np.where(real, cta * self.threads + thread, 0)], -1)
            at = np.flatnonzero(number >= 0)
            found = self._positions[lanes] = (at, number[at])
        return found

    def value(self, lanes: LaneState, site: int, result: int, value: Any, mask: Array | None) -> None:
        """See ``simulate.observe.Observer``."""
        at, number = self._where(lanes)
        if not len(at):
            return
        series = self.series.get((site, result))
        if series is None:
            series = self.series[site, result] = Series(site, result, np.zeros(len(self.sample), np.int32))
        active = None if mask is None else lanes.full(mask)[at]
        if active is not None:
            if not active.any():
                return
            at, number = at[active], number[active]
        digest = (series.count * 2654435761 + 97) & 0xFFFFFFFF
        series.count += 1
        if digest < series.limit:
            self._keep(series, digest, lanes, value, at, number)
        series.visits[number] += 1

    def _keep(self, series: Series, digest: int, lanes: LaneState, value: Any, at: Array, number: Array) -> None:
        bits = lanes.full(value)[at]
        bits = bits.view(np.uint32) if bits.dtype.itemsize == 4 else bits
        held = np.zeros(len(self.sample), bits.dtype)
        here = np.zeros(len(self.sample), bool)
        held[number], here[number] = bits, True
        series.hashes.append(digest)
        series.values.append(held)
        series.active.append(here)
        series.trips.append(series.visits.copy())
        if len(series.values) > MOST:
            series.thin()

    # -- global memory
    def access(self, lanes: LaneState, kind: str, offset: Array, nbytes: int, chosen: Array | None, site: int) -> None:
        """See ``simulate.observe.Observer``."""
        role = self._role(lanes, int(offset[0]))
        if role is None:
            return
        shape, steps = _axes(self._call, role)
        touched = self.touched.get((role, kind))
        if touched is None:
            seen = np.zeros((int(np.prod(self.grid)), *shape), bool)
            touched = self.touched[role, kind] = Touched(seen)
        start, end = self._starts[role]
        inside = (offset >= start) & (offset < end)
        touched.sites[site] = touched.sites.get(site, 0) + int(inside.sum())
        index = _index(offset[inside] - start, shape, steps)
        who = lanes.cta if chosen is None else lanes.cta[chosen]
        cta = lanes.machine.cta_linear[who[inside]].astype(np.int64)
        warp = lanes.warp if chosen is None else lanes.warp[chosen]
        touched.warps.update(np.unique(warp[inside]).tolist())
        if self._timed and kind == "read":
            self.timeline.setdefault(role, []).append(np.unique(np.stack([cta, *index], 1), axis=0))
        new = ~touched.seen[(cta, *index)]
        if new.any():
            rows = np.unique(np.stack([cta[new], *(x[new] for x in index)], 1), axis=0)
            touched.seen[tuple(rows.T)] = True
            touched.order.append(rows)

    def _role(self, lanes: LaneState, offset: int) -> str | None:
        """The tensor that an offset of the heap lies in. One instruction accesses one tensor."""
        if not self._starts:
            machine = lanes.machine
            for role in self._roles:
                buffer = self._call.buffers[role]
                place = machine.launch.buffer_index.get(id(buffer))
                if place is not None:
                    start = machine.heap.starts[place]
                    self._starts[role] = (start, start + buffer.nbytes)
        return next((r for r, (start, end) in self._starts.items() if start <= offset < end), None)


def _axes(call: Call, role: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Extents and byte strides of the axes b, h and row of a tensor."""
    buffer: Buffer = call.buffers[role]
    size = buffer.array.itemsize
    order = (0, 2, 1) if call.layouts.get(role) == "bshd" else (0, 1, 2)
    return tuple(buffer.array.shape[a] for a in order), tuple(buffer.strides[a] * size for a in order)


def _index(offset: Array, shape: tuple[int, ...], steps: tuple[int, ...]) -> tuple[Array, ...]:
    """(b, h, row) of byte offsets into a tensor: the axis with the largest stride first."""
    found: dict[int, Array] = {}
    rest = offset
    for axis in sorted(range(3), key=lambda a: -steps[a]):
        found[axis] = np.minimum(rest // max(steps[axis], 1), shape[axis] - 1)
        rest = rest - found[axis] * steps[axis]
    return found[0], found[1], found[2]


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a run left: values by (site, result), rows by (tensor, kind of access)."""

    sample: Sample
    series: Mapping[tuple[int, int], Series]
    touched: Mapping[tuple[str, str], Touched]
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    timeline: Mapping[str, list[Array]] = field(default_factory=dict[str, "list[Array]"])  # (cta, b, h, row) in order


def finish(recorder: Recorder) -> Recorded:
    """The recording as data."""
    return Recorded(
        recorder.sample, recorder.series, recorder.touched, recorder.grid, recorder.block, recorder.timeline
    )
