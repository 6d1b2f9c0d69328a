"""Asynchronous writes into shared memory of a cluster: st.async, red.async, bulk copies and reductions between CTAs.

Each is counted by an mbarrier of the CTA it writes to. Bulk forms read the sender's memory until they have landed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from .bulk import BulkLoad, BulkOps, element_bytes, finish_load, reduced

Array = NDArray[np.generic]
Index = NDArray[np.int64]


class ClusterOps(BulkOps):
    """The methods generated code calls. Each lane that executes one starts a copy of its own."""

    def _same_cta(self, target: int, barrier: int, offset: int, site: int) -> bool:
        if target != barrier:
            barriers = self.machine.mbarriers
            barriers.problem(site, barriers.slot(offset), "it belongs to another CTA than the bytes it counts")
        return target == barrier

    def remote_store(
        self, target: NDArray[np.uint32], values: list[NDArray[np.uint32]], barrier: NDArray[np.uint32], reduce: str,
        kind: str, m: NDArray[np.bool_] | None, site: int,
    ) -> None:  # fmt: skip
        """st.async and red.async: the values of a lane arrive at `target` later, and the barrier counts their bytes."""
        machine, shadow = self.machine, self.machine.shadow
        size = values[0].dtype.itemsize
        nbytes = size * len(values)
        to_cta, _ = self.shared_target(target)
        bar_cta, bar = self.shared_target(barrier)
        lanes, place = self._shared_offsets(target, nbytes, m, site)
        chosen = np.arange(self.count) if lanes is None else lanes
        for lane, start in zip(chosen.tolist(), place.tolist(), strict=True):
            offset, owner, who = int(bar[lane]), bar_cta[[lane]], np.array([lane])
            if not self._same_cta(int(to_cta[lane]), int(bar_cta[lane]), offset, site):
                continue
            self.check_published(owner, offset, who, False, site)
            cells = noted = None
            if shadow is not None:
                cells = shadow.cells(np.array([start]), nbytes)
                if reduce:
                    shadow.read(cells, self.row[who], self.lane[who], site)
                noted = shadow.store(cells, self.row[who], self.lane[who], site, pending=True)
            index = start // size + np.arange(len(values))
            data = np.array([v[lane] for v in values])
            landing = self._landing(size, index, lambda data=data: data, reduce, kind)
            self._send(owner, offset, nbytes, cells, noted, landing, site)
            machine.counts.moved("shared write", site, 1, nbytes)

    def remote_copy(
        self, target: NDArray[np.uint32], source: NDArray[np.uint32], count: NDArray[np.uint32],
        barrier: NDArray[np.uint32], reduce: str, kind: str, m: NDArray[np.bool_] | None, site: int,
    ) -> None:  # fmt: skip
        """cp.async.bulk and cp.reduce.async.bulk from shared memory to that of a CTA of the cluster."""
        to_cta, to = self.shared_target(target)
        from_cta, start = self.shared_target(source)
        bar_cta, bar = self.shared_target(barrier)
        for lane in np.flatnonzero(self.active(m)).tolist():
            nbytes, offset, one = int(count[lane]), int(bar[lane]), np.array([lane])
            aligned = self._aligned_to(nbytes, 16, "the size of a bulk copy", site)
            aligned &= self._aligned_to(int(to[lane]), 16, "a bulk copy", site)
            aligned &= self._aligned_to(int(start[lane]), 16, "the source of a bulk copy", site)
            if not aligned or not self._same_cta(int(to_cta[lane]), int(bar_cta[lane]), offset, site):
                continue
            written, inside = self._rows(to_cta[one], to[one], nbytes, 0, site)
            read, readable = self._rows(from_cta[one], start[one], nbytes, 0, site)
            if inside.all() and readable.all():
                self.check_published(bar_cta[one], offset, one, True, site)
                self._start_copy(lane, written[0], read[0], bar_cta[one], offset, reduce, kind, site)

    def _start_copy(
        self, lane: int, written: Index, read: Index, owner: Index, barrier: int, reduce: str, kind: str, site: int
    ) -> None:
        machine, shadow = self.machine, self.machine.shadow
        one = np.array([lane])
        row, at = self.row[one], self.lane[one]
        nbytes = 16 * len(written)
        size = element_bytes(kind) if reduce else 8
        source, target = (_elements(rows, size) for rows in (read, written))

        def fetch() -> Array:
            return machine.shared_view(size)[source]

        early = None if machine.late else fetch()
        landing = self._landing(size, target, fetch if early is None else lambda: early, reduce, kind)
        machine.counts.moved("shared read", site, 1, nbytes)
        machine.counts.moved("shared write", site, 1, nbytes)
        if shadow is None:
            self._send(owner, barrier, nbytes, None, None, landing, site)
            return
        cells = shadow.cells(written * 16, 16).reshape(1, -1)
        if reduce:
            shadow.read_by_engine(cells, row, at, site)
        noted = shadow.store(cells, row, at, site, pending=True)
        sources = shadow.cells(read * 16, 16).reshape(1, -1)
        # The barrier hands on that the source has been read: an epoch of its own keeps other accesses out of it.
        shadow.tick(row)
        held = shadow.hold(sources, row, at, site, np.zeros(1, np.int64))
        epoch = int(shadow.clock[row[0]])
        shadow.tick(row)

        def let_go() -> None:
            shadow.release_at(sources, row, held, epoch)

        machine.mbarriers.hand_on(owner, barrier, int(shadow.agent_of[row[0]]), epoch)
        machine.mbarriers.held.append((int(owner[0]), machine.mbarriers.slot(barrier), let_go))
        self._send(owner, barrier, nbytes, cells, noted, landing, site)

    def _landing(
        self, size: int, index: Index, fetch: Callable[[], Array], reduce: str, kind: str
    ) -> Callable[[], None]:
        """What puts elements of `size` bytes into shared memory."""
        view = self.machine.shared_view(size)

        def land() -> None:
            new = fetch()
            view[index] = reduced(view[index], new, reduce, kind) if reduce else new

        return land

    def _send(
        self, owner: Index, barrier: int, nbytes: int, cells: Index | None, noted: Index | None,
        landing: Callable[[], None], site: int,
    ) -> None:  # fmt: skip
        machine = self.machine
        nothing = np.zeros(1, np.int64)
        slot = machine.mbarriers.slot(barrier)
        load = BulkLoad(owner, slot, nothing, nothing, nbytes, site, cells, noted, landing)
        if machine.late:
            machine.loads.append(load)
        else:
            finish_load(machine, load)


def _elements(rows: Index, size: int) -> Index:
    """Indices of elements of `size` bytes in 16-byte rows."""
    per = 16 // size
    return (rows[:, None] * per + np.arange(per)).ravel()
