"""Shadow of the writable buffers of a launch: accesses by warps and CTAs that nothing puts in order.

Inside a CTA (or cluster) the vector clocks of ``shadow`` say what is ordered. Between CTAs only this counts: the writer
publishes (``__threadfence()`` and then an atomic or a strong store; or a release), and the reader observes that very
location with an atomic or a strong load and fences behind it (or acquires). What a fence or an atomic did is kept as an
event of the warp that executed it; another warp of the CTA may build on the event when it is ordered after it, which
makes ``__syncthreads()`` between the writes, the fence, the counter and the reads count in any of the usual ways.

Batches run one after the other, so only one order of two CTAs is ever executed: a read before a write is looked at as
closely as a read after it. Lanes of one warp are not told apart. A bulk copy counts as an access of the warp that
issues it, at that time: that it completes later is not looked at here. Writes inside a CTA that store what is there
already are in any order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .buffers import PAGE_BITS, Heap
from .emit import kind_width, types_of
from .findings import Findings, access_name, bare
from .model import Instruction
from .shadow import AGENT_MASK

if TYPE_CHECKING:
    from .machine import Machine

Array = NDArray[Any]
Vectors = dict[int, Array]  # cluster -> the greatest entry of each of its warps that is ordered before

READ_COLUMNS = 8  # reads of a granule that are told apart: those of warps equal modulo 8 replace each other
KEPT_FENCES = 16  # of a warp
WRITES = "write after write"
NARROW_SCOPES = ("cta", "cluster")
_STRONG = ("relaxed", "acquire", "release", "acq_rel", "volatile", "mmio")
_GLOBAL_OPS = ("ld", "ldu", "st", "atom", "red")


def is_device_fence(ins: Instruction) -> bool:
    """True for a fence that other CTAs take part in: ``__threadfence()``, ``__threadfence_system()``."""
    if ins.has(*NARROW_SCOPES) or any(part.startswith(("proxy", "mbarrier_init")) for part in ins.parts):
        return False
    return ins.parts[0] in ("fence", "membar")


def _granule(code: Iterable[Instruction]) -> int:
    """Bytes of the narrowest global access of a kernel, 1 to 16."""
    found = 16
    for ins in code:
        types = types_of(ins) if ins.parts[0] in _GLOBAL_OPS and ins.space in ("global", "") else []
        if types and types[-1] != "b128":
            found = min(found, max(kind_width(types[-1])[1] // 8, 1))
        elif ins.parts[0] == "cp" and ins.has("async"):
            found = min(found, 4)
    return found


@dataclass(frozen=True, slots=True)
class GlobalOrder:
    """What the instructions of a kernel mean for order: bytes of its narrowest global access, and by instruction
    whether it is `strong` (atomic, or with an order), and so also between CTAs (`wide`): a scope of the CTA is not.
    """

    granule: int
    strong: Array
    wide: Array

    @classmethod
    def of(cls, code: list[Instruction]) -> GlobalOrder:
        """Read from the instructions of a kernel, once."""
        strong = np.array([ins.parts[0] in ("atom", "red") or ins.has("reduce", *_STRONG) for ins in code] or [False])
        return cls(_granule(code), strong, strong & np.array([not ins.has(*NARROW_SCOPES) for ins in code] or [False]))


@dataclass(frozen=True, slots=True)
class Fresh:
    """Of the lanes of a store: whether it `changes` what is there, and whether it `differs` from the lane that is last
    to store there in this instruction. Warps that write the same number in any order are no race that anyone can see.
    """

    changes: Array
    differs: Array

    @classmethod
    def of(cls, view: Array, index: Array, values: list[Array]) -> Fresh:
        """`view` the memory as elements, before the store; `index` of each lane's first; `values` by element."""
        count = len(index)
        _, last, place = np.unique(index[::-1], return_index=True, return_inverse=True)
        winner = (count - 1 - last)[place][::-1]
        changes, differs = np.zeros(count, bool), np.zeros(count, bool)
        for k, value in enumerate(values):
            stored = value.astype(view.dtype)
            changes |= view[index + k] != stored
            differs |= stored[winner] != stored
        return cls(changes, differs)


@dataclass(frozen=True, slots=True)
class _Event:
    """Something a warp did at `entry` that gave it, and all that is ordered after it, the knowledge `vectors`."""

    agent: int
    entry: int
    vectors: Vectors


class _ClusterEvents:
    """What the warps of one cluster fenced, saw of other clusters, and hold as known."""

    __slots__ = ("acquired", "fenced", "fences", "known", "observed", "seen")

    def __init__(self) -> None:
        self.fences: list[_Event] = []
        self.observed: list[_Event] = []
        self.acquired: list[_Event] = []
        self.fenced: dict[int, int] = {}  # agent -> observations that its last fence acquired
        self.seen: dict[tuple[int, int], int] = {}  # (agent, location) -> version observed last
        self.known: dict[int, tuple[int, Vectors]] = {}  # agent -> (events it builds on, merged)


