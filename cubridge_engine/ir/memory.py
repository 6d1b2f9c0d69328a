"""Shared memory as CuIR executes it: poison, asynchronous groups, barriers.

Each buffer slot has a state; every access checks it. The two legal extremes of an asynchronous copy are run by
choosing ``async_mode``: *early* lands the data when the copy is issued, *late* when a CpWait covers its group. A
correct program gives the same result in both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .nodes import Alloc, Origin

Array = NDArray[Any]
Report = Callable[..., None]


@dataclass(slots=True)
class Slot:
    """The state of one pipeline stage of a buffer."""

    data: Array
    state: str = "poison"  # poison | inflight | landed | visible
    written_at: Origin | None = None
    read_at: Origin | None = None  # last read since the last barrier


@dataclass(slots=True)
class Pending:
    """An asynchronous copy that has been issued: `group` is None until its commit."""

    buffer: str
    slot: int
    data: Array
    group: int | None = None
    signal: int | None = None  # the mbarrier of a TMA copy, which belongs to no group


@dataclass(slots=True)
class SharedMemory:
    """All shared buffers of a batch of CTAs, shape [batch, rows, cols] per slot."""

    batch: int
    late: bool
    report: Report
    slots: dict[str, list[Slot]] = field(default_factory=dict)
    pending: list[Pending] = field(default_factory=list)
    groups: int = 0

    def allocate(self, op: Alloc) -> None:
        """Poisoned slots."""
        shape = (self.batch, op.rows, op.cols)
        self.slots[op.name] = [Slot(np.full(shape, np.nan)) for _ in range(op.slots)]

    def slot(self, buffer: str, index: int, origin: Origin) -> Slot | None:
        """The slot, or None with a finding when there is no such slot."""
        slots = self.slots[buffer]
        if not 0 <= index < len(slots):
            self.report("CB506", origin, slot=index, buffer=buffer, slots=len(slots))
            return None
        return slots[index]

    def write(
        self, buffer: str, index: int, data: Array, *, is_async: bool, origin: Origin, signal: int | None = None
    ) -> None:
        """A copy into a slot. Overwriting what was read since the last barrier is a race."""
        slot = self.slot(buffer, index, origin)
        if slot is None:
            return
        if slot.read_at is not None:
            self.report("CB501", origin, other=slot.read_at, buffer=buffer)
            slot.read_at = None
        slot.written_at = origin
        if not is_async:
            slot.data, slot.state = data, "landed"
            return
        slot.state = "inflight"
        slot.data = np.full_like(data, np.nan) if self.late else data
        self.pending.append(Pending(buffer, index, data, signal=signal))

    def commit(self) -> None:
        """Close the current group."""
        self.groups += 1
        for copy in self.pending:
            if copy.group is None and copy.signal is None:
                copy.group = self.groups

    def wait(self, pending: int) -> None:
        """All groups but the newest `pending` land."""
        limit = self.groups - pending
        self._land(lambda copy: copy.group is not None and copy.group <= limit, "landed")

    def wait_for(self, signal: int) -> None:
        """What completes on that mbarrier lands; every thread that waits sees it."""
        self._land(lambda copy: copy.signal == signal, "visible")

    def _land(self, due: Callable[[Pending], bool], state: str) -> None:
        rest: list[Pending] = []
        for copy in self.pending:
            if not due(copy):
                rest.append(copy)
                continue
            slot = self.slots[copy.buffer][copy.slot]
            # A later copy into the same slot may still be in flight; the older data then never becomes readable.
            if slot.state == "inflight":
                slot.data = copy.data
                if not any(p.buffer == copy.buffer and p.slot == copy.slot and p is not copy for p in self.pending):
                    slot.state = state
        self.pending = rest

    def barrier(self) -> None:
        """Everything landed becomes visible to all threads; earlier reads are over."""
        for slots in self.slots.values():
            for slot in slots:
                slot.read_at = None
                if slot.state == "landed":
                    slot.state = "visible"

    def read(self, buffer: str, index: int, origin: Origin) -> Array:
        """The slot's data; a finding when it is not readable yet."""
        slot = self.slot(buffer, index, origin)
        if slot is None:
            return np.full_like(self.slots[buffer][0].data, np.nan)
        code = {"poison": "CB503", "inflight": "CB502", "landed": "CB509"}.get(slot.state)
        if code is not None:
            self.report(code, origin, other=slot.written_at, buffer=buffer)
        slot.read_at = origin
        return slot.data
