"""When a CTA copies, waits and computes: the program executed without data, over a few KV tiles.

Only what decides the schedule is evaluated (loop bounds, conditions, slots, row offsets); shared memory is the same
state machine that the interpreter uses, so its findings are the interpreter's. Events are in program order, which is
the order of issue; how long each takes is not known and not claimed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..diagnostics import Diagnostic, Related, make
from . import codes
from .evaluate import UnboundName, evaluate
from .expr import Expr
from .memory import SharedMemory
from .nodes import (
    Alloc,
    Barrier,
    Copy,
    CpCommit,
    CpWait,
    For,
    If,
    Kernel,
    Let,
    LoadTile,
    Mma,
    Op,
    Opaque,
    Origin,
)

FINDING_CODES = codes.CODES  # importing the module registers the CB5xx rows
OVERWRITTEN = "CB501"
MAX_EVENTS = 4000  # a loop whose bound is not what it seems must not run forever


@dataclass(frozen=True, slots=True)
class Event:
    """One operation, issued. `part` is prologue, tile or epilogue; `tile` counts trips of the KV loop. `touches` are
    the (buffer, slot) pairs that it reads or, for a copy, writes; `group` the number of an asynchronous copy's group.
    """

    op: Op
    part: str
    tile: int | None
    touches: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Stretch:
    """A time in which a slot is in one state: from event `start` up to event `end`, which changes it. `holds` says
    what is in it, for instance ('k', 2): the third tile of K; `written` is the event of that copy.
    """

    buffer: str
    slot: int
    state: str  # inflight | landed | visible
    start: int
    end: int
    holds: tuple[str, int]
    written: int


@dataclass(frozen=True, slots=True)
class Fault:
    """A finding at an event; `other` is the event it collides with, where there is one."""

    event: int
    buffer: str | None
    slot: int | None
    other: int | None
    diagnostic: Diagnostic


@dataclass(frozen=True, slots=True)
class Timeline:
    """What happened. `stopped` says why the execution could not go on, or ''; `tiles` counts KV tiles."""

    events: tuple[Event, ...]
    slots: tuple[tuple[str, int], ...]
    stretches: tuple[Stretch, ...]
    faults: tuple[Fault, ...]
    tiles: int
    stopped: str = ""


class _Stop(Exception):
    """The schedule cannot be followed any further; the argument says why."""


@dataclass(slots=True)
class _Open:
    """The stretch that a slot is in."""

    state: str
    start: int
    holds: tuple[str, int]
    written: int


def timeline(kernel: Kernel, sizes: Mapping[str, int], values: Mapping[str, Any], *, q_tile: int = 0) -> Timeline:
    """Follow the CTA of query tile `q_tile` of the first head.

    `sizes` holds B, H, Hkv, Sq, Sk; `values` gives kernel parameters that are not sizes by name. Parameters without a
    value that the schedule depends on stop it. Never raises for a bad program.
    """
    run = _Run(kernel, sizes, values, q_tile)
    stopped = ""
    try:
        run.env["hk"] = run.value(kernel.grid.hk)
        run.block(kernel.body)
    except _Stop as why:
        stopped = str(why)
    run.close()
    return Timeline(tuple(run.events), tuple(run.slots), tuple(run.stretches), tuple(run.faults), run.tiles, stopped)


@dataclass(slots=True)
class _Run:
    kernel: Kernel
    sizes: Mapping[str, int]
    values: Mapping[str, Any]
    q_tile: int
    events: list[Event] = field(default_factory=list[Event])
    slots: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    stretches: list[Stretch] = field(default_factory=list[Stretch])
    faults: list[Fault] = field(default_factory=list[Fault])
    tiles: int = 0
    part: str = "prologue"
    tile: int | None = None
    env: dict[str, Any] = field(default_factory=dict[str, Any])
    shared: SharedMemory = field(init=False)
    _open: dict[tuple[str, int], _Open] = field(default_factory=dict[tuple[str, int], _Open])
    _read: dict[tuple[str, int], int] = field(default_factory=dict[tuple[str, int], int])  # slot -> its last read

    touching: tuple[str, int] | None = None

    def __post_init__(self) -> None:
        self.shared = SharedMemory(1, True, self.report)
        kernel, s = self.kernel, self.sizes
        self.env = {**self.values, **s, "D": kernel.D, "qt": self.q_tile, "q0": self.q_tile * kernel.Br, "b": 0, "h": 0}
        for p in kernel.params:
            if p.role in s:
                self.env.setdefault(p.name, s[p.role])
            elif p.role == "group":
                self.env.setdefault(p.name, max(1, s["H"] // s["Hkv"]))

    # ---- values

    def value(self, expr: Expr) -> Any:
        """A uniform value."""
        try:
            found = np.asarray(evaluate(expr, self.env, {}))
        except UnboundName as missing:
            raise _Stop(f"the schedule depends on {missing.args[0]}, which only a launch gives") from missing
        return found.flat[0].item()

    # ---- events

    def event(self, op: Op, *touches: tuple[str, int]) -> int:
        """Record that `op` is issued."""
        if len(self.events) >= MAX_EVENTS:
            raise _Stop(f"more than {MAX_EVENTS} operations")
        self.events.append(Event(op, self.part, self.tile, touches))
        return len(self.events) - 1

    def report(self, code: str, origin: Origin | None, *, other: Origin | None = None, **fields: object) -> None:
        """A finding of shared memory, each time that it happens."""
        related = (Related(other.span, "the other access"),) if other is not None and other.span is not None else ()
        found = make(code, origin.span if origin else None, related=related, **fields)
        key = self.touching or (None, None)
        self.faults.append(Fault(len(self.events) - 1, *key, self._partner(code), found))

    def _partner(self, code: str) -> int | None:
        """The event that the present one collides with: the last read of what is overwritten, the copy of what is read
        too early.
        """
        if self.touching is None:
            return None
        if code == OVERWRITTEN:
            return self._read.get(self.touching)
        before = self._open.get(self.touching)
        return before.written if before is not None else None

    def settle(self, holds: tuple[str, int] | None = None, written: tuple[str, int] | None = None) -> None:
        """Close and open stretches where the last event changed a slot; `written` is one that it filled anew."""
        now = len(self.events) - 1
        for buffer, slots in self.shared.slots.items():
            for index, slot in enumerate(slots):
                key = (buffer, index)
                before = self._open.get(key)
                fresh = key == written and holds is not None
                if slot.state == "poison" or (before is not None and before.state == slot.state and not fresh):
                    continue
                content, since = (holds, now) if fresh or before is None else (before.holds, before.written)
                self._end(key, now)
                self._open[key] = _Open(slot.state, now, content or ("?", 0), since)

    def _end(self, key: tuple[str, int], now: int) -> None:
        before = self._open.pop(key, None)
        if before is not None:
            self.stretches.append(Stretch(*key, before.state, before.start, now, before.holds, before.written))

    def close(self) -> None:
        """End every open stretch behind the last event."""
        for key in list(self._open):
            self._end(key, len(self.events))

    def read(self, buffer: str, slot: Expr | None, origin: Origin) -> None:
        """A read of a shared buffer."""
        index = int(self.value(slot)) if slot is not None else 0
        self.touching = (buffer, index)
        self.shared.read(buffer, index, origin)
        self._read[buffer, index] = len(self.events) - 1

    def block(self, body: tuple[Op, ...]) -> None:
        for op in body:
            STEPS.get(type(op), _compute)(self, op)


def _origin(op: Op) -> Origin:
    return getattr(op, "origin")  # noqa: B009 - every op has one, the base class does not say so


def _alloc(run: _Run, op: Alloc) -> None:
    if op.space == "shared":
        run.shared.allocate(op)
        run.slots += [(op.name, index) for index in range(op.slots)]


def _let(run: _Run, op: Let) -> None:
    run.env[op.name] = run.value(op.value)


def _if(run: _Run, op: If) -> None:
    run.block(op.body if run.value(op.cond) else op.orelse)


def _for(run: _Run, op: For) -> None:
    over_kv = op.role == "kv_loop"
    for value in range(int(run.value(op.lo)), int(run.value(op.hi)), op.step):
        run.env[op.iv] = value
        if over_kv:
            run.part, run.tile = "tile", run.tiles
            run.tiles += 1
        run.block(op.body)
    if over_kv:
        run.part, run.tile = "epilogue", None


def _copy(run: _Run, op: Copy) -> None:
    if op.buffer not in run.shared.slots:
        run.event(op)  # straight into registers
        return
    index, row0 = int(run.value(op.slot)), int(run.value(op.row0))
    run.event(op, (op.buffer, index))
    run.touching = (op.buffer, index)
    signal = int(run.value(op.signal)) if op.signal is not None else None
    run.shared.write(op.buffer, index, np.zeros((1, 1, 1)), is_async=op.is_async, origin=op.origin, signal=signal)
    run.settle((op.tensor, row0 // max(op.rows, 1)), (op.buffer, index))


def _commit(run: _Run, op: CpCommit) -> None:
    run.event(op)
    run.shared.commit()


def _wait(run: _Run, op: CpWait) -> None:
    run.event(op)
    if op.signal is None:
        run.shared.wait(op.pending)
    else:
        run.shared.wait_for(int(run.value(op.signal)))
    run.settle()


def _barrier(run: _Run, op: Barrier) -> None:
    run.event(op)
    if op.scope != "warp":
        run.shared.barrier()
    run.settle()


def _load_tile(run: _Run, op: LoadTile) -> None:
    _reading(run, op, (op.buffer, op.slot))


def _mma(run: _Run, op: Mma) -> None:
    _reading(run, op, (op.a, op.a_slot), (op.b, op.slot))


def _reading(run: _Run, op: Op, *operands: tuple[str, Expr | None]) -> None:
    """An operation that reads those of its operands that are shared buffers."""
    shared = [(name, slot) for name, slot in operands if name in run.shared.slots]
    run.event(op, *((name, int(run.value(slot)) if slot is not None else 0) for name, slot in shared))
    for name, slot in shared:
        run.read(name, slot, _origin(op))


def _opaque(run: _Run, op: Opaque) -> None:
    run.event(op)
    if op.writes:
        raise _Stop(f"a step that was not understood writes {', '.join(op.writes)}: {op.why}")


def _compute(run: _Run, op: Op) -> None:
    """Registers only: an event, and nothing that a schedule depends on."""
    run.event(op)


STEPS: dict[type[Op], Callable[[_Run, Any], None]] = {
    Alloc: _alloc,
    Let: _let,
    If: _if,
    For: _for,
    Copy: _copy,
    CpCommit: _commit,
    CpWait: _wait,
    Barrier: _barrier,
    LoadTile: _load_tile,
    Mma: _mma,
    Opaque: _opaque,
}
