"""Memory instructions for a set of lanes: bounds, alignment, races, then the data."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import arith
from .emit import GLOBAL_BASE, LOCAL_BASE, PARAM_BASE, SHARED_BASE, SHARED_START, UNSIGNED
from .findings import access_name
from .global_races import Fresh
from .lanes import WarpOps

Array = NDArray[Any]
Chosen = tuple[Array | None, Array]  # lanes (None: all) and byte offsets of these lanes

CLUSTER_SHIFT = 24
WINDOW = 1 << 40  # size of the windows of the generic address space


def _pick(x: Array, lanes: Array | None) -> Array:
    return x if lanes is None else x[lanes]


class MemoryOps(WarpOps):
    """ld, st, atomics, cp.async, ldmatrix; the methods generated code calls."""

    # -- addresses
    def _shared_offsets(self, address: Array, nbytes: int, m: Array | None, site: int) -> Chosen:
        """Byte offsets into the batch's shared memory, checked."""
        machine = self.machine
        lanes = self.lanes_of(m)
        flat = _pick(address, lanes).astype(np.int64) - SHARED_START
        if not len(flat):
            return lanes if lanes is not None else np.zeros(0, np.int64), flat
        # All bits together are no less than the greatest offset (and negative where one is).
        bits = int(np.bitwise_or.reduce(flat))
        if bits >= 0 and bits + nbytes <= machine.shared_limit and not bits & (nbytes - 1):
            return lanes, flat + _pick(self.shared_base, lanes)
        cta, offset = self.shared_target(address)
        cta, offset = _pick(cta, lanes), _pick(offset, lanes)
        if offset.min() < 0 or offset.max() + nbytes > machine.shared_limit:
            ok = (offset >= 0) & (offset + nbytes <= machine.shared_limit)
            first = int(offset[~ok][0])
            machine.findings.add(
                "CB515", site, int((~ok).sum()), access=access_name(machine.code[site]), bytes=nbytes,
                address=first, size=machine.shared_limit,
            )  # fmt: skip
            lanes, cta, offset = (np.flatnonzero(ok) if lanes is None else lanes[ok]), cta[ok], offset[ok]
        if nbytes > 1 and (offset & (nbytes - 1)).any():
            cta = cta[(offset & (nbytes - 1)) == 0]
            lanes, offset = self._misaligned(lanes, offset, nbytes, site, "shared")
        return lanes, offset + cta * machine.shared_size

    def shared_target(self, address: Array) -> tuple[Array, Array]:
        """The CTA (index in the batch) and the byte offset of shared addresses; ``mapa`` puts rank + 1 above bit 24."""
        value = address.astype(np.int64)
        team = self.machine.team
        if team == 1 and value.max(initial=0) < 1 << CLUSTER_SHIFT:
            return self.cta, value - SHARED_START
        rank = value >> CLUSTER_SHIFT
        there = rank <= team  # a rank that the cluster does not have leaves an address outside
        cta = np.where((rank > 0) & there, self.cta // team * team + rank - 1, self.cta)
        return cta, np.where(there, value & ((1 << CLUSTER_SHIFT) - 1), value) - SHARED_START

    def mapa(self, address: Array, rank: Array) -> Array:
        """The address of the same byte in the CTA `rank` of the cluster."""
        low = address & address.dtype.type((1 << CLUSTER_SHIFT) - 1)
        window = address.astype(np.uint64) >= np.uint64(SHARED_BASE)
        top = np.where(window, np.uint64(SHARED_BASE), np.uint64(0)).astype(address.dtype)
        return top | low | ((rank.astype(address.dtype) + address.dtype.type(1)) << address.dtype.type(CLUSTER_SHIFT))

    def rank_of(self, address: Array) -> Array:
        """getctarank."""
        cta, _ = self.shared_target(address & np.uint64((1 << 32) - 1))
        return (cta % self.machine.team).astype(np.uint32)

    def _misaligned(self, lanes: Array | None, offset: Array, nbytes: int, site: int, space: str) -> Chosen:
        ok = (offset & (nbytes - 1)) == 0
        first = int(offset[~ok][0])
        where = (
            f"{first} of shared memory"
            if space == "shared"
            else f"{first} of the heap ({self.machine.heap.locate(first)})"
        )
        self.machine.findings.add(
            "CB514", site, int((~ok).sum()), access=access_name(self.machine.code[site]), bytes=nbytes, address=where
        )
        return (np.flatnonzero(ok) if lanes is None else lanes[ok]), offset[ok]

    def _global_offsets(self, address: Array, nbytes: int, m: Array | None, site: int, write: bool) -> Chosen:
        """Byte offsets into the heap, checked for bounds, alignment and role."""
        machine, heap = self.machine, self.machine.heap
        lanes = self.lanes_of(m)
        offset = (_pick(address, lanes) - np.uint64(GLOBAL_BASE)).astype(np.int64)
        if not len(offset):
            return lanes if lanes is not None else np.zeros(0, np.int64), offset
        segment = heap.all_inside(offset, nbytes)
        if segment < 0:
            ok = heap.inside(offset, nbytes)
            if not ok.all():
                self._report_outside(offset[~ok], nbytes, site)
                # A read that stays in the heap gets the poison of the red zones, so that numbers show it too.
                ok = ok if write else (offset >= 0) & (offset + nbytes <= heap.size)
                lanes, offset = (np.flatnonzero(ok) if lanes is None else lanes[ok]), offset[ok]
        if nbytes > 1 and (offset & (nbytes - 1)).any():
            lanes, offset = self._misaligned(lanes, offset, nbytes, site, "global")
        if write and len(offset):
            buffers = (
                [heap.seg_buffer[segment]] if segment >= 0 else np.unique(heap.seg_buffer[heap.page[offset >> 12]])
            )
            for index in buffers:
                if not heap.writable[index]:
                    name = heap.buffers[index].name or "a buffer"
                    machine.findings.add(
                        "CB522", site, len(offset), access=access_name(machine.code[site]), buffer=name
                    )
        return lanes, offset

    def _report_outside(self, offset: Array, nbytes: int, site: int) -> None:
        machine, first = self.machine, int(offset[0])
        access = access_name(machine.code[site])
        if 0 <= first < machine.heap.size:
            where = machine.heap.locate(first)
            machine.findings.add("CB513", site, len(offset), access=access, bytes=nbytes, where=where)
        else:
            text = f"0x{(first + GLOBAL_BASE) & (2**64 - 1):x}"
            machine.findings.add("CB526", site, len(offset), access=access, address=text)

    def _spaces(self, address: Array, m: Array | None, site: int) -> list[tuple[str, Array, Array | None]]:
        """Generic addresses -> (space, address within it, mask) for each space that occurs."""
        windows = (
            ("global", GLOBAL_BASE, 0),
            ("shared", SHARED_BASE, SHARED_BASE),
            ("local", LOCAL_BASE, LOCAL_BASE),
            ("param", PARAM_BASE, PARAM_BASE),
        )
        seen = address if m is None else address[m]
        if not len(seen):
            return []
        low, high = int(seen.min()), int(seen.max())
        for name, base, shift in windows:
            if base <= low and high < base + WINDOW:
                return [(name, address - np.uint64(shift), m)]
        found: list[tuple[str, Array, Array | None]] = []
        rest = self.active(m)
        for name, base, shift in windows:
            here = rest & (address >= np.uint64(base)) & (address < np.uint64(base + WINDOW))
            rest = rest & ~here
            if here.any():
                found.append((name, address - np.uint64(shift), here))
        if rest.any():
            first = int(address[rest][0])
            access = access_name(self.machine.code[site])
            self.machine.findings.add("CB526", site, int(rest.sum()), access=access, address=f"0x{first:x}")
        return found

    def in_space(self, space: str, address: Array) -> Array:
        """isspacep."""
        base = {
            "global": GLOBAL_BASE,
            "shared": SHARED_BASE,
            "local": LOCAL_BASE,
            "param": PARAM_BASE,
            "const": GLOBAL_BASE,
        }[space]
        return (address >= np.uint64(base)) & (address < np.uint64(base + WINDOW))

    # -- plain accesses
    def _gather(self, view: Array, offset: Array, lanes: Array | None, size: int, count: int) -> Array:
        """(count, lanes) values from byte offsets; lanes left out are 0."""
        index = offset >> (size.bit_length() - 1)
        if count == 1:
            values = view[index][None]
        else:
            values = view[index[:, None] + np.arange(count)].T
        if lanes is None:
            return values
        result = np.zeros((count, self.count), view.dtype)
        result[:, lanes] = values
        return result

    def load(self, space: str, address: Array, size: int, count: int, m: Array | None, site: int) -> Array:
        """`count` elements of `size` bytes per lane: shape (count, lanes), unsigned."""
        nbytes = size * count
        machine = self.machine
        if space == "shared":
            lanes, offset = self._shared_offsets(address, nbytes, m, site)
            self._shadow_read(offset, nbytes, lanes, site)
            self._bank(offset, nbytes, lanes, site)
            machine.counts.moved("shared read", site, len(offset), nbytes)
            return self._gather(machine.shared_view(size), offset, lanes, size, count)
        if space == "global":
            lanes, offset = self._global_offsets(address, nbytes, m, site, False)
            machine.counts.moved("global read", site, len(offset), nbytes)
            self._global_access("read", offset, nbytes, lanes, site)
            return self._gather(machine.heap.view(size), offset, lanes, size, count)
        if space == "local":
            lanes, offset = self._local_offsets(address, nbytes, m, site)
            return self._gather(machine.local_view(size), offset, lanes, size, count)
        if space == "param":
            lanes = self.lanes_of(m)
            return self._gather(
                machine.params.view(UNSIGNED[8 * size]), _pick(address, lanes).astype(np.int64), lanes, size, count
            )
        result = np.zeros((count, self.count), UNSIGNED[8 * size])
        for name, inner, mask in self._spaces(address.astype(np.uint64), m, site):
            values = self.load(name, inner, size, count, mask, site)
            result = values if mask is None else np.where(mask, values, result)
        return result

    def store(self, space: str, address: Array, values: list[Array], size: int, m: Array | None, site: int) -> None:
        """Store the values (one array per element) of each lane."""
        nbytes = size * len(values)
        machine = self.machine
        if space == "shared":
            lanes, offset = self._shared_offsets(address, nbytes, m, site)
            self._shadow_write(offset, nbytes, lanes, site)
            self._bank(offset, nbytes, lanes, site)
            machine.counts.moved("shared write", site, len(offset), nbytes)
            view = machine.shared_view(size)
        elif space == "global":
            lanes, offset = self._global_offsets(address, nbytes, m, site, True)
            machine.counts.moved("global write", site, len(offset), nbytes)
            view = machine.heap.view(size)
            self._note_written(offset, size, len(values), lanes, site)
            fresh = None
            if machine.global_races is not None and len(offset):
                fresh = Fresh.of(view, offset // size, [_pick(value, lanes) for value in values])
            self._global_access("store", offset, nbytes, lanes, site, fresh)
        elif space == "local":
            lanes, offset = self._local_offsets(address, nbytes, m, site)
            view = machine.local_view(size)
        else:
            for name, inner, mask in self._spaces(address.astype(np.uint64), m, site):
                self.store("local" if name == "param" else name, inner, values, size, mask, site)
            return
        index = offset // size
        for k, value in enumerate(values):
            view[index + k] = _pick(value, lanes)

    def _note_written(self, offset: Array, size: int, count: int, lanes: Array | None, site: int) -> None:
        machine = self.machine
        if not len(machine.heap.written) or not len(offset):
            return
        # The checker of races sees the store too, and knows whether something orders it after another CTA's.
        cta = machine.cta_linear[_pick(self.cta, lanes)] if machine.global_races is None else None
        clashes, at, here, there = machine.heap.mark_written(offset, size, count, cta)
        if clashes:
            name = machine.heap.locate(at)
            machine.findings.add("CB524", site, clashes, buffer=name, cta=here, other_cta=there)

    def _global_access(
        self, kind: str, offset: Array, nbytes: int, lanes: Array | None, site: int, fresh: Fresh | None = None
    ) -> None:
        if self.machine.observer is not None and len(offset):
            self.machine.observer.access(self, kind, offset, nbytes, lanes, site)
        races = self.machine.global_races
        if races is not None and len(offset):
            row, lane = self.who(lanes)
            more = () if fresh is None else (fresh,)
            getattr(races, kind)(self.machine, offset, nbytes, row, lane, site, *more)

    def _local_offsets(self, address: Array, nbytes: int, m: Array | None, site: int) -> Chosen:
        machine = self.machine
        lanes = self.lanes_of(m)
        offset = _pick(address, lanes).astype(np.int64)
        ok = (offset >= 0) & (offset + nbytes <= machine.local_size) & ((offset & (nbytes - 1)) == 0)
        if not ok.all():
            first = f"{int(offset[~ok][0])} of local memory ({machine.local_size} bytes)"
            access = access_name(machine.code[site])
            machine.findings.add("CB526", site, int((~ok).sum()), access=access, address=first)
            lanes, offset = (np.flatnonzero(ok) if lanes is None else lanes[ok]), offset[ok]
        return lanes, offset + _pick(self.gid, lanes) * machine.local_size

    # -- checkers
    def _shadow_read(self, offset: Array, nbytes: int, lanes: Array | None, site: int) -> None:
        shadow = self.machine.shadow
        if shadow is not None and len(offset):
            cells = shadow.cells(offset, nbytes)
            shadow.read(cells, *self.who(lanes), site)

    def _shadow_write(self, offset: Array, nbytes: int, lanes: Array | None, site: int) -> None:
        shadow = self.machine.shadow
        if shadow is not None and len(offset):
            cells = shadow.cells(offset, nbytes)
            shadow.store(cells, *self.who(lanes), site)

    def _bank(self, offset: Array, nbytes: int, lanes: Array | None, site: int) -> None:
        if self.samples:
            if lanes is not None:
                every = np.full(self.count, -1, np.int64)
                every[lanes] = offset
                offset = every
            self.machine.counts.bank(site, offset.reshape(-1, 32)[self.sampled], nbytes)

    # -- atomics
    def atomic(
        self, space: str, op: str, address: Array, values: list[Array], halves: str, m: Array | None, site: int
    ) -> Array:
        """Read-modify-write, one lane after the other; returns the old values. 128 bits are given as ``V16``."""
        size = values[0].dtype.itemsize
        machine = self.machine
        if space == "generic":
            result = np.zeros(self.count, values[0].dtype)
            for name, inner, mask in self._spaces(address.astype(np.uint64), m, site):
                old = self.atomic(name, op, inner, values, halves, mask, site)
                result = old if mask is None else np.where(mask, old, result)
            return result
        if space == "shared":
            lanes, offset = self._shared_offsets(address, size, m, site)
            self._bank(offset, size, lanes, site)
            shadow = machine.shadow
            if shadow is not None and len(offset):
                cells = shadow.cells(offset, size)
                row, lane = self.who(lanes)
                shadow.read(cells, row, lane, site)
                shadow.store(cells, row, lane, site)
            view = machine.shared_view(min(size, 8))
        else:
            lanes, offset = self._global_offsets(address, size, m, site, True)
            if len(machine.heap.written) and len(offset):
                machine.heap.written[offset[:, None] + np.arange(size)] = 0xFF
            self._global_access("atomic", offset, size, lanes, site)
            view = machine.heap.view(min(size, 8))
        machine.counts.moved(f"{space} write", site, len(offset), size)
        view = view.view(values[0].dtype)
        index = offset // size
        function = _ATOMIC[op]
        operands = [_pick(v, lanes) for v in values]
        old = np.empty(len(index), view.dtype)
        for k, at in enumerate(index.tolist()):
            old[k] = view[at]
            if halves:
                pair = (arith.up(x, halves) for x in (view[at : at + 1], operands[0][k : k + 1]))
                view[at] = arith.down(_HALF_ATOMIC[op](*pair), halves)[0]
            else:
                view[at] = function(view[at], *(o[k] for o in operands))
        if lanes is None:
            return old
        result = np.zeros(self.count, old.dtype)
        result[lanes] = old
        return result

    def aligned(self, address: Array, nbytes: int, m: Array | None, site: int) -> None:
        """Check the alignment of an access whose parts are executed one by one."""
        chosen = _pick(address, self.lanes_of(m)).astype(np.int64)
        if (chosen & (nbytes - 1)).any():
            self._misaligned(None, chosen & (WINDOW - 1), nbytes, site, "global")

    # -- matrices in shared memory
    def ldmatrix(self, space: str, address: Array, count: int, transposed: bool, m: Array | None, site: int) -> Array:
        """`count` 8x8 matrices of 16-bit elements; lanes 8i..8i+7 give the rows of matrix i.

        -> (count, lanes) uint32.
        """
        self.whole(m, site)
        machine = self.machine
        if space == "generic":
            address = address - np.uint64(SHARED_BASE)
        rows_of = None if count == 4 else self.lane < 8 * count
        mask = rows_of if m is None else m if rows_of is None else m & rows_of
        lanes, offset = self._shared_offsets(address, 16, mask, site)
        self._shadow_read(offset, 16, lanes, site)
        self._bank(offset, 16, lanes, site)
        machine.counts.moved("shared read", site, len(offset), 16)
        rows = machine.shared_view(4).reshape(-1, 4)[offset >> 4]
        if lanes is not None:
            every = np.zeros((self.count, 4), np.uint32)
            every[lanes] = rows
            rows = every
        matrices = rows.reshape(-1, 4, 8, 4)  # warp, matrix, row, word
        if transposed:
            halves = matrices.view(np.uint16).transpose(0, 1, 3, 2)
            matrices = np.ascontiguousarray(halves).view(np.uint32)
        return np.ascontiguousarray(matrices.reshape(-1, 4, 32).transpose(1, 0, 2)).reshape(4, -1)[:count]

    def stmatrix(
        self, space: str, address: Array, values: list[Array], transposed: bool, m: Array | None, site: int
    ) -> None:
        """The inverse of ``ldmatrix``."""
        self.whole(m, site)
        machine = self.machine
        count = len(values)
        if space == "generic":
            address = address - np.uint64(SHARED_BASE)
        stack = np.zeros((4, self.count), np.uint32)
        stack[:count] = values
        matrices = np.ascontiguousarray(stack.reshape(4, -1, 8, 4).transpose(1, 0, 2, 3))
        if transposed:
            matrices = np.ascontiguousarray(matrices.view(np.uint16).transpose(0, 1, 3, 2)).view(np.uint32)
        rows = matrices.reshape(-1, 4)
        given = self.lane < 8 * count
        lanes, offset = self._shared_offsets(address, 16, given if m is None else m & given, site)
        self._shadow_write(offset, 16, lanes, site)
        self._bank(offset, 16, lanes, site)
        machine.counts.moved("shared write", site, len(offset), 16)
        machine.shared_view(4).reshape(-1, 4)[offset >> 4] = _pick(rows, lanes)


def _wrap_inc(old: Any, limit: Any) -> Any:
    return type(old)(0) if old >= limit else old + type(old)(1)


def _wrap_dec(old: Any, limit: Any) -> Any:
    return limit if old == 0 or old > limit else old - type(old)(1)


_ATOMIC: dict[str, Any] = {
    "add": lambda old, x: old + x,
    "min": lambda old, x: min(old, x),
    "max": lambda old, x: max(old, x),
    "and": lambda old, x: old & x,
    "or": lambda old, x: old | x,
    "xor": lambda old, x: old ^ x,
    "exch": lambda _old, x: x,
    "cas": lambda old, compare, x: x if old == compare else old,
    "inc": _wrap_inc,
    "dec": _wrap_dec,
}
_HALF_ATOMIC: dict[str, Any] = {"add": np.add, "min": np.fmin, "max": np.fmax}
