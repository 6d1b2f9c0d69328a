"""Loops that read memory until someone else writes it: flags between CTAs, locks, counters of a split reduction.

A lane that takes the closing branch of such a loop sleeps, so that others run: lanes of its CTA, other CTAs of the
batch, and later batches of the launch. It is woken when the memory it read has changed, or when its own registers
differ from those of its last round (it counts, or sleeps longer each time). When no lane can be woken and nothing else
moves, what it waits for never comes: that is a finding with the place that nobody writes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .flow import Flow, is_wait
from .model import Instruction

if TYPE_CHECKING:
    from .machine import Machine

Array = NDArray[Any]
NOWHERE = -1
MAX_BYTES = 16
IDLE_ROUNDS = 256  # with the memory unchanged, after which a launch that is stopped for its steps is taken for a spin
_STRONG = ("volatile", "relaxed", "acquire", "acq_rel", "cv", "mmio")
_MATRIX = ("mma", "wmma", "wgmma", "cp")


@dataclass(frozen=True, slots=True)
class SpinLoops:
    """The loops of a kernel that may wait for memory.

    `edges`: index of a closing branch -> block it goes back to. `polls`: index of a read in such a loop -> its number.
    `of`: closing branch -> its reads.
    """

    edges: dict[int, int] = field(default_factory=dict[int, int])
    polls: dict[int, int] = field(default_factory=dict[int, int])
    of: dict[int, list[int]] = field(default_factory=dict[int, list[int]])


def spin_loops(flow: Flow) -> SpinLoops:
    """Loops with a read that the compiler may not hoist, and without matrix products, copies and mbarrier waits."""
    edges: dict[int, int] = {}
    of: dict[int, list[int]] = {}
    for block in flow.blocks:
        last = flow.code[block.stop - 1]
        for head in block.successors:
            if last.parts[0] != "bra" or head > block.index:
                continue
            body = _loop(flow, block.index, head)
            sites = [i for n in body for i in range(flow.blocks[n].start, flow.blocks[n].stop)]
            code = [flow.code[i] for i in sites]
            if any(ins.parts[0] in _MATRIX or is_wait(ins) for ins in code):
                continue
            found = [i for i in sites if _polls(flow.code[i])]
            if found:
                edges[block.stop - 1] = head
                of[block.stop - 1] = found
    polls = sorted({site for found in of.values() for site in found})
    return SpinLoops(edges, {site: number for number, site in enumerate(polls)}, of)


def _loop(flow: Flow, tail: int, head: int) -> set[int]:
    """Blocks from which `tail` is reached without passing `head`, and `head`."""
    before: dict[int, list[int]] = {}
    for block in flow.blocks:
        for successor in block.successors:
            before.setdefault(successor, []).append(block.index)
    body, work = {head}, [tail]
    while work:
        here = work.pop()
        if here not in body:
            body.add(here)
            work += before.get(here, [])
    return body


def _polls(ins: Instruction) -> bool:
    if ins.parts[0] == "atom":
        return True
    return ins.parts[0] == "ld" and ins.has(*_STRONG) and ins.space in ("", "global", "shared")


class Spins:
    """The sleeping lanes of a batch: what they read last, and the registers they had."""

    def __init__(self, machine: Machine, loops: SpinLoops) -> None:
        self.machine, self.loops = machine, loops
        shape = (len(loops.polls), machine.lanes)
        self.at = np.full(machine.lanes, -1, np.int64)  # the closing branch a lane sleeps at
        self.place = np.full(shape, NOWHERE, np.int64)  # global: byte of the heap; shared: behind it
        self.size = np.zeros(shape, np.int64)
        self.value = np.zeros((*shape, MAX_BYTES), np.uint8)
        self.state = np.zeros(machine.lanes, np.uint64)
        self.known = np.full(machine.lanes, -1, np.int64)  # the branch at which `state` was taken
        self.recent = np.zeros((2, 0), np.int64)  # lanes woken last, and where they slept
        self.idle = 0  # rounds in a row in which no memory had changed
        self.last = True

    def begin(self, last: bool) -> None:
        """A run of the batch starts; it is the `last` one when no other batch can write what is waited for."""
        self.last, self.idle = last, 0

    def any_asleep(self) -> bool:
        """True when a lane sleeps."""
        return bool(self.loops.edges) and bool((self.at >= 0).any())

    def polled(self, gid: Array, offset: Array, cta: Array, nbytes: int, site: int) -> None:
        """Note what lanes have just read: byte `offset` of the shared memory of `cta`, or of the heap (`cta` -1)."""
        row, heap, size = self.loops.polls[site], self.machine.heap.size, self.machine.shared_size
        ok = (offset >= 0) & (offset + nbytes <= np.where(cta >= 0, size, heap))
        place = np.where(cta >= 0, heap + cta * size + offset, offset)
        self.place[row, gid] = np.where(ok, place, NOWHERE)
        self.size[row, gid] = nbytes
        self.value[row, gid] = self._now(self.place[row, gid])

    def _now(self, place: Array) -> Array:
        """The bytes that are at places now: (places, 16)."""
        machine = self.machine
        heap, shared = machine.heap.data, machine.shared_view(1)
        index = np.maximum(place, 0)[:, None] + np.arange(MAX_BYTES)
        in_heap = heap[np.minimum(index, len(heap) - 1)]
        in_shared = shared[np.clip(index - len(heap), 0, len(shared) - 1)]
        return np.where((place < len(heap))[:, None], in_heap, in_shared)

    def sleep(self, gid: Array, site: int) -> None:
        """Lanes go back to the head of their loop."""
        self.at[gid] = site
        self.machine.wait(gid, site)

    def asleep(self) -> Array:
        """The sleeping lanes."""
        return np.flatnonzero(self.at >= 0)

    def wake(self) -> bool:
        """Wake the lanes for which another round may end otherwise; False when there is none."""
        if not self.loops.edges:
            return False
        gid = self.asleep()
        if not len(gid):
            return False
        changed = self._memory_changed(gid)
        self.idle = 0 if changed.any() else self.idle + 1
        if self.idle > IDLE_ROUNDS and not self.last:
            return False  # other batches first
        chosen = gid[changed | self._registers_changed(gid)]
        if not len(chosen):
            return False
        self.recent = np.stack([chosen, self.at[chosen]])
        self.at[chosen] = -1
        self.machine.wake(chosen)
        return True

    def _memory_changed(self, gid: Array) -> Array:
        changed = np.zeros(len(gid), bool)
        for row in range(len(self.place)):
            place = self.place[row, gid]
            counted = np.arange(MAX_BYTES) < self.size[row, gid][:, None]
            differs = ((self._now(place) != self.value[row, gid]) & counted).any(1)
            # What was read elsewhere (local memory, outside) is not followed: its readers are never left asleep.
            changed |= differs | ((place == NOWHERE) & (self.size[row, gid] > 0))
        return changed

    def _registers_changed(self, gid: Array) -> Array:
        before, where = self.state[gid].copy(), self.known[gid].copy()
        for engine in self.machine.engines:
            mine = np.flatnonzero(self.at[engine.lanes.gid] >= 0)
            lanes = engine.lanes.gid[mine]
            for site in np.unique(self.at[lanes]).tolist():
                here = mine[self.at[lanes] == site]
                self.state[engine.lanes.gid[here]] = self._digest(engine.registers, here, site)
        self.known[gid] = self.at[gid]
        return (self.state[gid] != before) | (where != self.at[gid])

    def _digest(self, registers: list[Any], lanes: Array, site: int) -> Array:
        """One number per lane for the registers that live at the head of its loop."""
        unit, flow = self.machine.launch.kernel.unit, self.machine.launch.kernel.flow
        digest = np.zeros(len(lanes), np.uint64)
        for name in sorted(flow.blocks[self.loops.edges[site]].live_in):
            value = np.asarray(registers[unit.slots[name]])
            part = value[lanes] if value.ndim else np.full(len(lanes), value)
            if part.dtype != bool:
                part = part.view(f"u{part.dtype.itemsize}")
            digest = (digest ^ part.astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
            digest ^= digest >> np.uint64(29)
        return digest

    def report(self, steps: int = 0) -> bool:
        """A finding for every loop in which lanes sleep for ever; False when there is none.

        With `steps`, the launch is stopped for its length: lanes count that did nothing else for many rounds.
        """
        gid = self.asleep()
        sites = self.at[gid]
        if steps:
            gid, sites = self.recent if self.idle > IDLE_ROUNDS else self.recent[:, :0]
        for site in np.unique(sites).tolist():
            here = gid[sites == site]
            polls = [p for p in self.loops.of[site] if self.place[self.loops.polls[p], here[0]] != NOWHERE]
            poll = polls[-1] if polls else site
            where = self._name(int(self.place[self.loops.polls[poll], here[0]])) if polls else "memory"
            why = f"it is the same after {steps} steps of the scheduler" if steps else "all other threads wait or ended"
            self.machine.findings.add("CB542", poll, len(here), threads=len(here), where=where, why=why)
        return len(gid) > 0

    def _name(self, place: int) -> str:
        """A place in words."""
        machine = self.machine
        if place < machine.heap.size:
            return machine.heap.locate(place)
        cta, offset = divmod(place - machine.heap.size, machine.shared_size)
        index = tuple(machine.cta_index[cta].tolist())
        return f"{machine.launch.kernel.name_shared(offset)} of CTA {index}"
