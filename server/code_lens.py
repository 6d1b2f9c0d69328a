"""Code lenses over the kernel: what it computes and how far that is verified, and what can be done with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lsprotocol import types as t

from . import convert

if TYPE_CHECKING:
    from .app import CubridgeServer
    from .documents import Document

WAIT_S = 5.0  # a lens appears when the reading is there; clients ask again after a refresh


async def code_lens(ls: CubridgeServer, params: t.CodeLensParams) -> list[t.CodeLens] | None:
    """``textDocument/codeLens``."""
    uri = params.text_document.uri
    if not ls.settings.code_lens or not convert.is_kernel(uri):
        return None
    document = await ls.documents.fresh(uri, 0.0 if ls.client.lens_refresh else WAIT_S)
    if document is None or document.reading is None or document.reading.kernel is None:
        return []
    place = convert.line_range(document.reading.kernel.span.line, document.text, ls.encoding)
    argument: list[Any] = [{"kernel": uri}]
    commands = (
        t.Command(title=title(ls, document), command="cubridge.showIr", arguments=argument),
        t.Command(title="Adapt to…", command="cubridge.adapt", arguments=argument),
        t.Command(title="Verify…", command="cubridge.verify", arguments=argument),
    )
    return [t.CodeLens(range=place, command=command) for command in commands]


def title(ls: CubridgeServer, document: Document) -> str:
    """``GQA attention forward, tiles 64x64, D = 64 · lifted``; a verification of this very text replaces the level."""
    kernel = document.reading.kernel if document.reading else None
    if kernel is None:
        return ""
    level = kernel.level
    sha = convert.sha256(document.data)
    for finding in ls.findings.of_kernel(document.path):
        if finding.job == "verify" and finding.kernel_sha == sha:
            against = convert.base_name(finding.spec)
            level = f"{finding.level}: equals {against}" if finding.passed else f"differs from {against}"
    return " · ".join(part for part in (kernel.summary, level) if part)
