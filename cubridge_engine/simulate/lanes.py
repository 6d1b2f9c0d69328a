"""The lanes a block is executed for: identities, special registers, and the instructions of a warp."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from . import fragments

if TYPE_CHECKING:
    from .machine import Machine

Array = NDArray[Any]
FULL_WARP = np.uint32(0xFFFFFFFF)

# Special registers the simulator knows; those of time and place are 0.
SPECIALS = frozenset(
    {f"%{name}.{axis}" for name in ("tid", "ntid", "ctaid", "nctaid") for axis in "xyz"}
    | {f"%{name}.{axis}" for name in ("cluster_ctaid", "cluster_nctaid", "clusterid", "nclusterid") for axis in "xyz"}
    | {"%laneid", "%warpid", "%nwarpid", "%cluster_ctarank", "%cluster_nctarank", "%is_explicit_cluster"}
    | {f"%lanemask_{c}" for c in ("eq", "lt", "le", "gt", "ge")}
    | {
        "%clock",
        "%clock_hi",
        "%clock64",
        "%globaltimer",
        "%globaltimer_lo",
        "%globaltimer_hi",
        "%smid",
        "%nsmid",
        "%gridid",
    }
    | {"%dynamic_smem_size", "%total_smem_size", "%aggr_smem_size"}
)


class LaneState:
    """A set of whole warps of a batch of CTAs: 32 consecutive lanes each. Every array has one value per lane."""

    def __init__(self, machine: Machine, cta: Array, warp: Array) -> None:
        self.machine = machine
        self.cta = np.repeat(cta, 32)  # index in the batch
        self.warp = np.repeat(warp, 32)
        self.lane = np.tile(np.arange(32), len(cta))
        self.count = len(self.cta)
        self.row = self.cta * machine.warps + self.warp
        self.gid = self.row * 32 + self.lane  # identity in the batch
        self.warp_row = cta * machine.warps + warp  # per warp
        # The last CTA of the first batch: in a causal kernel it goes over more tiles than the first.
        self.sampled = cta == machine.ctas - 1 if machine.sample else np.zeros(len(cta), bool)
        self.shared_base = self.cta * machine.shared_size
        self.samples = bool(self.sampled.any())
        self._special: dict[str, Any] = {}
        self._subsets: dict[bytes, Any] = {}
        self._mask: Array | None = None  # the last one that lanes were chosen by
        self._taken: Array | None = None
        self._who: tuple[Array, Array] | None = None
        self.regions: dict[tuple[object, ...], Any] = {}  # operands of wgmma by their descriptors

    def subset(self, warps: Array) -> tuple[Any, Array]:
        """The lanes of some of the warps (mask over warps), and their indices."""
        key = warps.tobytes()
        found = self._subsets.get(key)
        if found is None:
            if len(self._subsets) > 64:
                self._subsets.clear()
            chosen = np.flatnonzero(warps)
            index = (chosen[:, None] * 32 + np.arange(32)).ravel()
            found = (type(self)(self.machine, self.cta[::32][chosen], self.warp[::32][chosen]), index)
            self._subsets[key] = found
        return found

    def observe(self, site: int, result: int, value: Any, m: Array | None) -> None:
        """Tell the observer."""
        observer = self.machine.observer
        assert observer is not None, "generated only for a launch that has one"
        observer.value(self, site, result, value, m)

    def multiplied(self, sites: tuple[int, ...], a: Array, b: Array, m: Array | None) -> None:
        """Tell an observer of products: A [warps, M, K] and B [warps, K, N], which may be several of each side by side
        (``sites``: those on the first N columns come first).
        """
        tell = self.machine.tell_product
        if tell is not None:
            tell(self, sites, a, b, m)

    def full(self, x: Any) -> Array:
        """One value per lane."""
        return x if isinstance(x, np.ndarray) and x.ndim else np.full(self.count, x)

    def active(self, m: Array | None) -> Array:
        """The mask as an array."""
        return np.ones(self.count, bool) if m is None else m

    def lanes_of(self, m: Array | None) -> Array | None:
        """Indices of the lanes of a mask, None for all. Many instructions have the same one, and none is written to."""
        if m is None:
            return None
        if self._mask is not m:
            self._mask, self._taken, self._who = m, np.flatnonzero(m), None
        return self._taken

    def who(self, lanes: Array | None) -> tuple[Array, Array]:
        """Row and lane of some lanes: the same arrays as before for those of the last mask."""
        if lanes is None:
            return self.row, self.lane
        if lanes is not self._taken:
            return self.row[lanes], self.lane[lanes]
        if self._who is None:
            self._who = self.row[lanes], self.lane[lanes]
        return self._who

    def per_warp(self, x: Any) -> Array:
        """(warps, 32)."""
        return self.full(x).reshape(-1, 32)

    def param(self, offset: int, dtype: Any) -> Any:
        """A kernel parameter as a scalar."""
        size = np.dtype(dtype).itemsize
        return self.machine.params[offset : offset + size].view(dtype)[0]

    def symbol(self, name: str, offset: int) -> Any:
        """The address of a module variable."""
        return np.uint64(self.machine.symbol_address[name] + offset)

    def special(self, name: str) -> Any:
        """A special register, uint32."""
        found = self._special.get(name)
        if found is None:
            found = self._special[name] = self._make_special(name)
        return found

    def _make_special(self, name: str) -> Any:
        m = self.machine
        stem, _, axis = name[1:].partition(".")
        i = "xyz".index(axis) if axis else 0
        thread = self.warp * 32 + self.lane
        x, y, _ = m.block
        tid = (thread % x, thread // x % y, thread // (x * y))
        cx, cy, cz = m.cluster
        in_cluster = (m.cta_index[:, 0] % cx, m.cta_index[:, 1] % cy, m.cta_index[:, 2] % cz)
        mask = np.uint64(1) << self.lane.astype(np.uint64)
        values: dict[str, Any] = {
            "tid": tid[i],
            "ntid": m.block[i],
            "ctaid": m.cta_index[self.cta, i],
            "nctaid": m.grid[i],
            "laneid": self.lane,
            "warpid": self.warp,
            "nwarpid": m.warps,
            "cluster_ctaid": in_cluster[i][self.cta],
            "cluster_nctaid": m.cluster[i],
            "clusterid": m.cta_index[self.cta, i] // m.cluster[i],
            "nclusterid": m.grid[i] // m.cluster[i],
            "cluster_ctarank": (in_cluster[0] + cx * (in_cluster[1] + cy * in_cluster[2]))[self.cta],
            "cluster_nctarank": cx * cy * cz,
            "is_explicit_cluster": int(cx * cy * cz > 1),
            "lanemask_eq": mask,
            "lanemask_lt": mask - np.uint64(1),
            "lanemask_le": 2 * mask - np.uint64(1),
            "lanemask_gt": np.uint64(2**32) - 2 * mask,
            "lanemask_ge": np.uint64(2**32) - mask,
            "dynamic_smem_size": m.dynamic_shared,
            "total_smem_size": m.shared_size,
            "aggr_smem_size": m.shared_size,
        }
        value = values.get(stem, 0)
        return value.astype(np.uint32) if isinstance(value, np.ndarray) else np.uint32(value)

    def warp_bits(self, m: Array | None) -> Array:
        """The executing lanes of each warp as a bit mask, uint32 per warp."""
        if m is None:
            return np.full(self.count // 32, FULL_WARP)
        return np.packbits(m.reshape(-1, 32), axis=1, bitorder="little").view("<u4").ravel()

    def members(self, named: Array, m: Array | None, site: int) -> None:
        """Check that the lanes a warp instruction names execute it, and that it names those which do."""
        executing = self.warp_bits(m)
        per_warp = named.reshape(-1, 32)
        first = per_warp[:, 0] if m is None else np.where(m.reshape(-1, 32), per_warp, 0).max(1)
        bad = (first & ~executing) != 0
        if bad.any():
            w = int(np.flatnonzero(bad)[0])
            self.machine.findings.add(
                "CB521", site, int(bad.sum()), opcode=self.machine.code[site].op,
                mask=f"0x{int(first[w]):08x}", active=f"0x{int(executing[w]):08x}",
            )  # fmt: skip
        if (first != FULL_WARP).any():
            self.named_themselves(named, m, site)

    def named_themselves(self, named: Array, m: Array | None, site: int) -> None:
        """Check that every executing lane is in its own mask: halves of a warp may each name themselves."""
        left_out = named.reshape(-1) >> self.lane.astype(np.uint32) & np.uint32(1) == 0
        left_out = left_out if m is None else left_out & m
        if left_out.any():
            at = int(np.flatnonzero(left_out)[0])
            self.machine.findings.add(
                "CB541", site, int(left_out.sum()), opcode=self.machine.code[site].op, lane=at % 32,
                mask=f"0x{int(named.reshape(-1)[at]):08x}",
            )  # fmt: skip

    def whole(self, m: Array | None, site: int) -> None:
        """Check an ``.aligned`` instruction: all lanes of a warp, or none."""
        if m is not None:
            executing = self.warp_bits(m)
            bad = (executing != 0) & (executing != FULL_WARP)
            if bad.any():
                w = int(np.flatnonzero(bad)[0])
                self.machine.findings.add(
                    "CB521", site, int(bad.sum()), opcode=self.machine.code[site].op,
                    mask="0xffffffff", active=f"0x{int(executing[w]):08x}",
                )  # fmt: skip


class WarpOps(LaneState):
    """shfl, vote, match, redux, elect, mma: what the lanes of a warp do together."""

    def shfl(
        self, mode: str, a: Array, b: Array, c: Array, named: Array, m: Array | None, site: int
    ) -> tuple[Array, Array]:
        """The value of another lane, and whether that lane was in range."""
        self.members(named, m, site)
        if self.machine.shadow is not None:
            whole = (self.active(m) & (named == np.uint32(0xFFFFFFFF))).reshape(-1, 32).all(1)
            self.machine.shadow.gather(self.warp_row[whole])
        lane = self.lane
        clamp = (c & np.uint32(31)).astype(np.int64)
        segment = ((c >> np.uint32(8)) & np.uint32(31)).astype(np.int64)
        amount = (b & np.uint32(31)).astype(np.int64)
        low = lane & segment
        high = low | (clamp & ~segment)
        if mode == "up":
            source = lane - amount
            ok = source >= high
        else:
            source = {"down": lane + amount, "bfly": lane ^ amount, "idx": low | (amount & ~segment)}[mode]
            ok = source <= high
        source = np.where(ok, source, lane)
        return a[np.arange(self.count) - lane + source], ok

    def vote(self, mode: str, p: Array, named: Array, m: Array | None, site: int) -> Array:
        """all, any, uni: a predicate; ballot: the mask."""
        self.members(named, m, site)
        chosen = self._chosen(named, m)
        p = p.reshape(-1, 32)
        if mode == "ballot":
            bits = np.packbits(p & chosen, axis=1, bitorder="little").view("<u4").ravel()
            return np.repeat(bits.astype(np.uint32), 32)
        every = (p | ~chosen).all(1)
        some = (p & chosen).any(1)
        return np.repeat({"all": every, "any": some, "uni": every | ~some}[mode], 32)

    def _chosen(self, named: Array, m: Array | None) -> Array:
        bits = ((named >> self.lane.astype(np.uint32)) & np.uint32(1)).astype(bool)
        return (bits if m is None else bits & m).reshape(-1, 32)

    def match(self, mode: str, value: Array, named: Array, m: Array | None, site: int) -> tuple[Array, Array]:
        """The lanes with the same value (any), or all lanes when they agree (all)."""
        self.members(named, m, site)
        chosen = self._chosen(named, m)
        v = value.reshape(-1, 32)
        equal = (v[:, :, None] == v[:, None, :]) & chosen[:, None, :]
        bits = np.packbits(equal, axis=2, bitorder="little").view("<u4")[..., 0]
        if mode == "any":
            return bits.ravel().astype(np.uint32), np.ones(self.count, bool)
        wanted = np.packbits(chosen, axis=1, bitorder="little").view("<u4").ravel()
        agree = np.repeat(np.where(chosen, bits == wanted[:, None], True).all(1), 32)
        return np.where(agree, np.repeat(wanted, 32), 0).astype(np.uint32), agree

    def redux(self, op: str, value: Array, named: Array, m: Array | None, site: int) -> Array:
        """A reduction over the named lanes."""
        self.members(named, m, site)
        chosen = self._chosen(named, m)
        v = value.reshape(-1, 32)
        info = np.iinfo(v.dtype)
        neutral, function = {
            "add": (0, np.add), "min": (info.max, np.minimum), "max": (info.min, np.maximum),
            "and": (-1 if info.min else info.max, np.bitwise_and), "or": (0, np.bitwise_or), "xor": (0, np.bitwise_xor),
        }[op]  # fmt: skip
        total = function.reduce(np.where(chosen, v, v.dtype.type(neutral)), axis=1, dtype=v.dtype)
        return np.repeat(total, 32)

    def active_mask(self, m: Array | None) -> Array:
        """The executing lanes of the warp."""
        return np.repeat(self.warp_bits(m).astype(np.uint32), 32)

    def elect(self, named: Array, m: Array | None, site: int) -> tuple[Array, Array]:
        """The lowest named lane, and whether this lane is it."""
        self.members(named, m, site)
        chosen = self._chosen(named, m)
        leader = np.repeat(chosen.argmax(1), 32)
        return leader.astype(np.uint32), (self.lane == leader) & chosen.ravel()

    # -- tensor cores
    def fragment(self, which: str, registers: list[Array], kind: str) -> Array:
        """Registers of operand A or B -> one matrix per warp."""
        return (fragments.operand_a if which == "A" else fragments.operand_b)(registers, kind)

    def sparse_fragment(
        self, registers: list[Array], kind: str, metadata: Array, selector: int, k: int, m: Array | None, site: int
    ) -> Array:
        """Registers and metadata of a 2:4 sparse operand A -> one dense matrix per warp."""
        dense, wrong = fragments.sparse_a(registers, kind, metadata, selector, k)
        wrong = np.any(wrong, axis=2) & np.any(self.active(m).reshape(-1, 32), axis=1, keepdims=True)
        if wrong.any():
            warp, row = (int(x[0]) for x in np.nonzero(wrong))
            lane = row % 8 * 4 + (selector if k == 16 else 2 * selector)
            self.machine.findings.add(
                "CB544", site, int(wrong.sum()), opcode=self.machine.code[site].op,
                metadata=f"0x{int(metadata[32 * warp + lane]):08x}", lane=lane,
            )  # fmt: skip
        return dense

    def mma(
        self, a: Array, b: Array, c: list[Any], result: str, addend: str, m: Array | None, site: int,
        saturate: bool = False,
    ) -> list[Array]:  # fmt: skip
        """D = A B + C for m16n8: registers of D. The products are exact; sums are float32 in BLAS order."""
        self.whole(m, site)
        self.multiplied((site,), a, b, m)
        d = fragments.accumulator(np.matmul(a, b))
        if addend == "s32":
            whole = d.astype(np.int64)
            totals = [whole[i] + c[i] for i in range(4)]
            return [fragments.arith.clamp(t, np.int32) if saturate else t.astype(np.int32) for t in totals]
        if addend == "f32":
            values = [d[i] + c[i] for i in range(4)]
        else:
            halves = [fragments.arith.up(self.full(x), "f16x2") for x in c]
            values = [d[i] + halves[i // 2][i % 2] for i in range(4)]
        if result == "f32":
            return values
        bits = fragments.arith.f16_bits
        return [fragments.arith.pack(bits(values[2 * i]), bits(values[2 * i + 1])) for i in (0, 1)]

    def products(
        self, a: list[Array], b: list[Array], c: list[Any], kind: str, m: Array | None, sites: tuple[int, ...]
    ) -> list[Array]:
        """Sums of m16n8 products, all with the same operands A: `b` and `c` hold the registers of one after the other.

        Float32: registers of D, as `c`.
        """
        for site in sites if m is not None else ():
            self.whole(m, site)
        left, right = fragments.operand_a(a, kind), fragments.operands_b(b, kind, len(c) // 4)
        self.multiplied(sites, left, right, m)
        d = fragments.accumulators(np.matmul(left, right))
        return [x + old for x, old in zip(d, c, strict=True)]

    def movmatrix(self, x: Array, m: Array | None, site: int) -> Array:
        """The transpose of an 8x8 matrix of 16-bit elements held one row per four lanes."""
        self.whole(m, site)
        halves = np.ascontiguousarray(x).view(np.uint16).reshape(-1, 8, 8)
        return np.ascontiguousarray(halves.transpose(0, 2, 1)).view(np.uint32).ravel()

    def wmma(
        self, a: list[Array], b: list[Array], c: list[Array], shape: tuple[int, int, int], kind: str, result: str,
        addend: str, m: Array | None, site: int,
    ) -> list[Array]:  # fmt: skip
        """D = A B + C on opaque fragments (see ``fragments.wmma_element``)."""
        self.whole(m, site)
        left, right = self._wmma_matrix(a, shape, "a", kind), self._wmma_matrix(b, shape, "b", kind)
        self.multiplied((site,), left, right, m)
        product = np.matmul(left, right)
        if result == "s32":
            product = product.astype(np.int64)  # whole numbers, exact
        total = product + self._wmma_matrix(c, shape, "c", addend)
        each = total[0].size // 32
        values = np.ascontiguousarray(total.reshape(-1, each).T)  # (each, lanes)
        if result == "f32":
            return [v.view(np.uint32) for v in values]
        if result == "s32":
            return [v.astype(np.int32).view(np.uint32) for v in values]
        bits = [fragments.arith.f16_bits(v) for v in values]
        return [fragments.arith.pack(bits[2 * i], bits[2 * i + 1]) for i in range(each // 2)]

    def _wmma_matrix(self, registers: list[Array], shape: tuple[int, int, int], which: str, kind: str) -> Array:
        rows, columns = fragments.wmma_extent(shape, which)
        each = rows * columns // 32
        stack = np.stack(registers)
        plain = {"f32": np.float32, "s32": np.int32}.get(kind)
        x = stack.view(plain)[..., None] if plain else fragments.elements(stack, kind)
        lanes = x.transpose(1, 0, 2).reshape(self.count, -1)[:, :each]
        return np.ascontiguousarray(lanes).reshape(-1, rows, columns)
