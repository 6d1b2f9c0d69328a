"""Inlay hints at the landmark lines of a kernel: one short label behind the code, what the line means."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lsprotocol import types as t

from . import convert

if TYPE_CHECKING:
    from .app import CubridgeServer

WAIT_S = 0.3


async def inlay_hint(ls: CubridgeServer, params: t.InlayHintParams) -> list[t.InlayHint] | None:
    """``textDocument/inlayHint``. No hints while the reading is older than the text: wrong lines."""
    uri = params.text_document.uri
    if not ls.settings.inlay_hints or not convert.is_kernel(uri):
        return None
    document = await ls.documents.fresh(uri, WAIT_S)
    if document is None or document.reading is None or document.stale:
        return []
    first, last = params.range.start.line, params.range.end.line
    return [
        t.InlayHint(
            position=convert.line_range(mark.line, document.text, ls.encoding).end,
            label=mark.label,
            kind=t.InlayHintKind.Type,
            padding_left=True,
            tooltip=mark.detail or None,
        )
        for mark in document.reading.landmarks
        if first <= mark.line <= last
    ]
