"""What orders a step against asynchronous copies: which wait and which barrier, by walking the program's text order."""

from __future__ import annotations

from collections.abc import Callable

from cubridge_engine.ir import nodes
from cubridge_engine.ir.nodes import Kernel, Op

from .phases import leaves, op_span

Line = Callable[[int], int | None]


def sentence(op: Op, kernel: Kernel, line: Line) -> str:
    """One sentence in markdown, '' for a step that nothing needs to order."""
    if isinstance(op, nodes.Copy):
        return _landing(op, kernel, line) if op.is_async else _visible_after(op, kernel, line)
    if reads_shared(op, kernel):
        return _ordered_by(op, kernel, line)
    return ""


def reads_shared(op: Op, kernel: Kernel) -> tuple[str, ...]:
    """Names of the shared buffers that `op` reads."""
    shared = {item.name for item in kernel.body if isinstance(item, nodes.Alloc) and item.space == "shared"}
    names = (op.a, op.b) if isinstance(op, nodes.Mma) else (op.buffer,) if isinstance(op, nodes.LoadTile) else ()
    return tuple(name for name in names if name in shared)


def program(kernel: Kernel, trips: int) -> list[Op]:
    """The operations as one CTA comes by them, the KV loop `trips` times; both sides of a condition are taken."""
    run: list[Op] = []
    for op in kernel.body:
        again = trips if isinstance(op, nodes.For) and op.role == "kv_loop" else 1
        run += list(leaves((op,))) * again
    return run


def _place(op: Op, line: Line) -> str:
    span = op_span(op)
    at = line(span.line) if span is not None else None
    return f" (line {at})" if at is not None else ""


def _ordered_by(op: Op, kernel: Kernel, line: Line) -> str:
    """The last wait and barrier that a trip of the loop passes before it reaches `op`."""
    run = program(kernel, 2)
    at = max(position for position, item in enumerate(run) if item is op)
    wait = next((item for item in reversed(run[:at]) if isinstance(item, nodes.CpWait)), None)
    if wait is not None and wait.signal is not None:
        return f"{', '.join(reads_shared(op, kernel))} ordered by the wait{_place(wait, line)} for its mbarrier"
    barrier = next((item for item in reversed(run[:at]) if isinstance(item, nodes.Barrier)), None)
    names = ", ".join(reads_shared(op, kernel))
    if barrier is None:
        return f"{names}: **no barrier** before it"
    first = f"the wait{_place(wait, line)} and " if wait is not None else ""
    return f"{names} ordered by {first}the barrier{_place(barrier, line)}"


def _landing(op: nodes.Copy, kernel: Kernel, line: Line) -> str:
    """The wait that makes an asynchronous copy land, counted in committed groups, and the barrier behind it; for a TMA
    copy, the wait for its mbarrier.
    """
    run = program(kernel, 2 + max((item.slots for item in kernel.body if isinstance(item, nodes.Alloc)), default=1))
    newer = -1  # groups committed after the one of this copy; -1: its own is still open
    rest = run[next(position for position, item in enumerate(run) if item is op) :]
    for position, item in enumerate(rest):
        if op.signal is not None:
            if isinstance(item, nodes.CpWait) and item.signal == op.signal:
                return f"lands at the wait{_place(item, line)} for its mbarrier"
        elif isinstance(item, nodes.CpCommit):
            newer += 1
        elif isinstance(item, nodes.CpWait) and newer >= item.pending:
            barrier = next((later for later in rest[position:] if isinstance(later, nodes.Barrier)), None)
            visible = f", visible to all behind the barrier{_place(barrier, line)}" if barrier is not None else ""
            return f"lands at the wait{_place(item, line)}{visible}"
    return "**no wait** makes it land"


def _visible_after(op: nodes.Copy, kernel: Kernel, line: Line) -> str:
    run = program(kernel, 2)
    rest = run[next(position for position, item in enumerate(run) if item is op) :]
    barrier = next((item for item in rest if isinstance(item, nodes.Barrier)), None)
    return (
        f"visible to all behind the barrier{_place(barrier, line)}" if barrier is not None else "**no barrier** behind"
    )
