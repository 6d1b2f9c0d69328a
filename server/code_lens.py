"""Code lenses over the kernel: what it computes and how far that is verified, and what can be done with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lsprotocol import types as t

from cubridge_engine.diagnostics import make

from . import convert, job, spec_lens

if TYPE_CHECKING:
    from .app import CubridgeServer
    from .documents import Document
    from .engine import KernelView

FIRST_SCREEN = 25  # lines
WAIT_S = 5.0  # for a client that is not told to ask again; any other asks when the reading is there


async def code_lens(ls: CubridgeServer, params: t.CodeLensParams) -> list[t.CodeLens] | None:
    """``textDocument/codeLens``."""
    uri = params.text_document.uri
    if not ls.settings.code_lens:
        return None
    if not convert.is_kernel(uri):
        return await spec_lens.lenses(ls, uri)
    told = ls.client.lens_refresh
    document = await ls.documents.readable(uri, 0.0 if told else WAIT_S, refreshed=told)
    if document is None or document.reading is None:
        return []
    found: list[t.CodeLens] = []
    for view in document.reading.kernels:
        line = document.shown(view.span.line)
        if line is None:
            continue
        place = convert.line_range(line, document.text, ls.encoding)
        argument = kernel_argument(document, view)
        commands = (
            # What can be done first: beside a panel an editor is narrow, and the sentence may be cut.
            t.Command(title="Adapt to…", command="cubridge.adapt", arguments=[argument]),
            t.Command(title="Verify…", command="cubridge.verify", arguments=[argument]),
            t.Command(title="Explain", command="cubridge.explain", arguments=[argument]),
            t.Command(title=title(ls, document, view), command="cubridge.showIr", arguments=[argument]),
        )
        found += [t.CodeLens(range=place, command=command) for command in commands]
    return found + _signposts(ls, document) + _watched_only(ls, document)


def _watched_only(ls: CubridgeServer, document: Document) -> list[t.CodeLens]:
    """Over a kernel of which nothing was read, what watching showed."""
    seen, reading = ls.observed.of(document), document.reading
    if seen is None or reading is None or reading.source is None or reading.kernels:
        return []
    kernels = [item for item in reading.source.kernels() if item.name == seen.kernel_name or not seen.kernel_name]
    line = document.shown(reading.source.span(kernels[0].node).line) if kernels else None
    if line is None:
        return []
    text = f"{seen.level} · {seen.coverage.partition(';')[0]}"
    command = t.Command(title=text, command="cubridge.showIr", arguments=[{"kernel": document.uri}])
    return [t.CodeLens(range=convert.line_range(line, document.text, ls.encoding), command=command)]


def _signposts(ls: CubridgeServer, document: Document) -> list[t.CodeLens]:
    """On the first line, each kernel that lies below the first screen: for who opens the file to see what it is."""
    found: list[t.CodeLens] = []
    for view in document.reading.kernels if document.reading and ls.client.show_document else ():
        line = document.shown(view.span.line)
        if line is not None and line >= FIRST_SCREEN:
            argument = {"kernel": document.uri, "line": line}
            text = f"{view.name}: {view.summary} → line {line + 1}"
            command = t.Command(title=text, command="cubridge.revealLine", arguments=[argument])
            found.append(t.CodeLens(range=convert.line_range(0, document.text, ls.encoding), command=command))
    return found


async def reveal_line(ls: CubridgeServer, argument: Any = None) -> dict[str, Any]:
    """``workspace/executeCommand cubridge.revealLine``: show the 0-based ``line`` of ``kernel``."""
    request = job.parse_request("cubridge.revealLine", argument)
    line = job.field_of(argument, "line")
    if isinstance(request, job.Outcome):
        return {"state": request.state, "message": request.message}
    if not isinstance(line, int) or line < 0:
        why = make("CB072", command="cubridge.revealLine", problem="`line` is not a line number")
        return {"state": "refused", "message": f"{why.code}: {why.message}"}
    place = t.Range(t.Position(line, 0), t.Position(line, 0))
    if ls.client.show_document:
        await ls.window_show_document_async(t.ShowDocumentParams(request.kernel, take_focus=True, selection=place))
    return {"state": "done", "message": ""}


def kernel_argument(document: Document, view: KernelView) -> dict[str, Any]:
    """The argument of a command on one kernel: its name is said where the file has another one to mean."""
    argument: dict[str, Any] = {"kernel": document.uri}
    if document.reading and view is not document.reading.kernel:
        argument["options"] = {"kernel_name": view.name}
    return argument


def title(ls: CubridgeServer, document: Document, view: KernelView) -> str:
    """``GQA attention forward, tiles 64x64, D = 64 · lifted``; a verification of this very text replaces the level."""
    level = view.level
    if document.doubtful:
        level = "before the last change …"
    seen = ls.observed.of_view(document, view)
    if seen is not None:
        read = level if view.lifted.coverage.complete else seen.coverage.partition(";")[0]
        level = f"{read}, {seen.level}"
    sha = convert.sha256(document.data)
    for finding in ls.findings.of_kernel(document.path):
        if finding.job == "verify" and finding.kernel_sha == sha and finding.kernel_name in (view.name, ""):
            against = convert.base_name(finding.spec)
            level = f"{finding.level}: equals {against}" if finding.passed else f"differs from {against}"
    return " · ".join(part for part in (view.summary, level) if part)
