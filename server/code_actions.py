"""Code actions inside a kernel: mend or ignore a finding; adapt it to, or verify it against, each spec of the
workspace; apply an adaptation.

Adapting takes seconds, far too long for a resolve request, so the action is a command. Applying an adaptation that was
already computed is an edit: filled in at resolve where the client can, at once where it cannot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lsprotocol import types as t

from . import adapt, ask_model, convert, quick_fixes, specs
from .code_lens import kernel_argument

if TYPE_CHECKING:
    from .app import CubridgeServer
    from .documents import Document
    from .engine import KernelView

ADAPT = "refactor.rewrite.cubridge"
VERIFY = "cubridge.verify"
MAX_SPECS = 12  # nearest first; the command without a spec offers all of them
WAIT_S = 1.0

OPTIONS = t.CodeActionOptions(code_action_kinds=[quick_fixes.QUICK_FIX, ADAPT, VERIFY], resolve_provider=True)


async def code_action(ls: CubridgeServer, params: t.CodeActionParams) -> list[t.CodeAction] | None:
    """``textDocument/codeAction``."""
    uri = params.text_document.uri
    if not convert.is_kernel(uri):
        return None
    mends = await _mends(ls, params)
    document = await ls.documents.fresh(uri, WAIT_S)
    if document is None or document.reading is None:
        return mends
    first, last = (document.read_line(line) for line in (params.range.start.line, params.range.end.line))
    view = document.reading.covering(first, last) if first is not None and last is not None else None
    if view is None:
        return mends
    found = specs.nearest_first(await ls.specs(), document.path)[:MAX_SPECS]
    actions = [_apply(ls, document, ready) for ready in ls.adaptations.ready(document.path, ls.documents.text)]
    actions += [_command("Adapt this kernel to", ADAPT, "cubridge.adapt", document, view, spec) for spec in found]
    actions += _with_model(ls, document, view)
    actions += [_command("Verify against", VERIFY, "cubridge.verify", document, view, spec) for spec in found]
    return mends + [action for action in actions if _wanted(action, params.context.only)]


async def _mends(ls: CubridgeServer, params: t.CodeActionParams) -> list[t.CodeAction]:
    """Quick fixes of what was found on these lines, if the client wants any."""
    if not _is_wanted(quick_fixes.QUICK_FIX, params.context.only):
        return []
    document = await ls.documents.checked(params.text_document.uri, quick_fixes.WAIT_S, fixes=True)
    return quick_fixes.actions(ls, document, params.range.start.line, params.range.end.line) if document else []


def resolve(ls: CubridgeServer, action: t.CodeAction) -> t.CodeAction:
    """``codeAction/resolve``: the edit of an adaptation or of a fix, from its data alone; no edit if it no longer fits
    the text."""
    data: Any = action.data
    uri, spec = _field(data, "kernel"), _field(data, "spec")
    document = ls.documents.get(uri)
    if document is not None and convert.field(data, "fix") is not None:
        quick_fixes.resolve(ls, document, action, data)
    elif document is not None:
        for ready in ls.adaptations.ready(document.path, ls.documents.text):
            if ready.spec == convert.path_of(spec):
                action.edit = adapt.workspace_edit(ls, document, ready)
    return action


def _command(
    verb: str, kind: str, command: str, document: Document, view: KernelView, spec: specs.SpecFile
) -> t.CodeAction:
    argument = kernel_argument(document, view) | {"spec": convert.uri_of(spec.path), "version": document.version}
    title = f"{verb} {spec.name}"
    return t.CodeAction(title=title, kind=kind, command=t.Command(title=title, command=command, arguments=[argument]))


def _with_model(ls: CubridgeServer, document: Document, view: KernelView) -> list[t.CodeAction]:
    """Ask the model, where one is named and the rules have just refused: an action for each such spec."""
    endpoint = ask_model.configured(ls)
    if endpoint is None:
        return []
    actions: list[t.CodeAction] = []
    for finding in ask_model.refused_before(ls, document.path, convert.sha256(document.data)):
        spec = specs.SpecFile(finding.spec, "")
        verb = f"Ask the model '{endpoint.model}' to adapt this kernel to"
        action = _command(verb, ADAPT, "cubridge.askModel", document, view, spec)
        actions.append(_tagged(ls, action))
    return actions


def _tagged(ls: CubridgeServer, action: t.CodeAction) -> t.CodeAction:
    """`action` with the tag of LSP 3.18 for what a model wrote, where the client knows it."""
    if ls.client.llm_tag:
        action.tags = [t.CodeActionTag.LlmGenerated]
    return action


def _apply(ls: CubridgeServer, document: Document, ready: adapt.Ready) -> t.CodeAction:
    proposed = f", proposed by {ready.model}" if ready.model else ""
    action = t.CodeAction(
        title=f"Apply the adaptation to {convert.base_name(ready.spec)} (level {ready.level}{proposed})",
        kind=ADAPT,
        data={"kernel": document.uri, "spec": convert.uri_of(ready.spec), "version": document.version},
    )
    if ready.model:
        _tagged(ls, action)
    return action if ls.client.resolve_action_edit else resolve(ls, action)


def _wanted(action: t.CodeAction, only: Any) -> bool:
    return _is_wanted(str(action.kind), only)


def _is_wanted(kind: str, only: Any) -> bool:
    """LSP kinds are hierarchical: a client that asks for ``refactor`` gets ``refactor.rewrite.cubridge``."""
    if not only:
        return True
    names = [item.value if isinstance(item, t.CodeActionKind) else str(item) for item in only]
    return any(name == "" or kind == name or kind.startswith(name + ".") for name in names)


def _field(data: Any, name: str) -> str:
    value = convert.field(data, name)
    return value if isinstance(value, str) else ""
