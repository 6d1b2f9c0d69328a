"""Hover: the CuIR of the line under the cursor, and the way out of what is wrong there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lsprotocol import types as t

from . import convert, diagnostics

if TYPE_CHECKING:
    from .app import CubridgeServer

WAIT_S = 0.3  # for a reading that is about to be ready; afterwards the last good one is shown, marked
MAX_OPS = 12


async def hover(ls: CubridgeServer, params: t.HoverParams) -> t.Hover | None:
    """``textDocument/hover``."""
    uri, line = params.text_document.uri, params.position.line
    if not convert.is_kernel(uri):
        return None
    document = await ls.documents.fresh(uri, WAIT_S)
    if document is None or document.reading is None:
        return None
    parts: list[str] = []
    ops = document.reading.ops_at(line)
    if ops:
        shown = "\n".join(ops[:MAX_OPS]) + (f"\n... {len(ops) - MAX_OPS} more" if len(ops) > MAX_OPS else "")
        parts.append(f"```cuir\n{shown}\n```")
        notes = document.reading.notes_at(line)
        if notes:
            parts.append("  \n".join(notes))
        if document.stale:
            parts.append("_This is the reading before the last change._")
    parts += [
        f"**{item.code}** {item.help}"
        for item in diagnostics.found_in(ls, document.path)
        if item.help and item.span and item.span.line <= line <= item.span.end_line and item.span.path == document.path
    ]
    if not parts:
        return None
    return t.Hover(
        contents=t.MarkupContent(t.MarkupKind.Markdown, "\n\n".join(parts)),
        range=convert.line_range(line, document.text, ls.encoding),
    )
