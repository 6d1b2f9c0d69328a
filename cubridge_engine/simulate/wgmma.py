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
from .bulk import BulkOps
from .emit import SHARED_START
from .tensormap import swizzle

Array = NDArray[Any]
WARPGROUP = 128
_SPAN = {0: 0, 1: 128, 2: 64, 3: 32}  # descriptor's swizzle field -> bytes
ELEMENT_BYTES = {"f16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "s8": 1, "u8": 1}


@dataclass(slots=True)
class OperandRead:
    """Operand reads of one wgmma in flight, one row per warp."""

    gid: Array
    group: Array
    row: Array
    cells: Array


class WgmmaOps(BulkOps):
    """The methods generated code calls for wgmma."""

    def _field(self, descriptor: Array, shift: int) -> Array:
        return ((descriptor >> np.uint64(shift)) & np.uint64(0x3FFF)).astype(np.int64) << 4

    def _chunks(
        self, descriptor: Array, active: Array, extent: int, k: int, mn_major: bool, kind: str, site: int
    ) -> Array:
        """Indices of the 16-byte rows of shared memory that hold an operand: (warpgroups, rows, chunks)."""
        machine = self.machine
        lead = descriptor.reshape(-1, WARPGROUP)[:, 0]
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

    def _operand(
        self, descriptor: Array, active: Array, extent: int, k: int, mn_major: bool, kind: str, site: int
    ) -> tuple[Array, Array]:
        """(warpgroups, extent, K) float32, and the 16-byte rows it came from, (warpgroups, rows, chunks)."""
        rows = self._chunks(descriptor, active, extent, k, mn_major, kind, site)
        words = self.machine.shared_view(4).reshape(-1, 4)[rows].reshape(*rows.shape[:2], -1)
        values = fragments.elements(words.reshape(-1, words.shape[-1]), kind)
        values = values.reshape(*rows.shape[:2], -1)
        return (values.transpose(0, 2, 1) if mn_major else values), rows

    def wgmma(
        self, a: Any, b: Array, shape: tuple[int, int], a_kind: str, b_kind: str, d: list[Any], d_kind: str,
        keep: Array, signs: tuple[int, int], major: tuple[bool, bool], m: Array | None, site: int,
    ) -> list[Array]:  # fmt: skip
        """D = A B (+ D where `keep`): `a` is a descriptor per lane or a list of fragment registers."""
        self.whole(m, site)
        machine = self.machine
        n, k = shape
        if self.count % WARPGROUP:
            machine.findings.add("CB529", site, 1, problem="it is executed by less than a warpgroup")
            return [self.full(x) for x in d]
        mask = self.active(m).reshape(-1, WARPGROUP)
        active: Array = np.asarray(mask.any(1))
        if (active != mask.all(1)).any():
            machine.findings.add("CB529", site, 1, problem="it is executed by a part of the warpgroup")
        if not active.any():
            return [self.full(x) for x in d]
        own: list[Array] | None = None
        if isinstance(a, list):
            left = fragments.operand_a(a, a_kind).reshape(-1, 64, k)
        else:
            left, rows = self._operand(a, active, 64, k, major[0], a_kind, site)
            own = np.split(rows, 4, axis=2 if major[0] else 1)  # a warp reads its 16 rows of A
        right, rows = self._operand(b, active, n, k, major[1], b_kind, site)
        common = rows.reshape(len(rows), -1)
        parts = [common] * 4
        if own is not None:
            parts = [np.concatenate([o.reshape(len(o), -1), common], axis=1) for o in own]
        self._hold_operands(np.stack(parts, axis=1), active, site)
        product = np.matmul(left, right.transpose(0, 2, 1)) * np.float32(signs[0] * signs[1])
        return self._accumulate(product, n, d, d_kind, keep)

    def _hold_operands(self, rows: Array, active: Array, site: int) -> None:
        """Note what each of the four warps reads: `rows` (warpgroups, 4, n).

        A warp may be late, whatever the others do.
        """
        machine, shadow = self.machine, self.machine.shadow
        machine.counts.bytes["shared read"] += rows[active].size * 4
        if shadow is None:
            return
        lead = (np.arange(0, self.count, WARPGROUP)[active][:, None] + np.arange(0, WARPGROUP, 32)).ravel()
        cells = shadow.cells(rows[active].ravel() * 16, 16).reshape(len(lead), -1)
        shadow.hold(cells, self.row[lead], self.lane[lead], site)
        gid = self.gid[lead]
        machine.operands.append(OperandRead(gid, machine.wgmma_group[gid], self.row[lead], cells))

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
                shadow.release(read.cells[done], read.row[done])
            if not done.all():
                rest = ~done
                keep.append(OperandRead(read.gid[rest], read.group[rest], read.row[rest], read.cells[rest]))
        machine.operands = keep
