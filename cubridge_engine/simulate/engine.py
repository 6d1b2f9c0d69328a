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

    def step(self) -> bool:
        """Execute one block; False when no lane can run."""
        machine = self.machine
        blocked = machine.blocked[self.lanes.gid] if machine.any_blocked else None
        if blocked is not None and not blocked.any():
            blocked = None
        if self.uniform is not None and blocked is None:
            if self.uniform == EXIT:
                return False
            self._run_all(self.uniform)
            return True
        if self.uniform is not None:
            self.pc[:] = self.uniform
            self.uniform = None
        ready = self.pc != EXIT
        if blocked is not None:
            ready &= ~blocked
        if not ready.any():
            return False
        block = int(self.pc[ready].min())
        mask = ready & (self.pc == block)
        if mask.all():
            self._run_all(block)
            return True
        warps = mask.reshape(-1, 32).any(1)
        if self.kernel.has_wgmma and lanes_in_groups(self.lanes.count):
            warps = np.repeat(warps.reshape(-1, WARPGROUP // 32).any(1), WARPGROUP // 32)
        share = float(warps.mean())
        machine.executed[block] += (int(mask.sum()), int(warps.sum()))
        if share < SPARSE:
            self._run_some(block, mask, warps)
        else:
            result = self.kernel.function(block, True)(self.registers, mask, self.lanes)
            self._go(result, mask)
        return True

    def _run_all(self, block: int) -> None:
        self.machine.executed[block] += (self.lanes.count, self.lanes.count // 32)
        result = self.kernel.function(block, False)(self.registers, None, self.lanes)
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
        spec = self.kernel.flow.blocks[block]
        slots = self.kernel.unit.slots
        part: list[Any] = [None] * len(self.registers)
        needed = spec.live_in if inner is None else spec.live_in | (spec.live_out & spec.written)
        for name in needed:
            value = self.registers[slots[name]]
            part[slots[name]] = value[index] if np.ndim(value) else value
        result = self.kernel.function(block, inner is not None)(part, inner, lanes)
        for name in spec.live_out & spec.written:
            slot = slots[name]
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
