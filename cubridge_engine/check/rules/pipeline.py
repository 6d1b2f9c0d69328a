"""The pipeline of tiles: the program executed without data over a few KV tiles (`ir.timeline`), and what collides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ...diagnostics import Related, Span
from ...ir.nodes import Barrier, Copy, CpCommit, CpWait, Kernel, Op
from ...ir.timeline import Fault, Timeline, timeline
from ...ir.validate import iterate
from .. import repairs
from ..model import Finding, Fix
from ..problems import problem
from ..subject import Subject, finding
from ..text_places import slot_of_loop

# What the timeline says -> the code here.
_CODES = {"CB501": "CB851", "CB502": "CB850", "CB503": "CB853", "CB506": "CB853", "CB509": "CB852"}
_TILES = 6  # trips: once round the largest ring, and a bit
_WAIT = "wait for its group (cp.async.wait_group) and pass a barrier before the read"
_FEWER = "let the wait leave fewer groups in flight than were committed after the tile's own"


@dataclass(frozen=True, slots=True)
class _Fault:
    """A fault with the schedule that it is from; `wait`: the one that leaves the tile in flight."""

    kernel: Kernel
    line: Timeline
    fault: Fault
    code: str

    @property
    def op(self) -> Op:
        """The operation at which it shows."""
        return self.line.events[self.fault.event].op

    def between(self, *kinds: type[Op]) -> list[Any]:
        """Operations of these kinds since the access it collides with."""
        start = self.fault.other if self.fault.other is not None else 0
        found = [self.line.events[n].op for n in range(start, self.fault.event)]
        return [op for op in found if isinstance(op, kinds)]

    @property
    def wait(self) -> CpWait | None:
        """The last wait between a copy and its read."""
        found = [op for op in self.between(CpWait) if op.signal is None]
        return found[-1] if found else None


def pipeline(subject: Subject) -> Iterator[Finding]:
    """CB850..CB853 of tiles that CuIR knows; one finding for each cause, K and V together."""
    kernel = subject.kernel
    if kernel is None:
        return
    faults = _faults(kernel)
    if subject.races:  # plain copies have been looked at thread by thread
        plain = {op.buffer for op in iterate(kernel.body) if isinstance(op, Copy) and not op.is_async}
        faults = [f for f in faults if f.fault.buffer not in plain or f.code not in ("CB851", "CB852")]
    early = [f for f in faults if f.code == "CB850"]
    nothing = [f for f in faults if f.code == "CB853"]
    reads = {_span(f.op) for f in early}
    if nothing and any(_span(f.op) in reads for f in nothing):
        yield _wrong_slot(subject, nothing + early)
        return
    if nothing:
        yield _made(subject, nothing, _span(nothing[0].op), _other(nothing[0], "the last copy"))
    yield from _in_flight(subject, early)
    unseen = [f for f in faults if f.code == "CB852"]
    reused = [f for f in faults if f.code == "CB851"]
    if unseen:
        yield _unseen(subject, unseen, reused)
    elif reused:
        related = _other(reused[0], "the last read")
        yield _made(subject, reused, _span(reused[0].op), related, _between(subject, reused[0]))


def _faults(kernel: Kernel) -> list[_Fault]:
    """On long and short lengths, with all switches off and on."""
    length = max(_TILES * kernel.Bc, kernel.Br)
    names = [p.name for p in kernel.params if p.role == "flag"]
    last = -(-length // kernel.Br) - 1
    found: list[_Fault] = []
    for flags in (dict.fromkeys(names, 0), dict.fromkeys(names, 1)) if names else ({},):
        for keys in (length, kernel.Bc):
            tried = problem(kernel, length, keys, flags)
            line = timeline(kernel, tried.sizes, tried.values, q_tile=last)
            for fault in line.faults:
                code = _CODES.get(fault.diagnostic.code)
                if code is not None:
                    found.append(_Fault(kernel, line, fault, code))
    return found


def _span(op: Any) -> Span | None:
    return op.origin.span


def _tile(faults: Sequence[_Fault]) -> str:
    """``the shared memory of the K and V tiles``."""
    tensors = {op.buffer: op.tensor.upper() for op in iterate(faults[0].kernel.body) if isinstance(op, Copy)}
    names = sorted({tensors.get(f.fault.buffer or "", "") for f in faults} - {""})
    tiles = f"{' and '.join(names)} tile{'s' if len(names) > 1 else ''}" if names else "tile"
    return f"the shared memory of the {tiles}"


def _other(fault: _Fault, words: str) -> tuple[Related, ...]:
    """The access that it collides with."""
    if fault.fault.other is None:
        return ()
    span = _span(fault.line.events[fault.fault.other].op)
    return (Related(span, words),) if span is not None else ()


def _made(
    subject: Subject,
    faults: Sequence[_Fault],
    span: Span | None,
    related: tuple[Related, ...],
    fix: Fix | None = None,
    **fields: Any,
) -> Finding:
    first: Any = faults[0].op
    callee = first.origin.callee
    if callee is not None and span == first.origin.span:
        related = (*related, Related(callee, "in the function called there"))
    code = faults[0].code
    kind = "barrier" if code in ("CB851", "CB852") else "pipeline"
    return finding(code, span, kind, related=related, fix=fix, what=_tile(faults), **fields)


def _read(fault: _Fault) -> tuple[Related, ...]:
    span = _span(fault.op)
    return (Related(span, "the read"),) if span is not None else ()


def _in_flight(subject: Subject, faults: Sequence[_Fault]) -> Iterator[Finding]:
    """CB850: for waits that leave too much in flight, at the wait; where there is none, at the barrier in its place."""
    without = [f for f in faults if f.wait is None]
    if without:
        first = without[0]
        barriers = [op for op in first.between(Barrier) if op.scope == "cta"]
        span = _span(barriers[-1]) if barriers else _span(first.op)
        waits = any(isinstance(op, CpWait) for op in iterate(first.kernel.body))
        how = ": no wait lies between" if waits else ": the kernel never waits for its copies"
        related = (*(_read(first) if barriers else ()), *_other(first, "the copy"), *_closed(first))
        others = [op.origin.span for op in iterate(first.kernel.body) if isinstance(op, CpWait) and op.signal is None]
        fix = repairs.wait_before(subject, span, next(iter(others), None)) if barriers and span is not None else None
        yield _made(subject, without, span, related, fix, how=how, way=_WAIT)
    covered = {f.fault.buffer for f in without}
    by_wait: dict[Span | None, list[_Fault]] = {}
    for fault in faults:
        if fault.wait is not None and fault.fault.buffer not in covered:
            by_wait.setdefault(_span(fault.wait), []).append(fault)
    for span, group in by_wait.items():
        wait = group[0].wait
        count = wait.pending if wait is not None else 0
        groups = "the newest group" if count == 1 else f"the newest {count} groups"
        how = f": wait_group {count} leaves {groups} in flight, and the tile is in it"
        related = (*_read(group[0]), *_other(group[0], "the copy"), *_closed(group[0]))
        fix = repairs.smaller_wait(subject, span) if span is not None else None
        yield _made(subject, group, span, related, fix, how=how, way=_FEWER)


def _closed(fault: _Fault) -> tuple[Related, ...]:
    commits = fault.between(CpCommit)
    span = _span(commits[0]) if commits else None
    return (Related(span, "its group is closed"),) if span is not None else ()


def _unseen(subject: Subject, faults: Sequence[_Fault], reused: Sequence[_Fault]) -> Finding:
    """CB852: at the wait behind which the barrier is missing, else at the read."""
    first = faults[0]
    wait = first.wait
    related = _other(first, "the copy")
    again = _span(reused[0].op) if reused else None
    if again is not None:
        related = (*related, Related(again, "without a barrier this overwrites what is still read"))
    if wait is None:
        fixes = [f for f in (_between(subject, fault) for fault in faults) if f is not None]
        latest = max(fixes, key=lambda f: f.edits[0].span.start, default=None)
        return _made(subject, faults, _span(first.op), related, latest)
    fix = repairs.barrier_after(subject, wait.origin.span) if wait.origin.span is not None else None
    return _made(subject, faults, _span(wait), (*_read(first), *related), fix)


def _between(subject: Subject, fault: _Fault) -> Fix | None:
    """A barrier between the two accesses of a fault."""
    other = fault.fault.other
    first = _span(fault.line.events[other].op) if other is not None else None
    second = _span(fault.op)
    return repairs.barrier_between(subject, first, second) if first is not None and second is not None else None


def _wrong_slot(subject: Subject, faults: Sequence[_Fault]) -> Finding:
    """CB853: another slot is read than the one that was filled; the fault is where the slot is worked out."""
    first = faults[0]
    place = slot_of_loop(subject)
    if place is None:
        return _made(subject, faults, _span(first.op), _other(first, "the last copy"))
    return _made(subject, faults, place, (*_read(first), *_other(first, "the last copy")))
