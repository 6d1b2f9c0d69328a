"""Hover: the card of the line under the cursor, the way out of what is wrong there, and what it cost when simulated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lsprotocol import types as t

from . import convert, diagnostics

if TYPE_CHECKING:
    from . import cards
    from .app import CubridgeServer
    from .documents import Document
    from .engine import KernelView

WAIT_S = 0.3  # for the first reading of a file; afterwards the last one answers at once
MAX_OPS = 2
STALE = "_From before the last change; being read again._"


async def hover(ls: CubridgeServer, params: t.HoverParams) -> t.Hover | None:
    """``textDocument/hover``."""
    uri, line = params.text_document.uri, params.position.line
    if not convert.is_kernel(uri):
        return None
    document = await ls.documents.readable(uri, WAIT_S, refreshed=True)  # nothing on screen to refresh: see STALE
    if document is None or document.reading is None:
        return None
    parts = cards_at(ls, document, line)
    if parts and document.doubtful:
        parts.append(STALE)
    seen = ls.observed.of(document)
    parts += [one.card for one in seen.at(line)[:MAX_OPS]] if seen is not None else []
    if not document.stale:  # counts and diagnostics stand at the places of their own text
        parts += _measured(ls, document, line)
        parts += [
            f"**{item.code}** {item.help}"
            for item in diagnostics.found_in(ls, document.path)
            if item.help
            and item.span
            and item.span.line <= line <= item.span.end_line
            and item.span.path == document.path
        ]
    if not parts:
        return None
    return t.Hover(
        contents=t.MarkupContent(t.MarkupKind.Markdown, "\n\n".join(parts)),
        range=convert.line_range(line, document.text, ls.encoding),
    )


def cards_at(ls: CubridgeServer, document: Document, line: int) -> list[str]:
    """Markdown about the 0-based `line` of the present text: steps of the first kernel that has any there."""
    reading, at = document.reading, document.read_line(line)
    if reading is None or at is None:
        return []
    for view in reading.kernels:
        parts = _of_view(ls, document, view, at)
        if parts:
            return parts
    return []


def _of_view(ls: CubridgeServer, document: Document, view: KernelView, at: int) -> list[str]:
    from cubridge_engine.ir.text import print_op

    from . import cards

    loop = cards.loop_at(view.program, at)
    if loop is not None:
        return [cards.loop_card(loop, view.program, view.steps), f"```cuir\n{print_op(loop)}\n```"]
    here = [
        step
        for step in view.steps
        if any(
            lines[0] <= at <= lines[1] and document.untouched(*lines) for lines in (step.lines, step.callee) if lines
        )
    ]
    # The line of the mathematics is not always the line of the store.
    here = here or [
        step
        for step in view.steps
        if any(first <= at <= last and document.untouched(first, last) for first, last in step.also)
    ]
    if not here:
        return _of_block(document, view, at)
    # A step of few lines says more about one of them than a step that spans a loop.
    here.sort(key=lambda step: step.lines[1] - step.lines[0])
    context = _context(document, view)
    parts = [cards.card(step, context) for step in here[: cards.MAX_STEPS]]
    ops = [op for step in here[: cards.MAX_STEPS] for op in step.ops][:MAX_OPS]
    more = len(here) - cards.MAX_STEPS
    parts.append("```cuir\n" + "\n".join(print_op(op) for op in ops) + "\n```")
    return parts + ([f"and {more} more on this line"] if more > 0 else [])


def _of_block(document: Document, view: KernelView, at: int) -> list[str]:
    """The first step at or below a line in its block, what the line is for; nothing in a block that is a whole part."""
    from . import cards

    block = document.reading.block_at(at) if document.reading else None
    loop = view.kv_loop
    if block is None or loop is None or block[0] <= loop[0] or not view.covers(*block):
        return []
    if not document.untouched(*block) or not loop[0] < block[1] < loop[1]:
        return []
    inside = [step for step in view.steps if at <= step.lines[0] <= block[1]]
    step = min(inside, key=lambda step: step.lines[0], default=None)
    shown = document.shown(step.lines[0]) if step is not None else None
    if step is None or shown is None:
        return []
    context = _context(document, view)
    return [f"_In the block of the step on line {shown + 1}:_  \n{cards.card(step, context)}"]


def _context(document: Document, view: KernelView) -> cards.Context:
    from . import cards

    def present(line: int) -> int | None:
        now = document.shown(line)
        return None if now is None else now + 1

    return cards.Context(view.program, present)


def _measured(ls: CubridgeServer, document: Document, line: int) -> list[str]:
    counted = ls.costs.of(convert.sha256(document.data))
    sentence = counted.at(line, document.reading.in_kv_loop(line)) if counted and document.reading else None
    return [f"{sentence}  \n_{counted.where}_"] if counted and sentence else []
