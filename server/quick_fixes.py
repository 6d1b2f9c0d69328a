"""Code actions of findings: the fix, where one was verified on this very text; and to ignore it, with a reason."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from lsprotocol import types as t

from . import convert
from .checks import Found

if TYPE_CHECKING:
    from cubridge_engine.check import Edit
    from cubridge_engine.diagnostics import Diagnostic

    from .app import CubridgeServer
    from .documents import Document

QUICK_FIX = "quickfix"
WAIT_S = 1.5  # for fixes to be verified: a menu is not kept waiting longer
IGNORABLE = re.compile(r"CB5\d\d|CB8[4-8]\d")  # what comments of a kernel can ignore
PLACEHOLDER = "<reason>"  # not taken for one: until it is written, the finding stays


def actions(ls: CubridgeServer, document: Document, first: int, last: int) -> list[t.CodeAction]:
    """The actions for the findings on the 0-based lines `first`..`last` of the present text."""

    def here(item: Diagnostic) -> bool:
        span = item.span
        return span is not None and span.path == document.path and span.line <= last and first <= span.end_line

    own = [item for item in (document.checked.found if document.checked else ()) if here(item.diagnostic)]
    fixes = [_fix(ls, document, item) for item in own if item.fix is not None]
    checks = [kept for kept in ls.findings.of_kernel(document.path) if kept.job == "check"]
    told = [item.diagnostic for item in own if item.finding.method != "frame"]
    told += [item for kept in checks for item in kept.diagnostics if here(item) and IGNORABLE.fullmatch(item.code)]
    # One for each code and line: a comment speaks of a whole line.
    once = {(item.code, item.span and item.span.line): item for item in told}
    return fixes + [_ignore(ls, document, item) for item in once.values()]


def resolve(ls: CubridgeServer, document: Document, action: t.CodeAction, data: Any) -> None:
    """Fill in the edit of a fix, if the text is still the one that it was verified on."""
    if document.checked is None or document.version != convert.field(data, "version"):
        return
    at = convert.field(data, "fix")
    if isinstance(at, int) and 0 <= at < len(document.checked.found):
        fix = document.checked.found[at].fix
        if fix is not None:
            action.edit = _edit(ls, document, [_text_edit(ls, document, edit) for edit in fix.edits])


def _fix(ls: CubridgeServer, document: Document, item: Found) -> t.CodeAction:
    assert item.fix is not None
    assert document.checked is not None
    at = document.checked.found.index(item)
    data = {"kernel": document.uri, "version": document.version, "fix": at}
    action = t.CodeAction(
        title=item.fix.title,
        kind=QUICK_FIX,
        diagnostics=[_diagnostic(ls, item.diagnostic)],
        is_preferred=True,
        data=data,
    )
    if not ls.client.resolve_action_edit:
        resolve(ls, document, action, data)
    return action


def _ignore(ls: CubridgeServer, document: Document, item: Diagnostic) -> t.CodeAction:
    assert item.span is not None
    code, line = item.code, item.span.line
    indent = document.text.line_bytes(line)
    blanks = indent[: len(indent) - len(indent.lstrip())].decode("ascii", "replace")
    place = t.Range(t.Position(line, 0), t.Position(line, 0))
    comment = f"{blanks}// cubridge: ignore[{code}] "
    title = f"Ignore {code} here, with a reason"
    edit: t.TextEdit | t.SnippetTextEdit = t.TextEdit(place, f"{comment}{PLACEHOLDER}\n")
    if ls.client.snippet_edits:
        edit = t.SnippetTextEdit(place, t.StringValue(value=f"{comment}${{1:{PLACEHOLDER}}}\n"))
    return t.CodeAction(
        title=title,
        kind=QUICK_FIX,
        diagnostics=[_diagnostic(ls, item)],
        edit=_edit(ls, document, [edit]),
    )


def _diagnostic(ls: CubridgeServer, item: Diagnostic) -> t.Diagnostic:
    return convert.diagnostic_of(item, ls.documents.text, ls.encoding, related=ls.client.related_information)


def _text_edit(ls: CubridgeServer, document: Document, edit: Edit) -> t.TextEdit:
    return t.TextEdit(convert.range_of(edit.span, document.text, ls.encoding), edit.text)


def _edit(
    ls: CubridgeServer, document: Document, edits: list[t.TextEdit] | list[t.TextEdit | t.SnippetTextEdit]
) -> t.WorkspaceEdit:
    """An edit of this version of the document; without a version for a client that knows none."""
    plain = [edit for edit in edits if isinstance(edit, t.TextEdit)]
    if not ls.client.document_changes:
        return t.WorkspaceEdit(changes={document.uri: plain})
    target = t.OptionalVersionedTextDocumentIdentifier(document.uri, document.version)
    return t.WorkspaceEdit(document_changes=[t.TextDocumentEdit(target, list(edits))])
