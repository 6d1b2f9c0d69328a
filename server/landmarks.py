"""Labels for the landmark lines of a lifted kernel: one table from op type to its meaning in the paper's terms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cubridge_engine.ir import nodes
from cubridge_engine.ir.nodes import Kernel, Op
from cubridge_engine.ir.text import print_op
from cubridge_engine.ir.text_expr import print_expr
from cubridge_engine.ir.validate import iterate

if TYPE_CHECKING:
    from cubridge_engine.lift.cute import CuteReading

MAX_LABEL = 60


@dataclass(frozen=True, slots=True)
class Landmark:
    """A 0-based line and its label; `detail` is the CuIR behind it, `lines` the lines (first, last) it is read from."""

    line: int
    label: str
    detail: str
    lines: tuple[tuple[int, int], ...] = ()


def _mma(op: nodes.Mma, kernel: Kernel) -> str:
    if op.role == "qk":
        return f"S[{kernel.Br}×{kernel.Bc}] = Q·Kᵀ"
    return f"O[{kernel.Br}×{kernel.D}] += P·V"


def _reduce(op: nodes.RowReduce, _kernel: Kernel) -> str:
    return {"row_max": "m = max(m, rowmax S)", "row_sum": "l = l·α + rowsum P"}.get(op.role, "")


def _map(op: nodes.Map, _kernel: Kernel) -> str:
    return {"exp": "P = exp(S - m)", "rescale": "O = O·α"}.get(op.role, "")


def _row_map(op: nodes.RowMap, _kernel: Kernel) -> str:
    return {"correction": "α = exp(m_old - m)"}.get(op.role, "")


def _wait(op: nodes.CpWait, _kernel: Kernel) -> str:
    if op.signal is not None:
        return f"wait: TMA copies on mbarrier {print_expr(op.signal)}"
    return "wait: all copies landed" if op.pending == 0 else f"wait: all copies landed but the newest {op.pending}"


def _copy(op: nodes.Copy, _kernel: Kernel) -> str:
    pages = f" from pages of {op.page}" if op.table else ""
    return f"{op.tensor.upper()} tile{pages} → {op.buffer}" + (", async" if op.is_async else "")


# Values are Any because each row takes its own node type; `label` below calls a row with the type it is keyed on.
LABELS: dict[type[Op], Callable[[Any, Kernel], str]] = {
    nodes.Copy: _copy,
    nodes.CpWait: _wait,
    nodes.For: lambda op, _kernel: (
        f"KV tiles {print_expr(op.lo)} .. {print_expr(op.hi)}" if op.role == "kv_loop" else ""
    ),
    nodes.Mma: _mma,
    nodes.Score: lambda op, _kernel: f"S = {print_expr(op.expr)}",
    nodes.Mask: lambda op, _kernel: f"keep {print_expr(op.keep)}",
    nodes.Map: _map,
    nodes.RowReduce: _reduce,
    nodes.RowMap: _row_map,
    nodes.StoreTile: lambda op, _kernel: f"{op.tensor.upper()} → global",
    nodes.StoreRow: lambda op, _kernel: f"{op.tensor.upper()} → global",
}


def label(op: Op, kernel: Kernel) -> str:
    """The label of `op`, or '' when it is no landmark."""
    row = LABELS.get(type(op))
    text = row(op, kernel) if row else ""
    return text if len(text) <= MAX_LABEL else text[: MAX_LABEL - 1] + "…"


def landmarks(kernel: Kernel, path: str) -> tuple[Landmark, ...]:
    """The labelled ops of the file at `path`, one landmark per line: several labels of a line are joined."""
    found: dict[int, Landmark] = {}
    for op in iterate(kernel.body):
        origin = getattr(op, "origin", nodes.NOWHERE)
        span = origin.span
        text = label(op, kernel) if span is not None and span.path == path else ""
        if span is None or not text:
            continue
        before = found.get(span.line)
        lines = _lines(op, origin, path)
        if before is None:
            found[span.line] = Landmark(span.line, text, print_op(op), lines)
        elif text not in before.label and len(before.label) + len(text) < MAX_LABEL:
            label_, detail = f"{before.label} · {text}", f"{before.detail}\n{print_op(op)}"
            found[span.line] = Landmark(span.line, label_, detail, before.lines + lines)
    return tuple(found[line] for line in sorted(found))


def cute_landmarks(found: CuteReading, path: str) -> tuple[Landmark, ...]:
    """What the calls of a tensor library show of the lines of the file at `path`; waits are many, and are left out."""
    marks: dict[int, Landmark] = {}
    for step in found.steps:
        for span in dict.fromkeys(chain[0] for chain in step.places):
            if span.path != path or step.name == "wait":
                continue
            before = marks.get(span.line, Landmark(span.line, "", ""))
            label_ = f"{before.label} · {step.holds}" if before.label else step.holds
            detail = f"{before.detail}{step.words} (read from the library's calls)\n"
            lines = (span.line, span.end_line)
            kept = label_ if len(label_) < MAX_LABEL else before.label
            marks[span.line] = Landmark(span.line, kept, detail, tuple(dict.fromkeys((*before.lines, lines))))
    return tuple(marks[line] for line in sorted(marks))


def _lines(op: Op, origin: nodes.Origin, path: str) -> tuple[tuple[int, int], ...]:
    """The lines that say what `op` is: of a loop its first, else all of its text and of the function that does it."""
    spans = [span for span in (origin.span, origin.callee) if span is not None and span.path == path]
    header_only = isinstance(op, nodes.For | nodes.If | nodes.Let)
    return tuple((span.line, span.line if header_only else span.end_line) for span in spans)
