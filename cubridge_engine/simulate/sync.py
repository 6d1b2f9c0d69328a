"""Waiting for others: cp.async groups, barriers of the CTA, traps.

What one lane may know of another comes from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .access import WINDOW
from .emit import GLOBAL_BASE, SHARED_BASE
from .wmma import WmmaOps

Array = NDArray[Any]


@dataclass(slots=True)
class PendingCopy:
    """Rows of one cp.async in flight: one per lane. `values` wait here when copies land late."""

    gid: Array
    group: Array
    row: Array
    index: Array  # rows of the shared memory seen as `width`-byte rows
    width: int
    cells: Array | None
    noted: Array | None
    values: Array | None

    def part(self, keep: Array) -> PendingCopy:
        """The rows of a mask."""

        def cut(x: Array | None) -> Array | None:
            return None if x is None else x[keep]

        return PendingCopy(
            self.gid[keep], self.group[keep], self.row[keep], self.index[keep], self.width,
            cut(self.cells), cut(self.noted), cut(self.values),
        )  # fmt: skip


class SyncOps(WmmaOps):
    """cp.async, bar, trap; the methods generated code calls."""

    # -- cp.async
    def cp_async(
        self, target: Array, source: Array, size: int, source_size: Array | None, m: Array | None, site: int
    ) -> None:
        """Copy `size` bytes per lane; bytes from `source_size` on are zero and not read."""
        machine = self.machine
        lanes, offset = self._shared_offsets(target, size, m, site)
        chosen = np.arange(self.count) if lanes is None else lanes
        if not len(chosen):
            return
        values = self._cp_source(chosen, lanes is None, source, size, source_size, site)
        machine.counts.moved("shared write", site, len(offset), size)
        self._bank(offset, size, lanes, site)
        cells = noted = None
        row = self.row[chosen]
        if machine.shadow is not None:
            cells = machine.shadow.cells(offset, size)
            noted = machine.shadow.store(cells, row, self.lane[chosen], site, pending=True)
        gid = self.gid[chosen]
        index = offset // size
        copy = PendingCopy(gid, machine.group[gid], row, index, size, cells, noted, values)
        if not machine.late:
            self._land(copy)
            copy.values = None
        machine.pending.append(copy)

    def _cp_source(
        self, chosen: Array, every: bool, source: Array, size: int, source_size: Array | None, site: int
    ) -> Array:
        """The bytes to copy: (chosen lanes, size)."""
        machine = self.machine
        if source_size is None:
            mask = None if every else self._only(chosen)
        else:
            mask = self._only(chosen[source_size[chosen] >= size])
        lanes, offset = self._global_offsets(source, size, mask, site, False)
        rows = machine.heap.data.reshape(-1, size)[offset // size] if machine.heap.size % size == 0 else None
        assert rows is not None
        machine.counts.moved("global read", site, len(offset), size)
        self._global_access("read", offset, size, lanes, site)
        if lanes is None:
            return rows
        values = np.zeros((self.count, size), np.uint8)
        values[lanes] = rows
        if source_size is not None:
            for lane in chosen[(source_size[chosen] > 0) & (source_size[chosen] < size)].tolist():
                self._cp_partial(values, lane, source, int(source_size[lane]), site)
        return values if every else values[chosen]

    def _cp_partial(self, values: Array, lane: int, source: Array, count: int, site: int) -> None:
        for k in range(count):
            address = source + np.uint64(k)
            _, offset = self._global_offsets(address, 1, self._only(np.array([lane])), site, False)
            if len(offset):
                values[lane, k] = self.machine.heap.data[offset[0]]

    def _only(self, lanes: Array) -> Array:
        mask = np.zeros(self.count, bool)
        mask[lanes] = True
        return mask

    def _land(self, copy: PendingCopy) -> None:
        """Put the bytes into shared memory."""
        if copy.values is not None:
            width = min(copy.width, 8)
            view = self.machine.shared_view(width).reshape(-1, copy.width // width)
            view[copy.index] = np.ascontiguousarray(copy.values).view(view.dtype)

    def cp_commit(self, m: Array | None) -> None:
        """Close the group of each lane."""
        self.machine.group[self.gid if m is None else self.gid[m]] += 1

    def cp_wait(self, left: int, m: Array | None) -> None:
        """Wait until at most `left` groups of each lane are in flight (-1: until no copy is)."""
        machine = self.machine
        if not machine.pending:
            return
        waiting = np.zeros(machine.lanes, bool)
        waiting[self.gid if m is None else self.gid[m]] = True
        keep: list[PendingCopy] = []
        for copy in machine.pending:
            done = waiting[copy.gid]
            if left >= 0:
                done &= copy.group < machine.group[copy.gid] - left
            if done.all():
                self._complete(copy)
            elif done.any():
                self._complete(copy.part(done))
                keep.append(copy.part(~done))
            else:
                keep.append(copy)
        machine.pending = keep

    def _complete(self, copy: PendingCopy) -> None:
        self._land(copy)
        shadow = self.machine.shadow
        if shadow is not None and copy.cells is not None and copy.noted is not None:
            low = copy.noted & np.int64(0xFFFFFFFF)
            shadow.complete(copy.cells, copy.noted, shadow.clock[copy.row] + low)

    # -- barriers
    def barrier(
        self, kind: str, identifier: Array, count: Array | None, vote: Array | None, m: Array | None, site: int
    ) -> None:
        """bar.sync, bar.arrive and bar.red (`vote` is its predicate).

        Lanes that must wait are blocked until the barrier of their CTA is complete.
        """
        machine = self.machine
        active = self.active(m).reshape(-1, 32)
        threads = active.sum(1)
        present = threads > 0
        leader = active.argmax(1)
        index = np.arange(len(leader))
        ids = identifier.reshape(-1, 32)[index, leader].astype(np.int64)
        expected = machine.warp_threads[self.warp[::32]]
        partial = present & (threads < expected)
        if partial.any():
            first = int(np.flatnonzero(partial)[0])
            machine.findings.add(
                "CB519", site, int(partial.sum()), lanes=int(threads[first]), warp=int(self.warp[::32][first])
            )
        need = (
            np.full(len(ids), machine.threads)
            if count is None
            else count.reshape(-1, 32)[index, leader].astype(np.int64)
        )
        for number in np.unique(ids[present]).tolist():
            chosen = present & (ids == number)
            rows = self.warp_row[chosen]
            if kind == "sync":
                lanes = (active & chosen[:, None]).ravel()
                machine.wait(self.gid[lanes], site)
                machine.barrier_of[self.gid[lanes]] = number
            votes = (active if vote is None else active & vote.reshape(-1, 32)).sum(1)
            machine.arrive(number, rows, threads[chosen], need[chosen], votes[chosen])

    def barrier_result(self, mode: str, identifier: Array) -> Array:
        """What bar.red gives, once the barrier is complete: the number of true predicates, all, or any."""
        votes, threads = self.machine.barrier_result[self.cta, identifier.astype(np.int64)].T
        return {"popc": votes.astype(np.uint32), "and": votes == threads, "or": votes > 0}[mode]

    def sync_warp(self, named: Array, m: Array | None, site: int) -> None:
        """bar.warp.sync: orders memory accesses of the warp's lanes."""
        self.members(named, m, site)
        if self.machine.shadow is not None:
            present = self.active(m).reshape(-1, 32).any(1)
            self.machine.shadow.tick(self.warp_row[present])

    def spin(self, m: Array | None, site: int) -> None:
        """Lanes take the way back of a loop that waits for memory: they sleep (see ``spins``)."""
        gid = self.gid if m is None else self.gid[m]
        if len(gid):
            self.machine.spins.sleep(gid, site)

    def polled(self, address: Array, nbytes: int, m: Array | None, site: int) -> None:
        """A read of such a loop has been executed."""
        value = address.astype(np.int64)
        low = value & 0xFFFFFFFF
        shared = (value == low) | ((value >= SHARED_BASE) & (value < SHARED_BASE + WINDOW))
        cta, inside = self.shared_target(low)
        chosen = np.flatnonzero(self.active(m))
        self.machine.spins.polled(
            self.gid[chosen],
            np.where(shared, inside, value - GLOBAL_BASE)[chosen],
            np.where(shared, cta, -1)[chosen],
            nbytes,
            site,
        )

    def trap(self, what: str, m: Array | None, site: int) -> None:
        """The kernel stops itself."""
        count = self.count if m is None else int(m.sum())
        if count:
            self.machine.findings.add("CB528", site, count, what=what)
            self.machine.stopped = True

    def device_fence(self, m: Array | None) -> None:
        """A fence that other CTAs take part in, such as ``__threadfence()``."""
        if self.machine.global_races is not None:
            self.machine.global_races.fence(self.machine, self.warp_row[self.active(m).reshape(-1, 32).any(1)])

    def proxy_fence(self, m: Array | None) -> None:
        """fence.proxy.async: generic writes before it are visible to the asynchronous proxy."""
        if self.machine.shadow is not None:
            self.machine.shadow.fence(self.warp_row[self.active(m).reshape(-1, 32).any(1)])
