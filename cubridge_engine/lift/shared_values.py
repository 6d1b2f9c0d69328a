"""Values that threads stored to shared memory themselves: who wrote what a read finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from . import conditions
from .addresses import Ints, MemoryError_, split_uniform
from .trace import MemoryStore
from .values import Store, Value

Owner: TypeAlias = tuple[list[MemoryStore], Ints, Ints]


@dataclass(frozen=True, slots=True)
class Left:
    """What the trips of a loop leave at the addresses ``[low, low + len(element))``: for each byte which element of a
    state, and whose. `entering` and `leaving` stand for the elements at the beginning of a trip and behind the loop.
    """

    low: int
    epochs: tuple[int, int]
    element: Ints
    thread: Ints
    entering: list[MemoryStore]
    leaving: list[MemoryStore]


class SharedValues:
    """`stores` are the stores of computed values, in program order; `trips` the epochs of each loop's one trip."""

    def __init__(self, store: Store, threads: int, stores: list[MemoryStore], trips: list[tuple[int, int]]) -> None:
        self.store = store
        self.threads = threads
        self.stores = stores
        self.trips = trips
        self.states: list[Left] = []
        self._owners: dict[int, tuple[Ints, Ints, int]] = {}

    def owner(self, address: Value, epoch: int) -> Owner | None:
        """For shared values stored by threads: per thread, the index of the store event and the thread that wrote the
        address.

        Stores before `epoch` in program order, the latest first; None when the address was never written this way.
        Raises MemoryError_.
        """
        numbers, uniform = split_uniform(self.store, address)
        if uniform != 0 or not self.stores:
            return None
        if epoch not in self._owners:
            self._owners[epoch] = self._owner_table(epoch)
        event_at, thread_at, base = self._owners[epoch]
        where = numbers - base
        if int(where.min()) < 0 or int(where.max()) >= len(event_at):
            return None
        events, threads = event_at[where], thread_at[where]
        if int(events.min()) < 0:
            return None
        stores = self.stores
        for left in self.states:
            stores, events, threads = self._state(left, epoch, numbers, (stores, events, threads))
        if self._carried(epoch, numbers, events):
            raise MemoryError_("a value that an earlier trip of the loop may have left in shared memory")
        return stores, events, threads

    def _state(self, left: Left, epoch: int, numbers: Ints, found: Owner) -> Owner:
        """`found`, with what it has from before a trip (or from the loop that is over) as elements of the state."""
        stores, events, threads = found
        first, last = left.epochs
        where = numbers - left.low
        mine = (where >= 0) & (where < len(left.element)) & (events < len(self.stores))
        written = np.array([self.stores[at].epoch if at < len(self.stores) else last for at in events])
        if first <= epoch < last:
            mine &= written <= first
        elif epoch >= last:
            mine &= (written > first) & (written <= last)
        else:
            return found
        if not mine.any():
            return found
        values = left.entering if epoch < last else left.leaving
        events, threads = events.copy(), threads.copy()
        events[mine] = len(stores) + left.element[where[mine]]
        threads[mine] = left.thread[where[mine]]
        return [*stores, *values], events, threads

    def _carried(self, epoch: int, numbers: Ints, events: Ints) -> bool:
        """True when a read inside a loop may find what an earlier trip has stored: its value is then not the one
        that was stored before the loop.
        """
        for first, last in self.trips:
            if not first <= epoch < last:
                continue
            early = numbers[[at < len(self.stores) and self.stores[int(at)].epoch <= first for at in events]]
            if not len(early):
                continue
            for event in self.stores:
                if epoch < event.epoch <= last:
                    written = self.store.poly(event.ptr.offset).terms.get((), 0)
                    low, high = int(np.min(np.asarray(written))), int(np.max(np.asarray(written))) + event.size
                    if low <= int(early.max()) and int(early.min()) < high:
                        return True
        return False

    def _owner_table(self, epoch: int) -> tuple[Ints, Ints, int]:
        placed: list[tuple[int, Ints, NDArray[np.bool_], int]] = []
        for at, event in enumerate(self.stores):
            if event.epoch > epoch:
                continue
            try:
                numbers, uniform = split_uniform(self.store, event.ptr.offset)
            except MemoryError_:
                continue
            if uniform != 0:
                continue
            active = np.ones(self.threads, dtype=bool)
            for p in event.predicates:
                known = conditions.per_thread(self.store, p)
                if known is not None:
                    active &= known
            placed.append((at, numbers, active, event.size))
        if not placed:
            return np.full(1, -1, dtype=np.int64), np.full(1, -1, dtype=np.int64), 0
        base = min(int(n.min()) for _, n, _, _ in placed)
        end = max(int(n.max()) + size for _, n, _, size in placed)
        event_at, thread_at = np.full(end - base, -1, dtype=np.int64), np.full(end - base, -1, dtype=np.int64)
        threads = np.arange(self.threads)
        for at, numbers, active, size in placed:
            for k in range(size):
                event_at[numbers[active] - base + k] = at
                thread_at[numbers[active] - base + k] = threads[active]
        return event_at, thread_at, base
