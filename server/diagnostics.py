"""Diagnostics: reading a kernel finds some, adapt and verify find others. One function serves pull and push.

Kernels are pulled where the client can pull. Every other file (the spec, a header) is pushed: the client has no reason
to ask this server about it.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from lsprotocol import types as t

from cubridge_engine.diagnostics import Diagnostic

from . import code_pages, convert, toml_notes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .app import CubridgeServer

CHECK_WAIT_S = 2.0  # and for what the rules find in it; if they take longer, the client is told to ask again
WAIT_S = 10.0  # a pull wants the diagnostics of the present text, and may wait: nothing on screen waits for it

OPTIONS = t.DiagnosticOptions(inter_file_dependencies=True, workspace_diagnostics=False, identifier=convert.SOURCE)


def found_in(ls: CubridgeServer, path: str) -> list[Diagnostic]:
    """What is known about the file at `path`, in engine terms."""
    document = ls.documents.get(convert.uri_of(path))
    reading = document.reading.diagnostics if document and document.reading else ()
    own = [item for item in reading if item.span is None or item.span.path == path]
    if document and document.checked:
        own += [item for item in document.checked.diagnostics if item not in own]
    # A check by watching says again what reading said: one place has one finding of a code.
    told = {(item.code, item.span) for item in own}
    own += [item for item in ls.findings.diagnostics(path) if (item.code, item.span) not in told]
    return own + [item for item in toml_notes.of_file(ls, path) if item not in own]


def of_file(ls: CubridgeServer, path: str) -> list[t.Diagnostic]:
    """The same for the client."""
    link = code_pages.href if ls.client.code_description else None
    return [
        convert.diagnostic_of(item, ls.documents.text, ls.encoding, related=ls.client.related_information, link=link)
        for item in found_in(ls, path)
    ]


async def pull(ls: CubridgeServer, params: t.DocumentDiagnosticParams) -> t.DocumentDiagnosticReport:
    """``textDocument/diagnostic``."""
    uri = params.text_document.uri
    if convert.is_kernel(uri):
        await ls.documents.fresh(uri, WAIT_S)
        await ls.documents.checked(uri, CHECK_WAIT_S)
    items = of_file(ls, convert.path_of(uri))
    result_id = hashlib.sha256(repr(items).encode()).hexdigest()[:16]
    if params.previous_result_id == result_id:
        return t.RelatedUnchangedDocumentDiagnosticReport(result_id=result_id)
    return t.RelatedFullDocumentDiagnosticReport(items=items, result_id=result_id)


def publish(ls: CubridgeServer, paths: Iterable[str]) -> None:
    """The diagnostics of `paths` changed: push them, or tell a pulling client to ask again."""
    refresh = False
    for path in paths:
        uri = convert.uri_of(path)
        document = ls.documents.get(uri)
        if document is not None and ls.client.pull_diagnostics:
            refresh = True
            continue
        version = document.version if document and not document.stale else None
        ls.text_document_publish_diagnostics(t.PublishDiagnosticsParams(uri, of_file(ls, path), version=version))
    if refresh and ls.client.diagnostic_refresh:
        ls.workspace_diagnostic_refresh(None)
