"""Runs the blocks of a set of warps: all lanes together while they agree, else those at the lowest block first.

Compilers lay code out so that the lowest block is where lanes that went apart meet again. When few warps are at that
block, it is executed for these warps alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .flow import EXIT
from .wgmma import WARPGROUP, WgmmaOps

if TYPE_CHECKING:
    from .machine import Machine

Array = NDArray[Any]
NOWHERE = 1 << 30  # the place of lanes none of which can run
SPARSE = 0.6  # below this share of the warps, their registers are gathered and the block runs on them


class LaneOps(WgmmaOps):
    """Everything generated code calls."""


def lanes_in_groups(count: int) -> bool:
    """True when the lanes are whole warpgroups."""
    return count % WARPGROUP == 0


class Engine:
    """Warps of all CTAs of the batch with their registers and program counters (block indices)."""

    def __init__(self, machine: Machine, lanes: LaneOps) -> None:
        self.machine = machine
        self.lanes = lanes
        self.kernel = machine.launch.kernel
        self.observed = machine.observer is not None
        self.registers: list[Any] = list(self.kernel.initial)
        self.pc = np.zeros(lanes.count, np.int32)
        self.uniform: int | None = 0
        idle = lanes.lane >= machine.warp_threads[lanes.warp]
        if idle.any():
            self.pc[idle] = EXIT
            self.uniform = None

    def alive(self) -> int:
        """Lanes that have not ended."""
        if self.uniform is not None:
            return 0 if self.uniform == EXIT else self.lanes.count
        return int((self.pc != EXIT).sum())

    def site(self) -> int:
        """The instruction a running lane is at."""
        block = self.uniform if self.uniform is not None else int(self.pc.max())
        return self.kernel.flow.blocks[max(block, 0)].start

    def _blocked(self) -> Array | None:
        """The lanes that wait, None when no lane does."""
        if not self.machine.any_blocked:
            return None
        blocked = self.machine.blocked[self.lanes.gid]
        return blocked if blocked.any() else None

    def place(self) -> int:
        """The lowest block that a lane could execute now, or ``NOWHERE``."""
        blocked = self._blocked()
        if self.uniform is not None and blocked is None:
            return NOWHERE if self.uniform == EXIT else self.uniform
        choice = self._choice(blocked)
        return NOWHERE if choice is None else choice[0]

    def _choice(self, blocked: Array | None) -> tuple[int, Array] | None:
        """The lowest block that lanes can execute now, and these lanes: not those that must wait for their warp."""
        if self.uniform is not None:
            self.pc[:] = self.uniform
            self.uniform = None
        ready = self.pc != EXIT
        if blocked is not None:
            ready &= ~blocked
        while ready.any():
            block = int(self.pc[ready].min())
            here = ready & (self.pc == block)
            named = self.kernel.together[block] if self.machine.patient else ()
            mask = here & ~np.repeat(self._lacking(named, here), 32) if named else here
            if self.machine.patient and self.kernel.grouped[block] and lanes_in_groups(self.lanes.count):
                mask &= ~self._scattered(mask)
            if mask.any():
                return block, mask
            ready &= ~here
        return None

    def _lacking(self, named: tuple[int | str, ...], here: Array) -> Array:
        """Which warps have lanes that the others name and that are still elsewhere."""
        elsewhere = self.lanes.warp_bits((self.pc != EXIT) & ~here)
        lacking = np.zeros(len(elsewhere), bool)
        for mask in named:
            bits: Any = mask
            if isinstance(mask, str):
                value = np.broadcast_to(self.registers[self.kernel.unit.slots[mask]], here.shape)
                bits = np.where(here, value, 0).reshape(-1, 32).max(1)
            lacking |= (elsewhere & np.uint32(bits)) != 0
        return lacking

    def _scattered(self, here: Array) -> Array:
        """The lanes of warpgroups that have lanes elsewhere."""
        elsewhere = ((self.pc != EXIT) & ~here).reshape(-1, WARPGROUP).any(1)
        return np.repeat(elsewhere, WARPGROUP)

    def step(self) -> bool:
        """Execute one block; False when no lane can run."""
        machine = self.machine
        blocked = self._blocked()
        if self.uniform is not None and blocked is None:
            if self.uniform == EXIT:
                return False
            self._run_all(self.uniform)
            return True
        choice = self._choice(blocked)
        if choice is None:
            return False
        block, mask = choice
        if mask.all():
            self._run_all(block)
            return True
        warps: Array = np.asarray(mask.reshape(-1, 32).any(1))
        if self.kernel.has_wgmma and lanes_in_groups(self.lanes.count):
            warps = np.repeat(warps.reshape(-1, WARPGROUP // 32).any(1), WARPGROUP // 32)
        share = float(warps.mean())
        machine.executed[block] += (int(mask.sum()), int(warps.sum()))
        if share < SPARSE:
            self._run_some(block, mask, warps)
        else:
            result = self.kernel.function(block, True, self.observed)(self.registers, mask, self.lanes)
            self._go(result, mask)
        return True

    def _run_all(self, block: int) -> None:
        self.machine.executed[block] += (self.lanes.count, self.lanes.count // 32)
        result = self.kernel.function(block, False, self.observed)(self.registers, None, self.lanes)
        if isinstance(result, int):
            self.uniform = result
        elif isinstance(result, tuple):
            predicate, taken, other = result
            every = bool(np.all(predicate))
            if every or not np.any(predicate):
                self.uniform = taken if every else other
            else:
                self.uniform = None
                self.pc[:] = np.where(predicate, taken, other)
        else:
            self.uniform = None
            self.pc[:] = result

    def _run_some(self, block: int, mask: Array, warps: Array) -> None:
        lanes, index = self.lanes.subset(warps)
        chosen = mask[index]
        inner = None if chosen.all() else chosen
        read, written = self.kernel.live_slots(block)
        part: list[Any] = [None] * len(self.registers)
        for slot in read if inner is None else {*read, *written}:
            value = self.registers[slot]
            part[slot] = value[index] if isinstance(value, np.ndarray) and value.ndim else value
        result = self.kernel.function(block, inner is not None, self.observed)(part, inner, lanes)
        for slot in written:
            merged = np.array(self.lanes.full(self.registers[slot]))
            merged[index] = part[slot]
            self.registers[slot] = merged
        if isinstance(result, tuple):
            predicate, taken, other = result
            result = np.where(predicate, taken, other)
        where = index if inner is None else index[inner]
        target = np.asarray(result)
        self.pc[where] = target if target.ndim == 0 or inner is None else target[inner]

    def _go(self, result: Any, mask: Array) -> None:
        if isinstance(result, tuple):
            predicate, taken, other = result
            result = np.where(predicate, taken, other)
        target = np.asarray(result)
        self.pc[mask] = target if target.ndim == 0 else target[mask]
