"""cp.async.bulk and cp.async.bulk.tensor: copies and reductions between global and shared memory by the copy engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import arith
from .emit import GLOBAL_BASE
from .mbarrier import MBarrierOps
from .shadow import LOW, PENDING
from .tensormap import SWIZZLE_ALIGN, TensorMap, swizzle

Array = NDArray[Any]


@dataclass(slots=True)
class BulkLoad:
    """A load in flight: bytes for shared memory (16-byte rows `index`), and the barrier that counts them."""

    cta: int  # whose barrier
    slot: int
    index: Array
    data: Array
    nbytes: int
    site: int
    cells: Array | None
    noted: Array | None


@dataclass(slots=True)
class BulkStore:
    """A store in flight: it reads shared memory until its group is waited for."""

    gid: int
    group: int
    row: int
    cells: Array | None
    apply: Callable[[], None] | None


class BulkOps(MBarrierOps):
    """The methods generated code calls for bulk copies. Each lane that executes one starts a copy of its own."""

    def _map_at(self, address: int, site: int) -> TensorMap | None:
        found = self.machine.launch.tensor_maps.get(address)
        if found is None:
            self.machine.findings.add("CB526", site, 1, access="a tensor map", address=f"0x{address:x}")
        return found

    def _each(self, m: Array | None) -> list[int]:
        return np.flatnonzero(self.active(m)).tolist()

    def _aligned_to(self, offset: int, need: int, what: str, site: int) -> bool:
        if offset % need:
            self.machine.findings.add("CB531", site, 1, what=what, need=need, address=offset)
            return False
        return True

    def _rows(self, cta: int, offset: int, nbytes: int, span: int, site: int) -> Array | None:
        """Indices of the 16-byte rows of shared memory a copy touches, in the order of its bytes."""
        machine = self.machine
        if offset < 0 or offset + nbytes > machine.shared_limit:
            access = "a bulk copy"
            limit = machine.shared_limit
            machine.findings.add("CB515", site, 1, access=access, bytes=nbytes, address=offset, size=limit)
            return None
        at = offset + np.arange(0, nbytes, 16)
        return (swizzle(at, span) + cta * machine.shared_size) >> 4

    # -- global -> shared
    def tensor_load(
        self, target: Array, map_address: Array, coords: list[Array], barrier: Array, ctas: Array | None,
        m: Array | None, site: int,
    ) -> None:  # fmt: skip
        """cp.async.bulk.tensor to shared memory; `ctas` is the multicast mask."""
        to_cta, to = self.shared_target(target)
        bar_cta, bar = self.shared_target(barrier)
        for lane in self._each(m):
            tensor = self._map_at(int(map_address[lane]), site)
            if tensor is None:
                continue
            place = [int(c[lane]) for c in coords]
            if not self._possible(tensor, place, False, site):
                continue
            data = self._box(tensor, place, site)
            if not self._aligned_to(int(to[lane]), SWIZZLE_ALIGN[tensor.swizzle], "a bulk tensor copy", site):
                continue
            receivers = [(int(to_cta[lane]), int(bar_cta[lane]))]
            if ctas is not None:
                first = int(self.cta[lane]) // self.machine.team * self.machine.team
                ranks = [r for r in range(self.machine.team) if int(ctas[lane]) >> r & 1]
                receivers = [(first + r, first + r) for r in ranks]
            for cta, owner in receivers:
                self._start_load(lane, cta, int(to[lane]), data, tensor.swizzle, owner, int(bar[lane]), site)

    def _possible(self, tensor: TensorMap, coords: list[int], store: bool, site: int) -> bool:
        """What the hardware refuses with an illegal instruction (seen on an H200)."""
        problem = ""
        if coords[0] * tensor.buffer.array.itemsize % 16:
            problem = "the first coordinate is no multiple of 16 bytes"
        elif store and min(coords) < 0:
            problem = "a store at a negative coordinate"
        if problem:
            name = tensor.buffer.name
            self.machine.findings.add("CB533", site, 1, coords=tuple(coords), buffer=name, problem=problem)
        return not problem

    def _box(self, tensor: TensorMap, coords: list[int], site: int) -> Array:
        """The bytes of a box."""
        machine, heap = self.machine, self.machine.heap
        size = tensor.buffer.array.itemsize
        offset, inside = tensor.offsets(coords)
        offset = offset + heap.starts[machine.launch.buffer_index[id(tensor.buffer)]]
        wanted = offset[inside]
        if len(wanted) and heap.all_inside(wanted, size) < 0:
            ok = heap.inside(wanted, size)
            if not ok.all():
                self._report_outside(wanted[~ok], size, site)
        fill = np.iinfo(heap.view(size).dtype).max if tensor.fill_nan else 0
        values = np.full(len(offset), fill, heap.view(size).dtype)
        reachable = inside & (offset >= 0) & (offset + size <= heap.size)
        values[reachable] = heap.view(size)[offset[reachable] // size]
        machine.counts.bytes["global read"] += int(inside.sum()) * size
        return values.view(np.uint8)

    def bulk_load(
        self, target: Array, source: Array, nbytes: Array, barrier: Array, m: Array | None, site: int
    ) -> None:
        """cp.async.bulk from global memory (or another CTA's shared memory) to shared memory."""
        to_cta, to = self.shared_target(target)
        bar_cta, bar = self.shared_target(barrier)
        heap = self.machine.heap
        for lane in self._each(m):
            size = int(nbytes[lane])
            if size % 16 or not self._aligned_to(int(to[lane]), 16, "a bulk copy", site):
                self._aligned_to(size, 16, "the size of a bulk copy", site)
                continue
            offset = int(source[lane]) - GLOBAL_BASE
            every = offset + np.arange(size)
            if not heap.inside(every, 1).all():
                self._report_outside(every[~heap.inside(every, 1)], 1, site)
                continue
            data = heap.data[offset : offset + size].copy()
            self.machine.counts.bytes["global read"] += size
            self._start_load(lane, int(to_cta[lane]), int(to[lane]), data, 0, int(bar_cta[lane]), int(bar[lane]), site)

    def _start_load(
        self, lane: int, cta: int, offset: int, data: Array, span: int, owner: int, barrier: int, site: int
    ) -> None:
        machine, shadow = self.machine, self.machine.shadow
        index = self._rows(cta, offset, len(data), span, site)
        if index is None:
            return
        cells = noted = None
        if shadow is not None:
            cells = shadow.cells(index * 16, 16).reshape(1, -1)
            who = np.array([lane])
            noted = shadow.store(cells, self.row[who], self.lane[who], site, pending=True)
        machine.counts.bytes["shared write"] += len(data)
        slot = machine.mbarriers.slot(barrier)
        load = BulkLoad(owner, slot, index, data.reshape(-1, 16), len(data), site, cells, noted)
        if machine.late:
            machine.loads.append(load)
        else:
            finish_load(machine, load)

    # -- shared -> global
    def tensor_store(
        self, map_address: Array, coords: list[Array], source: Array, reduce: str, m: Array | None, site: int
    ) -> None:
        """cp.async.bulk.tensor and cp.reduce.async.bulk.tensor from shared memory."""
        cta, offset = self.shared_target(source)
        for lane in self._each(m):
            tensor = self._map_at(int(map_address[lane]), site)
            if tensor is None or not self._aligned_to(
                int(offset[lane]), SWIZZLE_ALIGN[tensor.swizzle], "a bulk tensor copy", site
            ):
                continue
            index = self._rows(int(cta[lane]), int(offset[lane]), tensor.nbytes, tensor.swizzle, site)
            if index is None:
                continue
            place = [int(c[lane]) for c in coords]
            if not self._possible(tensor, place, True, site):
                continue
            where, inside = tensor.offsets(place)
            where = where + self.machine.heap.starts[self.machine.launch.buffer_index[id(tensor.buffer)]]
            kind = tensor.kind or tensor.buffer.array.dtype.name
            self._start_store(lane, index, where, inside, tensor.buffer.array.itemsize, reduce, kind, site)

    def bulk_store(
        self, target: Array, source: Array, nbytes: Array, reduce: str, kind: str, m: Array | None, site: int
    ) -> None:
        """cp.async.bulk from shared to global memory."""
        cta, offset = self.shared_target(source)
        for lane in self._each(m):
            size = int(nbytes[lane])
            if not self._aligned_to(size, 16, "the size of a bulk copy", site):
                continue
            index = self._rows(int(cta[lane]), int(offset[lane]), size, 0, site)
            if index is not None:
                item = {"f16": 2, "bf16": 2, "f64": 8, "u64": 8, "s64": 8}.get(kind, 4) if reduce else 1
                where = int(target[lane]) - GLOBAL_BASE + np.arange(0, size, item)
                self._start_store(lane, index, where, np.ones(len(where), bool), item, reduce, kind, site)

    def _start_store(
        self, lane: int, index: Array, where: Array, inside: Array, size: int, reduce: str, kind: str, site: int
    ) -> None:
        machine, shadow, heap = self.machine, self.machine.shadow, self.machine.heap
        who = np.array([lane])
        cells = None
        if shadow is not None:
            cells = shadow.cells(index * 16, 16).reshape(1, -1)
            shadow.hold(cells, self.row[who], self.lane[who], site)
        wanted = where[inside]
        ok = heap.inside(wanted, size)
        if not ok.all():
            self._report_outside(wanted[~ok], size, site)
        wanted = wanted[ok]
        buffers = np.unique(heap.seg_buffer[heap.page[wanted >> 12]]).tolist() if len(wanted) else []
        for number in buffers:
            if not heap.writable[number]:
                name = heap.buffers[number].name
                machine.findings.add("CB522", site, len(wanted), access="a bulk store", buffer=name)
        linear = np.full(len(wanted), machine.cta_linear[self.cta[lane]])
        cta_lanes = self

        def apply() -> None:
            raw = machine.shared_view(1).reshape(-1, 16)[index].ravel()
            values = raw.view(heap.view(size).dtype)[inside][ok]
            at = wanted // size
            view = heap.view(size)
            view[at] = _reduced(view[at], values, reduce, kind) if reduce else values
            if len(heap.written) and len(wanted):
                if reduce:
                    heap.written[wanted[:, None] + np.arange(size)] = 0xFF
                else:
                    clash, place, here, there = heap.mark_written(wanted, size, 1, linear)
                    if clash:
                        name = heap.locate(place)
                        machine.findings.add("CB524", site, clash, buffer=name, cta=here, other_cta=there)

        machine.counts.bytes["global write"] += len(wanted) * size
        gid = int(cta_lanes.gid[lane])
        if not machine.late:
            apply()
        waiting = None if not machine.late else apply
        machine.stores.append(BulkStore(gid, int(machine.bulk_group[gid]), int(self.row[lane]), cells, waiting))

    def bulk_commit(self, m: Array | None) -> None:
        """Close the bulk group of each lane."""
        self.machine.bulk_group[self.gid if m is None else self.gid[m]] += 1

    def bulk_wait(self, left: int, m: Array | None) -> None:
        """Wait until at most `left` bulk groups of each lane are in flight."""
        machine = self.machine
        waiting = set(self.gid[self.active(m)].tolist())
        keep: list[BulkStore] = []
        for store in machine.stores:
            if store.gid in waiting and store.group < machine.bulk_group[store.gid] - left:
                if store.apply is not None:
                    store.apply()
                if machine.shadow is not None and store.cells is not None:
                    machine.shadow.release(store.cells, np.array([store.row]))
            else:
                keep.append(store)
        machine.stores = keep


_REDUCE: dict[str, Any] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
_NUMPY = {
    "f32": "f4",
    "f64": "f8",
    "u32": "u4",
    "s32": "i4",
    "u64": "u8",
    "s64": "i8",
    "float32": "f4",
    "float64": "f8",
}
_HALF = {"f16": "f16", "float16": "f16", "bf16": "bf16", "bfloat16": "bf16"}


def _reduced(old: Array, new: Array, op: str, kind: str) -> Array:
    """Old and new values combined as `kind`."""
    if kind in _HALF:
        half = _HALF[kind]
        return arith.down(_REDUCE[op](arith.up(old, half), arith.up(new, half)), half)
    dtype = np.dtype(_NUMPY.get(kind, kind))
    return _REDUCE[op](old.view(dtype), new.view(dtype)).view(old.dtype)


def finish_load(machine: Any, load: BulkLoad) -> None:
    """The bytes land and the barrier counts them."""
    machine.shared_view(1).reshape(-1, 16)[load.index] = load.data
    slot = load.slot
    before = machine.mbarriers.clock[load.cta, slot]
    if machine.shadow is not None and load.cells is not None and load.noted is not None:
        agent = machine.shadow.threads + slot
        entry = before + (load.noted & LOW & ~np.int64(0xFF)) + agent
        assert int(load.noted[0]) >= int(PENDING)
        machine.shadow.complete(load.cells, load.noted, entry)
    machine.mbarriers.copied(load.cta, slot, load.nbytes, load.site)