class GlobalRaces:
    """One launch. Methods take the batch and its rows (``cta * warps + warp``), one per lane."""

    def __init__(self, heap: Heap, order: GlobalOrder, cluster_of: Array, findings: Findings) -> None:
        self.heap, self.findings, self.cluster_of = heap, findings, cluster_of
        segments = [s for s in heap.segments if heap.writable[s.buffer]]
        self.granule = order.granule
        self.low = min((s.start for s in segments), default=0) // 16 * 16
        self.high = max((s.end for s in segments), default=0)
        self.tracked = np.zeros(len(heap.page), bool)
        for s in segments:
            self.tracked[s.start >> PAGE_BITS : (s.end - 1 >> PAGE_BITS) + 1] = True
        cells = -(-(self.high - self.low) // self.granule) + 16
        self.write = np.zeros(cells, np.int64)
        self.writer = np.zeros(cells, np.int32)
        self.reads: Array | None = None  # made with the first read of a writable buffer: few kernels have one
        self.reader: Array | None = None
        self.events: dict[int, _ClusterEvents] = {}
        self.published: dict[int, Vectors] = {}  # by location (4 bytes)
        self.versions: dict[int, int] = {}
        self.code = findings.code
        self.strong, self.wide = order.strong, order.wide

    # -- accesses
    def read(self, machine: Machine, offset: Array, nbytes: int, row: Array, lane: Array, site: int) -> None:
        """Check and note reads of `nbytes` at heap offsets."""
        if not len(offset) or int(offset.max()) < self.low or int(offset.min()) >= self.high:
            return
        mine = self.tracked[np.clip(offset >> PAGE_BITS, 0, len(self.tracked) - 1)]
        mine &= (offset >= self.low) & (offset + nbytes <= self.high)
        if not mine.all():
            offset, row, lane = offset[mine], row[mine], lane[mine]
        if not len(offset):
            return
        assert machine.shadow is not None
        if self.wide[site]:
            for r, at in zip(row.tolist(), offset.tolist(), strict=True):
                self._observe(machine, r, at, site)
        cells = self._cells(offset, nbytes)
        self._check(machine, self.write[cells], self.writer[cells], cells, row, site, "read after write")
        self._note_read(
            cells, machine.shadow.now(row, lane, site), machine.shadow.agent_of[row], self._cta(machine, row)
        )

    def _note_read(self, cells: Array, entry: Array, agent: Array, cta: Array) -> None:
        """Keep the last read per granule and column, and behind it the last one of another CTA."""
        if self.reads is None or self.reader is None:
            self.reads = np.zeros((len(self.write), 2 * READ_COLUMNS), np.int64)
            self.reader = np.zeros((len(self.write), 2 * READ_COLUMNS), np.int32)
        reads, reader = self.reads, self.reader
        column = np.broadcast_to((agent % READ_COLUMNS)[:, None], cells.shape)
        entry, cta = (np.broadcast_to(x[:, None], cells.shape) for x in (entry, cta))
        before, by = reads[cells, column], reader[cells, column]
        other = (before != 0) & (by != cta)
        reads[cells[other], column[other] + READ_COLUMNS] = before[other]
        reader[cells[other], column[other] + READ_COLUMNS] = by[other]
        reads[cells, column], reader[cells, column] = entry, cta
        lost = reader[cells, column] != cta  # CTAs of the batch read it in this very instruction
        if lost.any():
            reads[cells[lost], column[lost] + READ_COLUMNS] = entry[lost]
            reader[cells[lost], column[lost] + READ_COLUMNS] = cta[lost]

    @staticmethod
    def _cta(machine: Machine, row: Array) -> Array:
        """The CTAs of rows, by their number in the grid."""
        return machine.cta_linear[row // machine.warps]

    def store(
        self, machine: Machine, offset: Array, nbytes: int, row: Array, lane: Array, site: int,
        fresh: Fresh | None = None,
    ) -> None:  # fmt: skip
        """Check and note writes of `nbytes` at heap offsets; a strong one publishes what its warp has fenced."""
        every = np.ones(len(offset), bool)
        changes, differs = (every, every) if fresh is None else (fresh.changes, fresh.differs)
        inside = (offset >= self.low) & (offset + nbytes <= self.high)
        if not inside.all():
            offset, row, lane = offset[inside], row[inside], lane[inside]
            changes, differs = changes[inside], differs[inside]
        if not len(offset):
            return
        assert machine.shadow is not None
        if self.wide[site] and self.code[site].parts[0] == "st":
            for r, at in zip(row.tolist(), offset.tolist(), strict=True):
                self._publish(machine, r, at, site)
        cells = self._cells(offset, nbytes)
        self._check(machine, self.write[cells], self.writer[cells], cells, row, site, WRITES, changes)
        if self.reads is not None and self.reader is not None:
            for column in range(2 * READ_COLUMNS):
                reads, reader = self.reads[cells, column], self.reader[cells, column]
                self._check(machine, reads, reader, cells, row, site, "write after read")
        noted = machine.shadow.now(row, lane, site)[:, None]
        cta = self._cta(machine, row)[:, None]
        self.write[cells], self.writer[cells] = noted, cta
        entry, writer = self.write[cells], self.writer[cells]
        if (entry != noted).any() or (writer != cta).any():
            # Others write the same in this very instruction.
            self._check(machine, entry, writer, cells, row, site, WRITES, differs)

    def atomic(self, machine: Machine, offset: Array, nbytes: int, row: Array, lane: Array, site: int) -> None:
        """Note atomics, lane after lane as they are executed: each sees what was published, then publishes."""
        if self.wide[site]:
            returns = self.code[site].parts[0] == "atom"
            for r, at in zip(row.tolist(), offset.tolist(), strict=True):
                if returns:
                    self._observe(machine, r, at, site)
                self._publish(machine, r, at, site)
        self.store(machine, offset, nbytes, row, lane, site)

    def _cells(self, offset: Array, nbytes: int) -> Array:
        first = (offset - self.low) // self.granule
        return first[:, None] + np.arange(max(nbytes // self.granule, 1))

    # -- order between CTAs
    def fence(self, machine: Machine, rows: Array) -> None:
        """A device-wide fence of these (distinct) warps."""
        shadow = machine.shadow
        assert shadow is not None
        shadow.tick(rows)
        for row in rows.tolist():
            events, agent, entry = self._who(machine, row)
            vector = shadow.limit[row, : shadow.threads].copy()
            mine = [e for e in events.fences if e.agent == agent]
            if len(mine) >= KEPT_FENCES:  # a fence in a loop: no one builds on the oldest alone
                events.fences.remove(mine[0])
            events.fences.append(_Event(agent, entry, {self._cluster(machine, row): vector}))
            usable = [e.vectors for e in events.observed if self._builds_on(machine, row, e)]
            if len(usable) > events.fenced.get(agent, 0):
                events.fenced[agent] = len(usable)
                events.acquired.append(_Event(agent, entry, _merged(usable)))

    def _publish(self, machine: Machine, row: int, location: int, site: int) -> None:
        """A strong write of a warp: what it fenced, or with release semantics all it did, can be seen from now on."""
        shadow = machine.shadow
        assert shadow is not None
        events, _, _ = self._who(machine, row)
        given = [e.vectors for e in events.fences if self._builds_on(machine, row, e)]
        if self.code[site].has("release", "acq_rel"):
            shadow.tick(np.array([row]))
            given.append({self._cluster(machine, row): shadow.limit[row, : shadow.threads].copy()})
        if not given:
            return
        key = location >> 2
        self.published[key] = _merged([self.published.get(key, {}), *given, self._known(machine, row)])
        self.versions[key] = self.versions.get(key, 0) + 1

    def _observe(self, machine: Machine, row: int, location: int, site: int) -> None:
        """A strong read of a warp: with acquire semantics it knows what was published there, else behind a fence."""
        key = location >> 2
        vectors = self.published.get(key)
        if vectors is None:
            return
        events, agent, entry = self._who(machine, row)
        if events.seen.get((agent, key)) == self.versions[key]:
            return  # a spinning wait looks again and again
        events.seen[agent, key] = self.versions[key]
        acquires = self.code[site].has("acquire", "acq_rel")
        (events.acquired if acquires else events.observed).append(_Event(agent, entry, vectors))

    def _cluster(self, machine: Machine, row: int) -> int:
        return int(self.cluster_of[machine.cta_linear[row // machine.warps]])

    def _who(self, machine: Machine, row: int) -> tuple[_ClusterEvents, int, int]:
        """The events of the warp's cluster, its agent, and its present time."""
        assert machine.shadow is not None
        events = self.events.setdefault(self._cluster(machine, row), _ClusterEvents())
        return events, int(machine.shadow.agent_of[row]), int(machine.shadow.clock[row])

    @staticmethod
    def _builds_on(machine: Machine, row: int, event: _Event) -> bool:
        shadow = machine.shadow
        assert shadow is not None
        return event.agent == int(shadow.agent_of[row]) or int(shadow.limit[row, event.agent]) >= event.entry

    def _known(self, machine: Machine, row: int) -> Vectors:
        """What the warp may take as done by warps of other clusters."""
        events, agent, _ = self._who(machine, row)
        usable = [e.vectors for e in events.acquired if self._builds_on(machine, row, e)]
        count, merged = events.known.get(agent, (0, {}))
        if count != len(usable):
            merged = _merged(usable)
            events.known[agent] = len(usable), merged
        return merged

    # -- findings
    def _check(
        self, machine: Machine, entry: Array, cta: Array, cells: Array, row: Array, site: int, pair: str,
        local_lanes: Array | None = None,
    ) -> None:  # fmt: skip
        """Report accesses that are not ordered after the ones noted in `entry`, by `cta`. `pair`: which is which;
        `local_lanes`: the lanes whose order inside the CTA matters.
        """
        shadow = machine.shadow
        assert shadow is not None
        noted = entry != 0
        if not noted.any():
            return
        agent = entry & AGENT_MASK
        here = self.cluster_of[self._cta(machine, row)][:, None]
        same = self.cluster_of[cta] == here
        known = shadow.limit.reshape(-1)[(row * shadow.width)[:, None] + np.where(same, agent, 0)]
        local = noted & same & (agent != shadow.agent_of[row][:, None]) & (entry > known)
        if local_lanes is not None:
            local &= local_lanes[:, None]
        remote = noted & ~same
        sources = (entry >> 13) & 0x7FFFF
        if self.strong[site]:
            local &= ~self.strong[sources]
        if self.wide[site]:
            remote &= ~self.wide[sources]
        if remote.any():
            self._drop_known(machine, remote, entry, cta, row)
        for bad, between in ((local, False), (remote, True)):
            for source in np.unique(sources[bad]).tolist() if bad.any() else ():
                chosen = bad & (sources == source)
                self._report(machine, chosen, entry, cta, cells, row, (site, source), between, pair)

    def _drop_known(self, machine: Machine, remote: Array, entry: Array, cta: Array, row: Array) -> None:
        """Clear in `remote` what the warps know by fences and flags."""
        for r in np.unique(row[remote.any(1)]).tolist():
            known = self._known(machine, r)
            if not known:
                continue
            lanes = np.flatnonzero(row == r)
            there, agent = self.cluster_of[cta[lanes]], entry[lanes] & AGENT_MASK
            left = remote[lanes]
            for cluster in np.unique(there[left]).tolist():
                if cluster in known:
                    left &= (there != cluster) | (entry[lanes] > known[cluster][agent])
            remote[lanes] = left

    def _report(
        self, machine: Machine, bad: Array, entry: Array, cta: Array, cells: Array, row: Array, sites: tuple[int, int],
        between: bool, pair: str,
    ) -> None:  # fmt: skip
        site, source = sites
        i, j = (int(x[0]) for x in np.nonzero(bad))
        here, there = int(machine.cta_linear[row[i] // machine.warps]), int(cta[i, j])
        place = self.heap.locate(self.low + int(cells[i, j]) * self.granule)
        access, other, count = access_name(self.code[site]), bare(access_name(self.code[source])), int(bad.sum())
        if not between:
            assert machine.shadow is not None
            warp, other_warp = int(machine.shadow.agent_of[row[i]]), int(entry[i, j]) & 0xFF
            self.findings.add(
                "CB539", site, count, source, access=f"{access} by {machine.shadow.agent_name(warp)}", buffer=place,
                cta=here, other=other, other_warp=machine.shadow.agent_name(other_warp),
            )  # fmt: skip
        elif pair == WRITES and not self.strong[[site, source]].any():
            self.findings.add("CB524", site, count, source, buffer=place, cta=here, other_cta=there)
        else:
            missing = self._missing(machine, int(row[i]), there)
            self.findings.add(
                "CB540", site, count, source, access=access, buffer=place, cta=here, other=other, other_cta=there,
                missing=missing,
            )  # fmt: skip

    def _missing(self, machine: Machine, row: int, other_cta: int) -> str:
        """Which step of publishing and observing is not there."""
        theirs = int(self.cluster_of[other_cta])
        events, _, _ = self._who(machine, row)
        if not any(theirs in vectors for vectors in self.published.values()):
            fenced = bool(self.events.get(theirs, _ClusterEvents()).fences)
            what = "an atomic or a release behind its __threadfence()" if fenced else "a __threadfence() and an atomic"
            return f"CTA {other_cta} does not publish it with {what}"
        if not any(theirs in e.vectors for e in (*events.observed, *events.acquired)):
            return f"no flag or counter of CTA {other_cta} is looked at before"
        if not any(theirs in e.vectors for e in events.acquired):
            return "there is no __threadfence() behind the flag or counter that is looked at"
        return f"CTA {other_cta} made it behind the fence or flag that is looked at, or no barrier hands that on"


def _merged(all_vectors: Iterable[Vectors]) -> Vectors:
    merged: Vectors = {}
    for vectors in all_vectors:
        for cluster, vector in vectors.items():
            have = merged.get(cluster)
            merged[cluster] = vector if have is None else np.maximum(have, vector)
    return merged
