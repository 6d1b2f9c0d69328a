"""What symbolic execution records: events in program order, nested in loops and uniform conditions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .values import Cells, Node, Ptr, Value


@dataclass(frozen=True, slots=True)
class Place:
    """Byte ranges of an event: `site` in the kernel's own body, `callee` inside the inlined function (None in the
    body itself). `where` is the place to show: as `callee`, but for inline PTX the call in the kernel's phase.
    """

    site: tuple[int, int]
    callee: tuple[int, int] | None = None
    where: tuple[int, int] | None = field(default=None, compare=False)


@dataclass(slots=True)
class Event:
    """Base of the events. `order` is the position in program order."""

    order: int
    place: Place


@dataclass(slots=True)
class Assign(Event):
    """A local variable's element gets a value. `version` is the node by which later values refer to it."""

    cells: Cells
    index: int
    value: Value
    version: Node
    inner: Place | None = None  # the assignment itself, when `place` is the divergent `if` around it


@dataclass(slots=True)
class MemoryStore(Event):
    """Shared or global memory gets `value` (`size` bytes at `ptr`), where all of `predicates` hold."""

    ptr: Ptr
    size: int
    value: Value
    predicates: tuple[Value, ...]
    epoch: int


@dataclass(slots=True)
class AsyncCopy(Event):
    """cp.async: `size` bytes from global to shared memory, of which `live` are read and the rest zeros."""

    shared: Value
    ptr: Ptr
    size: int
    live: Value
    predicates: tuple[Value, ...]
    epoch: int


@dataclass(slots=True)
class BoxGroup:
    """The bytes that an mbarrier was told to expect, and how many TMA copies bring them."""

    size: int
    copies: int = 0


@dataclass(slots=True)
class BoxCopy(AsyncCopy):
    """A TMA copy of a box of 64 columns, started by one thread; `ptr` is its first element. The row count of the map
    bounds its rows, `stride` is that of a row, `signal` the number of the mbarrier that it completes on.
    """

    row: Value
    stride: Value
    rows: Value
    group: BoxGroup
    signal: Value


@dataclass(slots=True)
class Sync(Event):
    """commit | wait | barrier. `pending` is the argument of wait_group, `signal` the mbarrier of a wait for one; scope
    cta | part | warp.
    """

    what: str
    pending: int = 0
    scope: str = "cta"
    signal: Value = None


@dataclass(slots=True)
class Unknown(Event):
    """A statement that was not understood."""

    why: str
    writes: tuple[str, ...] = ()


@dataclass(slots=True)
class Carried:
    """A loop-carried element: its value before the loop, its node inside, its value after one trip."""

    cells: Cells
    index: int
    before: Value
    node: Node
    after: Value = None
    result: Any = None  # the node by which code after the loop refers to it
    shared: bool = False  # it is kept in shared memory


@dataclass(slots=True)
class Loop(Event):
    """A loop that was executed once with a symbolic variable: ``for iv in [lo, hi) by step``."""

    iv: Node
    lo: Value
    hi: Value
    step: int
    items: list[Any] = field(default_factory=list[Any])
    carried: list[Carried] = field(default_factory=list[Carried])
    syntax: Any = None
    name: str = ""
    lo_range: tuple[int, int] | None = None
    hi_range: tuple[int, int] | None = None
    counted_from: Value = 0  # the text's variable is this much more than `iv` (`listed.py`)
    partner: Any = None  # the producer's loop over the same tiles
    epochs: tuple[int, int] = (0, 0)  # shared memory's state when the first trip begins and when it ends


@dataclass(slots=True)
class Branch(Event):
    """A condition that all threads agree on."""

    condition: Value
    then: list[Any]
    orelse: list[Any]
    condition_range: tuple[int, int] | None = None


@dataclass(slots=True)
class Trace:
    """Everything recorded about one kernel."""

    items: list[Any] = field(default_factory=list[Any])
    unknown_statements: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    executed: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
