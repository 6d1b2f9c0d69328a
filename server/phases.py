"""The phases of an attention kernel, by line: one table from CuIR operations to the steps that the papers name.

Outline, gutter marks and cards read it; what an operation means is decided here and nowhere else in the server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from cubridge_engine.diagnostics import Span
from cubridge_engine.ir import nodes
from cubridge_engine.ir.expr import Var
from cubridge_engine.ir.nodes import Kernel, Op

# Phase -> how the outline and the legend call it. The gutter marks lines by it.
PHASES: dict[str, str] = {
    "setup": "set-up",
    "load": "load tiles",
    "sync": "wait, barrier",
    "scores": "S = Q·Kᵀ",
    "mask": "mask",
    "softmax": "online softmax",
    "output": "O += P·V",
    "store": "store",
}
_NEXT = 4  # lines of a function so far apart are next to each other
SECTIONS: dict[str, str] = {"prologue": "prologue", "kv_loop": "KV loop", "epilogue": "epilogue"}


@dataclass(frozen=True, slots=True)
class Step:
    """One step: operations of a phase with the same `title`; `lines` are first and last line of its text in the
    kernel, 0-based, `callee` those in a device function that does it, and `also` those of further statements that
    compute what it stores: ``p = expf(s - m)`` before the store of p."""

    phase: str
    title: str
    section: str  # a key of SECTIONS
    lines: tuple[int, int]
    callee: tuple[int, int] | None
    ops: tuple[Op, ...]
    also: tuple[tuple[int, int], ...] = ()

    @property
    def keeps(self) -> bool:
        """True for bookkeeping: row vectors that are kept under another name, ``m = m_new``."""
        return all(isinstance(op, nodes.RowMap) and isinstance(op.expr, Var) for op in self.ops)


@dataclass(frozen=True, slots=True)
class Row:
    """What an operation is: its phase and the title of its step."""

    phase: str
    title: Callable[[Any], str]


def _fixed(phase: str, title: str) -> Row:
    return Row(phase, lambda _op: title)


# By (type, role); (type, None) is for any other role. Operations without a row belong to no step.
ROWS: dict[tuple[type[Op], str | None], Row] = {
    (nodes.Copy, None): Row("load", lambda op: f"load {op.tensor.upper()}"),
    (nodes.LoadTile, None): Row("load", lambda op: f"{op.buffer} to registers"),
    (nodes.CpWait, None): _fixed("sync", "wait for copies"),
    (nodes.Barrier, None): _fixed("sync", "barrier"),
    (nodes.RowMap, "init"): Row("setup", lambda op: f"start of {op.row}"),
    (nodes.Fill, None): Row("setup", lambda op: f"{op.tile} = 0"),
    (nodes.Mma, "qk"): _fixed("scores", "S = Q·Kᵀ"),
    (nodes.Score, None): _fixed("scores", "change of the scores"),
    (nodes.Mask, None): _fixed("mask", "mask"),
    (nodes.RowReduce, "row_max"): _fixed("softmax", "row max m"),
    (nodes.LaneReduce, None): Row("softmax", lambda op: f"{op.row} over the lanes of a row"),
    (nodes.RowMap, "guard"): _fixed("softmax", "rows without a key"),
    (nodes.RowMap, "correction"): _fixed("softmax", "correction α"),
    (nodes.RowMap, "rescale"): _fixed("softmax", "rescale l"),
    (nodes.RowMap, "other"): Row("softmax", lambda op: f"new {op.row}"),
    (nodes.Map, "exp"): _fixed("softmax", "P = exp(S - m)"),
    (nodes.RowReduce, "row_sum"): _fixed("softmax", "row sum l"),
    (nodes.Map, "rescale"): _fixed("output", "rescale O"),
    (nodes.Mma, "pv"): _fixed("output", "O += P·V"),
    (nodes.StoreTile, None): Row("store", lambda op: f"store {op.tensor.upper()}"),
    (nodes.StoreRow, None): Row("store", lambda op: f"store {op.tensor.upper()}"),
}


def row_of(op: Op) -> Row | None:
    """The row of ROWS for `op`."""
    role = getattr(op, "role", None)
    return ROWS.get((type(op), role)) or ROWS.get((type(op), None))


def steps(kernel: Kernel, path: str, whole: Span) -> tuple[Step, ...]:
    """The steps of the kernel in the file at `path`, in program order; neighbours with the same title are one step, if
    they stand together: both in the kernel's definition `whole`, or next to each other in a function."""
    found: list[Step] = []
    for section, op in _sectioned(kernel):
        row = row_of(op)
        span = op_span(op)
        if row is None or span is None or span.path != path:
            continue
        title, lines = row.title(op), (span.line, span.end_line)
        callee = _callee_lines(op, path)
        last = found[-1] if found else None
        if last is not None and (last.section, last.title) == (section, title) and _together(last.lines, lines, whole):
            lines = (min(last.lines[0], lines[0]), max(last.lines[1], lines[1]))
            also = tuple(dict.fromkeys((*last.also, *_also_lines(op, path))))
            found[-1] = Step(row.phase, title, section, lines, last.callee or callee, (*last.ops, op), also)
        else:
            found.append(Step(row.phase, title, section, lines, callee, (op,), _also_lines(op, path)))
    return tuple(found)


def _together(one: tuple[int, int], other: tuple[int, int], whole: Span) -> bool:
    first, last = min(one[0], other[0]), max(one[1], other[1])
    return (whole.line <= first and last <= whole.end_line) or max(one[0], other[0]) - min(one[1], other[1]) <= _NEXT


def kv_loop_lines(kernel: Kernel, path: str) -> tuple[int, int] | None:
    """First and last line of the loop over KV tiles."""
    for op in kernel.body:
        span = op_span(op)
        if isinstance(op, nodes.For) and op.role == "kv_loop" and span is not None and span.path == path:
            return span.line, span.end_line
    return None


def op_span(op: Op) -> Span | None:
    """Where the operation is in the text: its call site when a device function does it."""
    return getattr(op, "origin", nodes.NOWHERE).span


def _callee_lines(op: Op, path: str) -> tuple[int, int] | None:
    callee: Span | None = getattr(op, "origin", nodes.NOWHERE).callee
    return (callee.line, callee.end_line) if callee is not None and callee.path == path else None


def _also_lines(op: Op, path: str) -> tuple[tuple[int, int], ...]:
    spans: tuple[Span, ...] = getattr(op, "origin", nodes.NOWHERE).also
    return tuple((span.line, span.end_line) for span in spans if span.path == path)


def _sectioned(kernel: Kernel) -> Iterator[tuple[str, Op]]:
    """(section, operation) in program order, without the loops and conditions around operations."""
    section = "prologue"
    for op in kernel.body:
        if isinstance(op, nodes.For) and op.role == "kv_loop":
            yield from (("kv_loop", inner) for inner in leaves(op.body))
            section = "epilogue"
        else:
            yield from ((section, inner) for inner in leaves((op,)))


def leaves(body: tuple[Op, ...]) -> Iterator[Op]:
    """The operations of a body in text order, those in loops and on both sides of conditions included."""
    for op in body:
        if isinstance(op, nodes.For):
            yield from leaves(op.body)
        elif isinstance(op, nodes.If):
            yield from leaves((*op.body, *op.orelse))
        else:
            yield op
