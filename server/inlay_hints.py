"""Inlay hints at the landmark lines of a kernel: one short label behind the code, what the line means.

They are answered at once, from the last reading moved to the present text. What the typing touched has no hint; where
it touched anything that the kernels depend on, the others are marked until the new reading is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lsprotocol import types as t

from . import convert, observed

if TYPE_CHECKING:
    from .app import CubridgeServer
    from .documents import Document

WAIT_S = 0.3  # for the first reading of a file; the client is asked to ask again when it is there
UNTOLD_WAIT_S = 5.0  # a client that cannot be told waits for the reading of its text
DOUBT = " …"  # behind a label of the reading before the last change
STALE = "From before the last change; being read again."


async def inlay_hint(ls: CubridgeServer, params: t.InlayHintParams) -> list[t.InlayHint] | None:
    """``textDocument/inlayHint``."""
    uri = params.text_document.uri
    if not ls.settings.inlay_hints or not convert.is_kernel(uri):
        return None
    told = ls.client.hint_refresh
    document = await ls.documents.readable(uri, WAIT_S if told else UNTOLD_WAIT_S, refreshed=told)
    if document is None or document.reading is None:
        return []
    hints = _observed(ls, document, params.range)
    for mark in document.reading.landmarks:
        line = document.shown(mark.line)
        if line is None or not params.range.start.line <= line <= params.range.end.line:
            continue
        if not all(document.untouched(first, last) for first, last in mark.lines):
            continue
        hints.append(
            t.InlayHint(
                position=convert.line_range(line, document.text, ls.encoding).end,
                label=mark.label + (DOUBT if document.doubtful else ""),
                kind=t.InlayHintKind.Type,
                padding_left=True,
                tooltip=STALE if document.doubtful else mark.detail or None,
            )
        )
    return hints


def _observed(ls: CubridgeServer, document: Document, shown: t.Range) -> list[t.InlayHint]:
    """Hints of steps that are known from watching alone, where reading has none on the line and no whole program."""
    found = ls.observed.of(document)
    reading = document.reading
    if found is None or reading is None or (reading.lifted is not None and reading.lifted.coverage.complete):
        return []
    taken = {document.shown(mark.line) for mark in reading.landmarks}
    by_line: dict[int, list[observed.Seen]] = {}
    for one in found.unread():
        if one.line is not None and one.line not in taken and shown.start.line <= one.line <= shown.end.line:
            by_line.setdefault(one.line, []).append(one)
    return [
        t.InlayHint(
            position=convert.line_range(line, document.text, ls.encoding).end,
            label=" · ".join(one.label for one in steps),
            kind=t.InlayHintKind.Type,
            padding_left=True,
            tooltip=t.MarkupContent(t.MarkupKind.Markdown, "\n\n".join(one.card for one in steps)),
        )
        for line, steps in by_line.items()
    ]
