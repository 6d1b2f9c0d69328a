"""What a block has started and not waited for: copies on mbarriers, products of wgmma."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .trace import BoxGroup
from .values import NotUnderstood, Ptr, Store, Value

Register = tuple[int, Any]  # variable and element


@dataclass(slots=True)
class InFlight:
    """The copies announced on each mbarrier, the address of the first one, and the accumulators of running products."""

    announced: dict[Any, BoxGroup] = field(default_factory=dict[Any, BoxGroup])
    first: int | None = None
    products: dict[Register, tuple[Ptr, Value]] = field(default_factory=dict[Register, tuple[Ptr, Value]])
    open: list[Register] = field(default_factory=list[Register])
    groups: list[list[Register]] = field(default_factory=list[list[Register]])

    def number(self, store: Store, address: Value) -> Value:
        """The number of the mbarrier at a shared address: 0 for the first that is used."""
        if self.first is None:
            numbers = store.poly(address).terms.get((), 0)
            if not isinstance(numbers, int):
                raise NotUnderstood("an mbarrier whose address differs from thread to thread")
            self.first = numbers
        return store.divide(store.add(address, self.first, -1), 8, floor=True)

    def start(self, target: Ptr, value: Value) -> None:
        """An accumulator is being computed."""
        register = _register(target)
        self.products[register] = (target, value)
        self.open.append(register)

    def running(self, target: Ptr) -> Value:
        """What a running product will leave in an accumulator; None where none does."""
        found = self.products.get(_register(target))
        return found[1] if found is not None else None

    def commit(self) -> None:
        """wgmma.commit_group."""
        self.groups.append(self.open)
        self.open = []

    def finish(self, pending: int) -> list[tuple[Ptr, Value]]:
        """wgmma.wait_group: the accumulators of all groups but the newest `pending`, and what is in them now."""
        count = max(len(self.groups) - pending, 0)
        done, self.groups = self.groups[:count], self.groups[count:]
        later = {register for group in (*self.groups, self.open) for register in group}
        registers = dict.fromkeys(register for group in done for register in group if register not in later)
        return [self.products.pop(register) for register in registers if register in self.products]


def _register(target: Ptr) -> Register:
    return target.root.oid, target.offset
