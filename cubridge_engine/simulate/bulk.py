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
from .shadow import AGENT_MASK, LOW, PENDING
from .tensormap import SWIZZLE_ALIGN, TensorMap, swizzle

Array = NDArray[Any]


@dataclass(slots=True)
class BulkLoad:
    """Loads in flight, at most one per CTA: bytes for shared memory (16-byte rows `index`), and what counts them."""

    cta: Array  # whose barrier
    slot: int
    index: Array  # (loads, rows)
    data: Array  # (loads, rows, 16)
    nbytes: int
    site: int
    cells: Array | None
    noted: Array | None
    landing: Callable[[], None] | None = None  # what one load does in place of writing its `data`

    def part(self, keep: Array) -> BulkLoad:
        """The loads of a mask."""
        cells = None if self.cells is None else self.cells[keep]
        noted = None if self.noted is None else self.noted[keep]
        return BulkLoad(
            self.cta[keep], self.slot, self.index[keep], self.data[keep], self.nbytes, self.site, cells, noted,
            self.landing,
        )  # fmt: skip


@dataclass(slots=True)
class BulkStore:
    """A store in flight: it reads shared memory until its group is waited for."""

    gid: int
    group: int
    row: int
    cells: Array | None
    noted: Array | None
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
        return not self._unaligned(np.array([offset]), need, what, site).any()

    def _unaligned(self, offset: Array, need: int, what: str, site: int) -> Array:
        """Which offsets are no multiples of `need`; they are reported."""
        wrong = offset % need != 0
        if wrong.any():
            self.machine.findings.add(
                "CB531", site, int(wrong.sum()), what=what, need=need, address=int(offset[wrong][0])
            )
        return wrong

    def _rows(self, cta: Array, offset: Array, nbytes: int, span: int, site: int) -> tuple[Array, Array]:
        """Indices of the 16-byte rows of shared memory copies touch, in the order of their bytes: (copies, rows).

        Also which of the copies lie in shared memory; the others are reported and have no rows.
        """
        machine = self.machine
        ok = (offset >= 0) & (offset + nbytes <= machine.shared_limit)
        if not ok.all():
            first, limit = int(offset[~ok][0]), machine.shared_limit
            machine.findings.add(
                "CB515", site, int((~ok).sum()), access="a bulk copy", bytes=nbytes, address=first, size=limit
            )
        at = offset[ok][:, None] + np.arange(0, nbytes, 16)
        return (swizzle(at, span) + cta[ok][:, None] * machine.shared_size) >> 4, ok

    # -- global -> shared
    def tensor_load(
        self, target: Array, map_address: Array, coords: list[Array], barrier: Array, ctas: Array | None,
        m: Array | None, site: int,
    ) -> None:  # fmt: skip
        """cp.async.bulk.tensor to shared memory; `ctas` is the multicast mask."""
        machine, lanes = self.machine, np.flatnonzero(self.active(m))
        to_cta, to = (x[lanes] for x in self.shared_target(target))
        bar_cta, bar = (x[lanes] for x in self.shared_target(barrier))
        for address in np.unique(map_address[lanes]).tolist():
            tensor = self._map_at(address, site)
            if tensor is None:
                continue
            here = np.flatnonzero(map_address[lanes] == address)
            here = here[self._possible(tensor, [c[lanes[here]] for c in coords], False, site)]
            if not len(here):
                continue
            data = self._boxes(tensor, [c[lanes[here]] for c in coords], lanes[here], site)
            aligned = ~self._unaligned(to[here], SWIZZLE_ALIGN[tensor.swizzle], "a bulk tensor copy", site)
            here, data = here[aligned], data[aligned]
            if ctas is None:
                self._start_loads(
                    lanes[here], to_cta[here], to[here], data, tensor.swizzle, bar_cta[here], bar[here], site
                )
                continue
            first = self.cta[lanes[here]] // machine.team * machine.team
            for rank in range(machine.team):
                got = (ctas[lanes[here]].astype(np.int64) >> rank & 1).astype(bool)
                cta, mine = first[got] + rank, here[got]
                self._start_loads(lanes[mine], cta, to[mine], data[got], tensor.swizzle, cta, bar[mine], site)

    def _possible(self, tensor: TensorMap, coords: list[Array], store: bool, site: int) -> Array:
        """Which copies the hardware can execute; the others are reported."""
        ok: Array = np.ones(len(coords[0]), bool)
        if len(coords) != tensor.coordinates:
            checks = [(ok.copy(), "the map is of another mode or number of dimensions than the instruction")]
        else:
            checks = tensor.problems(coords, store)
        for wrong, problem in checks:
            new = wrong & ok
            if new.any():
                place = tuple(int(c[new][0]) for c in coords)
                name = tensor.buffer.name
                self.machine.findings.add("CB533", site, int(new.sum()), coords=place, buffer=name, problem=problem)
            ok &= ~wrong
        return ok

    def _boxes(self, tensor: TensorMap, coords: list[Array], who: Array, site: int) -> Array:
        """The bytes of boxes that the lanes `who` ask for: (boxes, bytes)."""
        machine, heap = self.machine, self.machine.heap
        size = tensor.buffer.array.itemsize
        piece = tensor.piece
        offset, inside = tensor.offsets(coords, piece)
        offset = offset + heap.starts[machine.launch.buffer_index[id(tensor.buffer)]]
        wanted = offset if inside.all() else offset[inside]
        if wanted.size and heap.all_inside(wanted, piece) < 0:
            ok = heap.inside(wanted, piece)
            if not ok.all():
                self._report_outside(wanted[~ok], piece, site)
        machine.counts.bulk("global read", site, wanted.size * piece)
        asking = np.broadcast_to(who.reshape(-1, *[1] * (offset.ndim - 1)), offset.shape)
        self._global_access("read", wanted.ravel(), piece, asking[inside], site)
        reachable = inside & (offset >= 0) & (offset + piece <= heap.size)
        rows = heap.data.reshape(-1, piece) if heap.size % piece == 0 else None
        assert rows is not None
        if reachable.all():
            return rows[offset // piece].reshape(len(offset), -1)
        item = heap.view(size).dtype
        values = np.full((*offset.shape, piece // size), np.iinfo(item).max if tensor.fill_nan else 0, item).view(
            np.uint8
        )
        values[reachable] = rows[offset[reachable] // piece]
        return values.reshape(len(offset), -1)

    def bulk_load(
        self, target: Array, source: Array, nbytes: Array, barrier: Array, ctas: Array | None, m: Array | None,
        site: int,
    ) -> None:  # fmt: skip
        """cp.async.bulk from global to shared memory; `ctas` is the multicast mask."""
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
            self.machine.counts.bulk("global read", site, size)
            self._global_access("read", every[::16], 16, np.full(size // 16, lane), site)
            one = np.array([lane])
            if ctas is None:
                self._start_loads(one, to_cta[one], to[one], data[None], 0, bar_cta[one], bar[one], site)
                continue
            first = int(self.cta[lane]) // self.machine.team * self.machine.team
            for rank in range(self.machine.team):
                if int(ctas[lane]) >> rank & 1:
                    cta = np.array([first + rank])
                    self._start_loads(one, cta, to[one], data[None], 0, cta, bar[one], site)

    def _start_loads(
        self, lanes: Array, cta: Array, offset: Array, data: Array, span: int, owner: Array, barrier: Array, site: int
    ) -> None:
        """Loads of `data` (loads, bytes) to byte `offset` of each `cta`, counted by the barriers of `owner`."""
        for at in np.unique(barrier).tolist():
            left = np.flatnonzero(barrier == at)
            while len(left):  # loads of one object belong to different CTAs: those of one CTA come after each other
                now = np.intersect1d(
                    np.unique(cta[left], return_index=True)[1], np.unique(owner[left], return_index=True)[1]
                )
                some = left[now]
                left = np.delete(left, now)
                self._start_distinct(lanes[some], cta[some], offset[some], data[some], span, owner[some], at, site)

    def _start_distinct(
        self, lanes: Array, cta: Array, offset: Array, data: Array, span: int, owner: Array, barrier: int, site: int
    ) -> None:
        machine, shadow = self.machine, self.machine.shadow
        nbytes = data.shape[1]
        index, ok = self._rows(cta, offset, nbytes, span, site)
        lanes, owner, data = lanes[ok], owner[ok], data[ok]
        if not len(lanes):
            return
        cells = noted = None
        if shadow is not None:
            cells = shadow.cells(index.ravel() * 16, 16).reshape(len(lanes), -1)
            noted = shadow.store(cells, self.row[lanes], self.lane[lanes], site, pending=True)
        machine.counts.bulk("shared write", site, data.size)
        slot = machine.mbarriers.slot(barrier)
        self.check_published(owner, barrier, lanes, True, site)
        load = BulkLoad(owner, slot, index, data.reshape(len(lanes), -1, 16), nbytes, site, cells, noted)
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
            one = np.array([lane])
            index, ok = self._rows(cta[one], offset[one], tensor.nbytes, tensor.swizzle, site)
            place = [c[one] for c in coords]
            if not ok.all() or not self._possible(tensor, place, True, site).all():
                continue
            where, inside = (x[0] for x in tensor.offsets(place, tensor.buffer.array.itemsize))
            where = where + self.machine.heap.starts[self.machine.launch.buffer_index[id(tensor.buffer)]]
            kind = tensor.kind or tensor.buffer.array.dtype.name
            self._start_store(lane, index[0], where, inside, tensor.buffer.array.itemsize, reduce, kind, site)

    def bulk_store(
        self, target: Array, source: Array, nbytes: Array, reduce: str, kind: str, m: Array | None, site: int
    ) -> None:
        """cp.async.bulk from shared to global memory."""
        cta, offset = self.shared_target(source)
        for lane in self._each(m):
            size = int(nbytes[lane])
            if not self._aligned_to(size, 16, "the size of a bulk copy", site):
                continue
            one = np.array([lane])
            index, ok = self._rows(cta[one], offset[one], size, 0, site)
            if ok.all():
                item = {"f16": 2, "bf16": 2, "b64": 8, "f64": 8, "u64": 8, "s64": 8}.get(kind, 4) if reduce else 1
                where = int(target[lane]) - GLOBAL_BASE + np.arange(0, size, item)
                self._start_store(lane, index[0], where, np.ones(len(where), bool), item, reduce, kind, site)

    def _start_store(
        self, lane: int, index: Array, where: Array, inside: Array, size: int, reduce: str, kind: str, site: int
    ) -> None:
        machine, shadow, heap = self.machine, self.machine.shadow, self.machine.heap
        who = np.array([lane])
        gid = self.gid[who]
        cells = noted = None
        if shadow is not None:
            cells = shadow.cells(index * 16, 16).reshape(1, -1)
            noted = shadow.hold(cells, self.row[who], self.lane[who], site, machine.bulk_group[gid])
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
        # As for plain stores, the checker of races says whose element it was before, where there is one.
        linear = np.full(len(wanted), machine.cta_linear[self.cta[lane]]) if machine.global_races is None else None

        def apply() -> None:
            raw = machine.shared_view(1).reshape(-1, 16)[index].ravel()
            values = raw.view(heap.view(size).dtype)[inside][ok]
            at = wanted // size
            view = heap.view(size)
            view[at] = reduced(view[at], values, reduce, kind) if reduce else values
            if len(heap.written) and len(wanted):
                if reduce:
                    heap.written[wanted[:, None] + np.arange(size)] = 0xFF
                else:
                    clash, place, here, there = heap.mark_written(wanted, size, 1, linear)
                    if clash:
                        name = heap.locate(place)
                        machine.findings.add("CB524", site, clash, buffer=name, cta=here, other_cta=there)

        machine.counts.bulk("global write", site, len(wanted) * size)
        self._global_access("store", wanted, size, np.full(len(wanted), lane), site)
        if not machine.late:
            apply()
        waiting = None if not machine.late else apply
        group = int(machine.bulk_group[gid[0]])
        machine.stores.append(BulkStore(int(gid[0]), group, int(self.row[lane]), cells, noted, waiting))

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
                if machine.shadow is not None and store.cells is not None and store.noted is not None:
                    machine.shadow.release(store.cells, np.array([store.row]), store.noted)
            else:
                keep.append(store)
        machine.stores = keep


def _inc(old: Array, limit: Array) -> Array:
    return np.where(old >= limit, old.dtype.type(0), old + old.dtype.type(1))


def _dec(old: Array, limit: Array) -> Array:
    return np.where((old == 0) | (old > limit), limit, old - old.dtype.type(1))


_REDUCE: dict[str, Any] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "inc": _inc,
    "dec": _dec,
}
_NUMPY = {
    "f32": "f4",
    "f64": "f8",
    "u32": "u4",
    "s32": "i4",
    "u64": "u8",
    "s64": "i8",
    "b32": "u4",
    "b64": "u8",
    "float32": "f4",
    "float64": "f8",
}
_HALF = {"f16": "f16", "float16": "f16", "bf16": "bf16", "bfloat16": "bf16"}


def element_bytes(kind: str) -> int:
    """Bytes of an element of a bulk reduction."""
    return 2 if kind in _HALF else np.dtype(_NUMPY[kind]).itemsize


def reduced(old: Array, new: Array, op: str, kind: str) -> Array:
    """Old and new values combined as `kind`."""
    if kind in _HALF:
        half = _HALF[kind]
        return arith.down(_REDUCE[op](arith.up(old, half), arith.up(new, half)), half)
    dtype = np.dtype(_NUMPY.get(kind, kind))
    return _REDUCE[op](old.view(dtype), new.view(dtype)).view(old.dtype)


def finish_load(machine: Any, load: BulkLoad) -> None:
    """The bytes land and the barriers count them."""
    if load.landing is not None:
        load.landing()
    else:
        machine.shared_view(8).reshape(-1, 2)[load.index] = load.data.view(np.uint64)
    agent, before = machine.mbarriers.agent(load.cta, load.slot), machine.mbarriers.time(load.cta, load.slot)
    if machine.shadow is not None and load.cells is not None and load.noted is not None:
        entry = before + (load.noted & LOW & ~AGENT_MASK) + agent
        assert int(load.noted[0]) >= int(PENDING)
        machine.shadow.complete(load.cells, load.noted, entry)
    machine.mbarriers.copied(load.cta, load.slot, load.nbytes, load.site)
