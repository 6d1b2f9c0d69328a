"""Which elements a kernel multiplies: every product of its execution is checked on inputs whose elements are all
different (`tags`). No layout is assumed: the numbers say what they are.

Q K^T must pair equal columns of Q and K; P V must pair the weight of a key with the row of that key.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..simulate.lanes import LaneState
from ..simulate.model import Instruction, Reg, registers_of
from ..verify.steps_causes import pattern
from ..verify.steps_model import STEPS
from .tags import Elements, Tags
from .weight_keys import MANY, SMALLEST, exchange, row_offset, shifts_of

Array = NDArray[Any]
MOST_WEIGHTS = 400  # products of P and V that are kept
MOST = 600  # executions of an instruction that are looked at
ENOUGH = 0.5  # the share of known numbers that makes an operand one of a tensor


@dataclass(frozen=True, slots=True)
class Mispaired:
    """The first product that pairs elements that do not belong together, at instruction `site`.

    `step` is ``s``, ``pv``, ``k`` or ``v``; `operand` the operand of the instruction (1 or 2) that is at fault where it
    can be said. `where` names one element: row, key and column as far as they are known.
    """

    step: str
    site: int
    operand: int
    cause: str
    pattern: str
    where: dict[str, int]

    def sentence(self) -> str:
        """What is wrong, in one sentence."""
        at = " ".join(f"{name}={value}" for name, value in self.where.items())
        return f"the first wrong step is {STEPS[self.step]} ({self.pattern}{f'; at {at}' if at else ''}): {self.cause}"


@dataclass(frozen=True, slots=True)
class Weights:
    """Numbers that lanes (of the launch) multiply with elements of V, of which `row` and KV `head` are known."""

    site: int
    lanes: Array
    numbers: Array
    row: Array
    head: Array


@dataclass(slots=True)
class Pairs:
    """An observer of a launch: see the module. `logits` [H, Sq, Sk] are natural scores, -inf where masked."""

    code: list[Instruction]
    q: Tags
    k: Tags
    v: Tags
    heads: Array  # the KV head of each head
    logits: Array
    found: Mispaired | None = None
    columns: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))  # by tensor: those multiplied
    sites: dict[str, int] = field(default_factory=dict[str, int])  # by tensor: the last product with it
    keys: set[int] = field(default_factory=set[int])  # multiplied with Q
    weights: list[Weights] = field(default_factory=list["Weights"])
    lane_rows: dict[int, Array] = field(default_factory=dict[int, Array])  # by warp: head and row of each lane, or -1
    _sums: dict[tuple[str, int], tuple[Array, set[int]]] = field(default_factory=dict[tuple[str, int], Any])
    _visits: dict[int, int] = field(default_factory=dict[int, int])
    _rows: dict[int, Array] = field(default_factory=dict[int, Array])  # warp of the launch -> (head, rows) of its A
    _registers: dict[str, Array] = field(default_factory=dict[str, Array])

    # ---- what the simulator calls

    def access(self, lanes: LaneState, kind: str, offset: Array, nbytes: int, chosen: Array | None, site: int) -> None:
        """Not needed here."""

    def product(self, lanes: LaneState, sites: tuple[int, ...], a: Array, b: Array, mask: Array | None) -> None:
        """Products of warps."""
        if self.found is not None:
            return
        width, depth = _shape(self.code[sites[0]])
        chain = a.shape[2] // depth
        active = np.ones(len(a), bool) if mask is None else mask.reshape(-1, 32).all(axis=1)
        warps = (lanes.machine.cta_linear[lanes.cta[::32]].astype(np.int64) << 8) + lanes.warp[::32]
        for number, site in enumerate(sites):
            part, column = number % chain, number // chain
            if self._visit(site) and self.found is None:
                left = a[active, :, part * depth : (part + 1) * depth]
                right = b[active, part * depth : (part + 1) * depth, column * width : (column + 1) * width]
                self._fragments(site, left, right, warps[active])

    def value(self, lanes: LaneState, site: int, result: int, value: Any, mask: Array | None) -> None:
        """Registers, for the products of kernels without tensor cores."""
        if self.found is not None:
            return
        ins = self.code[site]
        if ins.parts[0] in ("fma", "mad") and "f32" in ins.parts and self._visit(site):
            self._scalar(lanes, site, ins, mask)
        names = registers_of(ins.args[0])
        if result < len(names):
            self._registers[names[result]] = lanes.full(value)

    def _note(self, role: str, site: int, columns: Array) -> None:
        self.columns[role].update(np.unique(columns).tolist())
        self.sites[role] = site

    def shifted(self, bc: int) -> Mispaired | None:
        """Rows of V that stand by a number of rows beside the keys of their weights, in the first KV tile."""
        by_lane: dict[int, dict[int, float]] = defaultdict(dict)
        head_of: dict[int, int] = {}
        for w in self.weights:
            for lane, number, row, head in zip(
                w.lanes.tolist(), w.numbers.tolist(), w.row.tolist(), w.head.tolist(), strict=True
            ):
                by_lane[lane].setdefault(row, number)
                head_of[lane] = head
        votes: dict[int, int] = defaultdict(int)
        chosen = [n for n, pairs in by_lane.items() if sum(x > SMALLEST for x in pairs.values()) >= 6][:12]
        for lane in chosen:
            pairs = {row: x for row, x in by_lane[lane].items() if x > SMALLEST and row < bc + 1}
            own = [h for h in range(len(self.heads)) if self.heads[h] == head_of[lane]]
            offset = row_offset(self.logits[own], pairs, bc)
            if offset is not None:
                votes[offset] += 1
        offset = max(votes, key=lambda o: votes[o], default=0)
        if not chosen or offset == 0 or votes[offset] < len(chosen) * 0.75:
            return None
        cause = f"the weight of key j is multiplied by row j {offset:+d} of V"
        return Mispaired("v", self.weights[0].site, 0, cause, "every element", {})

    def missing(self) -> Mispaired | None:
        """Columns that no product of the run had, where all others were."""
        for role, step, tags, name in (("q", "s", self.k, "Q and K"), ("v", "pv", self.v, "V")):
            width, seen = tags.tensor.shape[3], self.columns[role]
            absent = np.array([n not in seen for n in range(width)])
            if seen and absent.any() and not (role == "v" and len(seen) < width // 8):
                words = _places(absent)
                return Mispaired(step, self.sites[role], 2, f"{words} of {name} are never multiplied", words, {})
        return None

    def _lanes(self, ids: Array, rows: Array) -> None:
        """Note which row each lane multiplies; a lane with several has none."""
        for warp in np.unique(ids >> 5).tolist():
            held = self.lane_rows.setdefault(warp, np.full(32, -2))
            at = ids >> 5 == warp
            lanes, own = ids[at] & 31, rows[at]
            held[lanes] = np.where((held[lanes] == -2) | (held[lanes] == own), own, -1)

    def _visit(self, site: int) -> bool:
        self._visits[site] = self._visits.get(site, 0) + 1
        return self._visits[site] <= MOST

    # ---- tensor cores: A [warps, M, K], B [warps, K, N]

    def _fragments(self, site: int, a: Array, b: Array, warps: Array) -> None:
        if not len(a) or not (b != 0).any():
            return
        keys = self.k.find(b)
        if _mostly(keys, b):
            self._scores(site, self.q.find(a), a, keys, warps)
            return
        values = self.v.find(b)
        if _mostly(values, b):
            self._weighted(site, a, values, warps)

    def _scores(self, site: int, q: Elements, a: Array, k: Elements, warps: Array) -> None:
        if not _mostly(q, a):
            return
        self._note("q", site, q.column[q.known])
        left, right = _line(q.column, q.known, axis=1), _line(k.column, k.known, axis=2)
        if right is None:
            self._blame(site, "k", 2, k, _turned("K", k), {})
            return
        if left is None:
            self._blame(site, "q", 1, q, _turned("Q", q), {})
            return
        both = (left >= 0) & (right >= 0)
        wrong = both & (left != right)
        if wrong.any():
            w, at = (int(n) for n in np.argwhere(wrong)[0])
            cause = f"column {int(left[w, at])} of Q is multiplied by column {int(right[w, at])} of K"
            words = _halves(left[w], right[w]) or cause
            self.found = Mispaired("s", site, 2, words, _places(wrong[w]), {"d": int(left[w, at])})
            return
        self.keys.update(np.unique(k.row[k.known]).tolist())
        if not self._heads(site, "k", _first(q.head, q.known), _first(k.head, k.known)):
            return
        keys = _line(k.row, k.known, axis=1)
        if keys is not None and not self._one_sum(site, keys, left, warps):
            return
        for n, warp in enumerate(warps.tolist()):
            rows = np.where(q.known[n].any(axis=1), q.row[n].max(axis=1, where=q.known[n], initial=-1), -1)
            # Of an mma.sync a lane has rows g and g + 8; where a wmma's fragments lie is not said, and what is combined
            # behind it was mostly stored first.
            if len(rows) == 16 and self.code[site].parts[0] == "mma":
                self.lane_rows[warp] = np.repeat(rows[:8], 4)
            self._rows[warp] = np.concatenate([[int(_first(q.head[n : n + 1], q.known[n : n + 1])[0])], rows])

    def _weighted(self, site: int, a: Array, v: Elements, warps: Array) -> None:
        self._note("v", site, v.column[v.known])
        keys, columns = _line(v.row, v.known, axis=2), _line(v.column, v.known, axis=1)
        if keys is None or columns is None:
            self._blame(site, "v", 2, v, _turned("V", v), {})
            return
        for n, warp in enumerate(warps.tolist()):
            rows = self._rows.get(warp)
            if rows is None or len(rows) != a.shape[1] + 1:
                continue
            head = int(rows[0])
            if not self._heads(site, "v", np.array([head]), _first(v.head[n : n + 1], v.known[n : n + 1])):
                return
            shifts = shifts_of(a[n], self.logits[head], rows[1:], keys[n])
            wrong = shifts.wrong
            if not wrong.any():
                continue
            row, at = (int(x) for x in np.argwhere(wrong)[0])
            where = {"i": int(rows[1 + row]), "j": int(keys[n][at])}
            words = pattern(wrong, columns="keys")
            lanes = np.arange(a.shape[2]) % 8 // 2  # of a quad, by column of the fragment
            if int(shifts.judged.sum()) >= MANY and not (shifts.judged & ~shifts.agrees(lanes)).any():
                cause = "the lanes that share a row do not subtract the same maximum"
                self.found = Mispaired("m", site, 1, cause, words, where)
                return
            cause = exchange(a[n], self.logits[head], rows[1:], keys[n])
            if cause:
                self.found = Mispaired("pv", site, 1, cause, words, where)
                return

    def _one_sum(self, site: int, keys: Array, columns: Array, warps: Array) -> bool:
        """The products that are added up are of the same keys, until a column comes again: that is another tile."""
        name = registers_of(self.code[site].args[0])[0]
        for n, warp in enumerate(warps.tolist()):
            before = self._sums.get((name, warp))
            first = int(columns[n].max())
            if before is None or first in before[1]:
                self._sums[name, warp] = keys[n], {first}
                continue
            before[1].add(first)
            wrong = (keys[n] >= 0) & (before[0] >= 0) & (keys[n] != before[0])
            if wrong.any():
                at = int(np.argmax(wrong))
                cause = f"products of key {int(before[0][at])} and of key {int(keys[n][at])} are added up"
                self.found = Mispaired("k", site, 2, cause, _places(wrong), {"j": int(before[0][at])})
                return False
        return True

    def _heads(self, site: int, role: str, q: Array, kv: Array) -> bool:
        known = (q >= 0) & (kv >= 0)
        wrong = known & (self.heads[np.maximum(q, 0)] != kv)
        if not wrong.any():
            return True
        n = int(np.argmax(wrong))
        cause = f"head {int(q[n])} reads KV head {int(kv[n])} instead of {int(self.heads[q[n]])}"
        self.found = Mispaired(role, site, 2, cause, "every element", {"h": int(q[n])})
        return False

    def _blame(self, site: int, role: str, operand: int, held: Elements, cause: str, where: dict[str, int]) -> None:
        w = int(np.argmax(held.known.reshape(len(held.known), -1).sum(axis=1)))
        mixed = held.column if operand == 1 else held.column.transpose(0, 2, 1)
        known = held.known if operand == 1 else held.known.transpose(0, 2, 1)
        wrong = known[w] & (mixed[w] != mixed[w][:1])
        words = pattern(wrong) if wrong.any() else "every element"
        self.found = Mispaired(role, site, operand, cause, words, where)

    # ---- one product per lane

    def _scalar(self, lanes: LaneState, site: int, ins: Instruction, mask: Array | None) -> None:
        held = [self._registers.get(a.name) for a in ins.args[1:3] if isinstance(a, Reg)]
        if len(held) != 2:
            return
        x, y = held
        if x is None or y is None or len(x) != lanes.count or len(y) != lanes.count:
            return
        active = lanes.active(mask)
        x, y = (np.ascontiguousarray(np.broadcast_to(v, active.shape)[active]).view(np.float32) for v in (x, y))
        ids = (lanes.machine.cta_linear[lanes.cta].astype(np.int64) << 10) + lanes.warp * 32 + lanes.lane
        if not self._scalar_pair(site, x, y, ids[active], 2):
            self._scalar_pair(site, y, x, ids[active], 1)

    def _scalar_pair(self, site: int, a: Array, b: Array, ids: Array, operand: int) -> bool:
        """True where (a, b) is a pair of Q and K, or of P and V."""
        k = self.k.find(b)
        if _mostly(k, b):
            q = self.q.find(a)
            if not _mostly(q, a):
                return False
            both = q.known & k.known
            self.keys.update(np.unique(k.row[both]).tolist())
            self._note("q", site, q.column[both])
            wrong = both & (q.column != k.column)
            if wrong.any():
                n = int(np.argmax(wrong))
                cause = f"column {int(q.column[n])} of Q is multiplied by column {int(k.column[n])} of K"
                self.found = Mispaired("s", site, operand, cause, _places(wrong), {"d": int(q.column[n])})
            elif self._heads(site, "k", np.where(both, q.head, -1), np.where(both, k.head, -1)):
                self._lanes(ids[both], (q.head * len(self.logits[0]) + q.row)[both])
            return True
        v = self.v.find(b)
        if not _mostly(v, b):
            return False
        self._note("v", site, v.column[v.known])
        if len(self.weights) < MOST_WEIGHTS:
            self.weights.append(Weights(site, ids[v.known], a[v.known], v.row[v.known], v.head[v.known]))
        return True


def _shape(ins: Instruction) -> tuple[int, int]:
    """(N, K) of an mma or wmma: ``m16n8k16``."""
    for part in ins.parts:
        if part.startswith("m") and "n" in part and "k" in part and part[1].isdigit():
            n, k = part.split("n")[1].split("k")
            return int(n), int(k)
    return 8, 16


def _mostly(held: Elements, values: Array) -> bool:
    there = values != 0
    return bool(there.any()) and float(held.known.sum()) >= ENOUGH * float(there.sum())


def _line(index: Array, known: Array, axis: int) -> Array | None:
    """The index along K of a fragment, -1 where it is unknown; None where it is not one for all rows (or columns)."""
    high = index.max(axis=axis, where=known, initial=-1)
    low = index.min(axis=axis, where=known, initial=1 << 30)
    return None if bool(((high != low) & (high >= 0)).any()) else high


def _first(index: Array, known: Array) -> Array:
    """The index at the first known element of each warp, -1 where there is none."""
    flat, seen = index.reshape(len(index), -1), known.reshape(len(index), -1)
    at = seen.argmax(axis=1)
    return np.where(seen.any(axis=1), flat[np.arange(len(flat)), at], -1)


def _turned(name: str, held: Elements) -> str:
    """Why an operand has no one index along K: it is transposed in its 8x8 blocks, or mixes rows."""
    w = int(np.argmax(held.known.reshape(len(held.known), -1).sum(axis=1)))
    row, column, known = (x[w, :8, :8] for x in (held.row, held.column, held.known))
    # Along K, axis 0 of K and V and axis 1 of Q, it is the column of Q and K and the row of V that changes.
    still, moving = (column, row) if name == "V" else (row, column)
    deep = 1 if name == "Q" else 0
    if known.all() and _constant(moving, deep) and _constant(still, 1 - deep):
        return f"the fragment of {name} is transposed in its 8x8 blocks (ldmatrix with or without .trans)"
    return f"the fragment of {name} mixes rows or columns: its address or swizzle is not that of the store"


def _constant(index: Array, axis: int) -> bool:
    return bool((index == np.take(index, [0], axis=axis)).all())


def _halves(left: Array, right: Array) -> str:
    """Two halves of a fragment that are exchanged, or one that is there twice."""
    half = len(left) // 2
    if half and bool((left[:half] == right[half:]).all() and (left[half:] == right[:half]).all()):
        return "the two halves of the B fragment are exchanged"
    if half and bool((right[:half] == right[half:]).all()):
        return "the B fragment holds the same half twice"
    if half and bool((left[:half] == left[half:]).all()):
        return "the A fragment holds the same half twice"
    return ""


def _places(wrong: Array) -> str:
    return pattern(wrong, rows="columns")
