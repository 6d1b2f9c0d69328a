"""wgmma: matrix products of a warpgroup (128 lanes) with operands in shared memory, described by 64-bit descriptors.

A descriptor holds (in units of 16 bytes) the start address (bits 0-13), the leading and the stride byte offset (16-29,
32-45), a base offset (49-51) and the swizzle (62-63). With 16-byte chunks of T elements, and s = 1, 2, 4, 8 chunks for
no, 32, 64 and 128-byte swizzle, chunk addresses before the swizzle are

    K-major:  row r, chunk c of K      (r % 8) * 16 s + (r / 8) * SBO + c * (16, or LBO without swizzle)
    MN-major: chunk c of MN, row k     (c % s) * 16 + (c / s) * L + (k % 8) * 16 s + (k / 8) * S

where (L, S) is (LBO, SBO), but (SBO, LBO) without swizzle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import arith, fragments
from .distributed import ClusterOps
from .emit import SHARED_START
from .shadow import Shadow
from .tensormap import swizzle

Array = NDArray[Any]
WARPGROUP = 128
REGION_BYTES = 1 << 25
RELEASED = np.int64(-1)  # no entry is
_SPAN = {0: 0, 1: 128, 2: 64, 3: 32}  # descriptor's swizzle field -> bytes
ELEMENT_BYTES = {"f16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "s8": 1, "u8": 1}


@dataclass(slots=True)
class OperandRead:
    """Reads of one operand of a wgmma in flight by warps (..., 4): `cells` of all four of a warpgroup, or of each."""

    gid: Array  # (warpgroups, 4)
    group: Array
    row: Array
    cells: Array  # (warpgroups, n) when common, else (warpgroups, 4, n)
    noted: Array  # RELEASED where the warp has waited

    def part(self, keep: Array) -> OperandRead:
        """The warpgroups of a mask."""
        return OperandRead(self.gid[keep], self.group[keep], self.row[keep], self.cells[keep], self.noted[keep])

    def release(self, done: Array, shadow: Shadow) -> None:
        """The operand may be overwritten, as far as the warps of a mask are concerned."""
        noted = np.where(done, self.noted, RELEASED)
        if self.cells.ndim == 2:
            shadow.release_shared(self.cells, self.row, noted)
        else:
            shadow.release(self.cells.reshape(self.row.size, -1), self.row.ravel(), noted.ravel())
        self.noted = np.where(done, RELEASED, self.noted)


@dataclass(frozen=True, slots=True)
class Region:
    """An operand in shared memory: 16-byte `rows` (warpgroups, rows, chunks), and which warps read which granules."""

    rows: Array
    nbytes: int  # of all warpgroups that execute the instruction; the arrays below are of these
    gid: Array  # (warpgroups, 4): the first lane of each warp, its row, its number in the warp
    row: Array
    lane: Array
    cells: Array | None  # as in OperandRead


Part = tuple[Any, Array, Array, int]


class WgmmaOps(ClusterOps):
    """The methods generated code calls for wgmma."""

    def _field(self, descriptor: Array, shift: int) -> Array:
        return ((descriptor >> np.uint64(shift)) & np.uint64(0x3FFF)).astype(np.int64) << 4

    def _chunks(self, lead: Array, active: Array, extent: int, k: int, mn_major: bool, kind: str, site: int) -> Array:
        """Indices of the 16-byte rows of shared memory that hold an operand: (warpgroups, rows, chunks)."""
        machine = self.machine
        lead = np.where(active, lead, lead[active][0])
        start, leading, stride = (self._field(lead, shift) for shift in (0, 16, 32))
        spans = np.unique(lead >> np.uint64(62))
        span = _SPAN[int(spans[0])]
        if len(spans) > 1 or (lead >> np.uint64(49) & np.uint64(7)).any():
            machine.findings.add("CB529", site, 1, problem="descriptors with a base offset, or of mixed swizzles")
        unit = max(span // 16, 1)
        leading, stride, start = leading[:, None, None], stride[:, None, None], start[:, None, None]
        per_chunk = 16 // ELEMENT_BYTES[kind]
        if not mn_major:
            r = np.arange(extent)[:, None]
            c = np.arange(k // per_chunk)[None]
            relative = r % 8 * 16 * unit + (r // 8)[None] * stride + (c * 16 if span else c * leading)
        else:
            r = np.arange(k)[:, None]
            c = np.arange(extent // per_chunk)[None]
            outer, deep = (leading, stride) if span else (stride, leading)
            relative = (c % unit) * 16 + (c // unit)[None] * outer + r % 8 * 16 * unit + (r // 8)[None] * deep
        offset = swizzle(start + relative, span) - SHARED_START
        outside = (offset < 0) | (offset + 16 > machine.shared_limit)
        if outside[active].any():
            first = int(offset[active][outside[active]][0])
            machine.findings.add(
                "CB515", site, int(outside[active].sum()), access="a wgmma operand read", bytes=16, address=first,
                size=machine.shared_limit,
            )  # fmt: skip
        offset = np.clip(offset, 0, machine.shared_size - 16)
        base = self.cta[::WARPGROUP] * machine.shared_size
        return (offset + base[:, None, None]) >> 4

    def _region(
        self, descriptor: Array, active: Array, extent: int, k: int, mn_major: bool, kind: str, own: bool, site: int
    ) -> Region:
        """The rows of an operand; where `own`, a warp reads its quarter of them. Kept: descriptors recur in a loop."""
        machine, shadow = self.machine, self.machine.shadow
        lead = descriptor.reshape(-1, WARPGROUP)[:, 0]
        key = (lead.tobytes(), active.tobytes(), extent, k, mn_major, kind, own)
        found = self.regions.get(key)
        if found is not None:
            return found
        rows = self._chunks(lead, active, extent, k, mn_major, kind, site)
        parts = np.stack(np.split(rows, 4, axis=2 if mn_major else 1), axis=1) if own else rows[:, None]
        parts = parts[active].reshape(int(active.sum()), parts.shape[1], -1)
        first = np.arange(0, self.count, WARPGROUP)[active][:, None] + np.arange(0, WARPGROUP, 32)
        cells = None
        if shadow is not None:
            cells = shadow.cells(parts.ravel() * 16, 16).reshape(*parts.shape[:2], -1)
            if not own:  # quads of neighbouring warps need their number to be a multiple of four
                cells = cells[:, 0] if shadow.warps % 4 == 0 else np.repeat(cells, 4, axis=1)
        region = Region(rows, parts.size * 16, self.gid[first], self.row[first], self.lane[first], cells)
        if not machine.findings:  # what is wrong is reported each time
            if len(self.regions) * rows.nbytes > REGION_BYTES:
                self.regions.clear()
            self.regions[key] = region
        return region

    def _values(self, regions: list[Region], mn_major: bool, kind: str) -> Array:
        """Operands behind each other in K: (warpgroups, extent, K) float32."""
        rows = [region.rows for region in regions]
        every = rows[0] if len(rows) == 1 else np.concatenate(rows, axis=1 if mn_major else 2)
        words = self.machine.shared_view(4).reshape(-1, 4)[every].reshape(*every.shape[:2], -1)
        values = fragments.elements(words.reshape(-1, words.shape[-1]), kind)
        values = values.reshape(*every.shape[:2], -1)
        return values.transpose(0, 2, 1) if mn_major else values

    def wgmma(
        self, parts: list[Part], shape: tuple[int, int], kinds: tuple[str, str, str], d: list[Any],
        signs: tuple[int, int], major: tuple[bool, bool], m: Array | None,
    ) -> list[Array]:  # fmt: skip
        """D = A B (+ D where `keep`) of products that follow each other on the same registers.

        Each part is (a, b, keep, site): `a` a descriptor per lane or a list of fragment registers, `b` a descriptor.
        `kinds` are those of D, A and B. What is summed in float32 anyway is multiplied at once.
        """
        runs: list[list[Part]] = []
        for part in parts:
            joins = bool(runs) and kinds[0] == "f32" and bool(part[2].all())
            runs[-1].append(part) if joins else runs.append([part])
        for run in runs:
            active = self._groups(m, [part[3] for part in run])
            if active is None:
                return [self.full(x) for x in d]
            product = self._product(run, shape, kinds, major, active)
            d = self._accumulate(product * np.float32(signs[0] * signs[1]), shape[0], d, kinds[0], run[0][2])
        return d

    def _groups(self, m: Array | None, sites: list[int]) -> Array | None:
        """Which warpgroups execute the instructions; None when there is nothing to do."""
        for site in sites:
            self.whole(m, site)
        if self.count % WARPGROUP:
            problem = "it is executed by less than a warpgroup"
        else:
            mask = self.active(m).reshape(-1, WARPGROUP)
            active: Array = np.asarray(mask.any(1))
            if (active == mask.all(1)).all():
                return active if active.any() else None
            problem = "it is executed by a part of the warpgroup"
        for site in sites:
            self.machine.findings.add("CB529", site, 1, problem=problem)
        return None

    def _product(
        self, run: list[Part], shape: tuple[int, int], kinds: tuple[str, str, str], major: tuple[bool, bool],
        active: Array,
    ) -> Array:  # fmt: skip
        """(warpgroups, 64, N) float32; the operands are noted as being read."""
        n, k = shape
        _, a_kind, b_kind = kinds
        lefts: list[Region] = []
        rights: list[Region] = []
        for a, b, _, site in run:
            if not isinstance(a, list):
                lefts.append(self._region(a, active, 64, k, major[0], a_kind, True, site))
                self._hold(lefts[-1], site)
            rights.append(self._region(b, active, n, k, major[1], b_kind, False, site))
            self._hold(rights[-1], site)
        if lefts:
            left = self._values(lefts, major[0], a_kind)
        else:
            left = fragments.operand_a([r for part in run for r in part[0]], a_kind).reshape(-1, 64, k * len(run))
        return np.matmul(left, self._values(rights, major[1], b_kind).transpose(0, 2, 1))

    def _hold(self, region: Region, site: int) -> None:
        """Note what the warps read. Each by itself: one may be late, whatever the others do."""
        machine, shadow = self.machine, self.machine.shadow
        machine.counts.moved("shared read", site, region.nbytes // 16, 16)
        if shadow is None or region.cells is None:
            return
        group = machine.wgmma_group[region.gid]
        if region.cells.ndim == 2:
            noted = shadow.hold_shared(region.cells, region.row, region.lane, site, group)
        else:
            each = region.cells.reshape(region.row.size, -1)
            noted = shadow.hold(each, region.row.ravel(), region.lane.ravel(), site, group.ravel())
            noted = noted.reshape(region.row.shape)
        machine.operands.append(OperandRead(region.gid, group, region.row, region.cells, noted))

    def _accumulate(self, product: Array, n: int, d: list[Any], d_kind: str, keep: Array) -> list[Array]:
        # register nb * 4 + half * 2 + e of lane (g, t) of warp w: row 16 w + 8 half + g, column 8 nb + 2 t + e
        x = product.reshape(-1, 4, 2, 8, n // 8, 4, 2).transpose(4, 2, 6, 0, 1, 3, 5)
        x = np.ascontiguousarray(x).reshape(n // 2, -1)
        if d_kind == "f16":
            old = np.stack([arith.up(self.full(r), "f16x2") for r in d]).reshape(n // 2, -1)
            total = x + np.where(keep, old, np.float32(0))
            bits = arith.f16_bits(total)
            return [arith.pack(bits[2 * i], bits[2 * i + 1]) for i in range(n // 4)]
        if d_kind == "s32":
            x = x.astype(np.int64).astype(np.int32)
        if not keep.any():
            return list(x)
        if keep.all():
            return [x[i] + d[i] for i in range(n // 2)]
        return [x[i] + np.where(keep, d[i], x.dtype.type(0)) for i in range(n // 2)]

    def wgmma_commit(self, m: Array | None) -> None:
        """Close the wgmma group of each lane."""
        self.machine.wgmma_group[self.gid if m is None else self.gid[m]] += 1

    def wgmma_wait(self, left: int, m: Array | None) -> None:
        """Wait until at most `left` groups are in flight: their operands may be overwritten."""
        machine, shadow = self.machine, self.machine.shadow
        if shadow is None or not machine.operands:
            return
        waiting = np.zeros(machine.lanes, bool)
        waiting[self.gid if m is None else self.gid[m]] = True
        keep: list[OperandRead] = []
        for read in machine.operands:
            done = waiting[read.gid] & (read.group < machine.wgmma_group[read.gid] - left)
            if done.any():
                read.release(done, shadow)
            open_: Array = np.asarray((read.noted != RELEASED).any(1))
            if open_.any():
                keep.append(read if open_.all() else read.part(open_))
        machine.operands = keep
