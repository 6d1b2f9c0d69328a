"""The server object: its state and the routing table. What each request does is in the module of that feature."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from lsprotocol import types as t
from pygls.lsp.server import LanguageServer
from pygls.protocol import LanguageServerProtocol

from cubridge_engine import __version__
from cubridge_engine.source import Encoding

from . import (
    adapt,
    ask_model,
    capabilities,
    check,
    code_actions,
    code_lens,
    code_pages,
    contract,
    convert,
    diagnostics,
    engine,
    expert_kernels,
    explain,
    hover,
    inlay_hints,
    ir_diff,
    ir_tree,
    mask_map,
    observed,
    phase_marks,
    pipeline_view,
    settings,
    show_ir,
    spec_reading,
    specs,
    symbols,
    toml_notes,
    verify,
)
from . import codes as codes  # registers the server's diagnostic codes
from .costs import Costs
from .documents import Documents
from .findings import Findings
from .running import Running

LOG = logging.getLogger(__name__)
SHUTDOWN_S = 2.0  # for running jobs to answer that they were cancelled
SPECS_FRESH_S = 5.0  # how long a scan of the workspace is good when no file watcher says otherwise


class Protocol(LanguageServerProtocol):
    """pygls answers a cancelled ``workspace/executeCommand`` but leaves the command's own task running: stop that."""

    def _handle_cancel_notification(self, msg_id: str | int) -> None:
        super()._handle_cancel_notification(msg_id)
        server: Any = self._server
        if isinstance(server, CubridgeServer):
            server.running.cancel(msg_id)


class CubridgeServer(LanguageServer):
    """State of one session. Everything here lives on the event loop."""

    def __init__(self) -> None:
        # Full text on each change: pygls applies ranges on lines as str.splitlines() cuts them, also at form feeds and
        # U+2028, where editors do not. A kernel is some tens of kilobytes; being right costs nothing that is felt.
        super().__init__(
            "cubridge", __version__, text_document_sync_kind=t.TextDocumentSyncKind.Full, protocol_cls=Protocol
        )
        self.client = capabilities.Client()
        self.settings = settings.Settings()
        self.encoding: Encoding = "utf-16"
        self.documents = Documents(self._on_read, self._on_checked, lambda: self.settings.check_while_typing)
        self.findings = Findings()
        self.observed = observed.Observations()
        self.adaptations = adapt.Adaptations()
        self.agreed_hosts: set[str] = set()  # where the user agreed to send what a model is asked
        self.costs = Costs()
        self.meanings = spec_reading.Meanings()
        self.worker = engine.Worker()
        self.watcher = engine.Worker()  # for checks that nobody waits for
        self.saves: dict[str, asyncio.Task[None]] = {}  # checks since a save, by URI
        self.lookups: set[asyncio.Task[None]] = set()  # for what earlier runs observed
        self.running = Running(lambda: self.protocol.msg_id)
        self._specs: tuple[specs.SpecFile, ...] = ()
        self._specs_until = 0.0

    async def specs(self) -> tuple[specs.SpecFile, ...]:
        """The specs of the workspace folders; without a folder, of the folders of the open kernels."""
        if time.monotonic() > self._specs_until:
            self._specs = await asyncio.to_thread(specs.scan, self.folders())
            self._specs_until = time.monotonic() + SPECS_FRESH_S
        return self._specs

    async def kernels(self) -> tuple[specs.SpecFile, ...]:
        """The CUDA files of the workspace folders that have a kernel."""
        return await asyncio.to_thread(specs.scan_kernels, self.folders())

    def folders(self) -> list[str]:
        """Paths of the workspace folders; without any, the folders of the open kernels."""
        folders = [convert.path_of(folder.uri) for folder in self.workspace.folders.values()]
        folders = folders or ([self.workspace.root_path] if self.workspace.root_path else [])
        return folders or [
            convert.path_of(uri).rpartition("/")[0] for uri in self.documents.uris() if uri.startswith("file:")
        ]

    def forget_specs(self) -> None:
        """A Python file came, went or changed: scan again when asked next."""
        self._specs_until = 0.0

    def file_changed(self, path: str, data: bytes) -> None:
        """`path` has a new text: what was found about the old one goes."""
        changed = self.findings.changed(path, data)
        if changed:
            diagnostics.publish(self, changed)
            self.refresh_lenses()

    def toml_changed(self, path: str) -> None:
        """`path`, if it is a contract or has settings, has a new text: say what is wrong with it."""
        if path.endswith(".toml"):
            diagnostics.publish(self, [path])

    def refresh_lenses(self) -> None:
        """Ask the client to ask again for lenses."""
        if self.client.lens_refresh:
            self.workspace_code_lens_refresh(None)

    def _on_read(self, uri: str) -> None:
        document = self.documents.get(uri)
        if document is None:
            return
        diagnostics.publish(self, [document.path])
        self.refresh_lenses()
        if self.client.hint_refresh and self.settings.inlay_hints:
            self.workspace_inlay_hint_refresh(None)
        diagnostics.publish(self, toml_notes.beside(document.path))

    def _on_checked(self, uri: str) -> None:
        document = self.documents.get(uri)
        if document is not None:
            diagnostics.publish(self, [document.path])


async def initialize(ls: CubridgeServer, params: t.InitializeParams) -> None:
    """``initialize``: what the client can do, and its first settings."""
    ls.client = capabilities.resolve(params.capabilities)
    ls.settings = settings.merge(settings.Settings(), params.initialization_options)
    ls.encoding = convert.encoding_of(ls.workspace.position_encoding)


async def initialized(ls: CubridgeServer, _params: t.InitializedParams) -> None:
    """``initialized``: ask for changes of the settings, and of files that decide what is said of a kernel."""
    wanted: list[t.Registration] = []
    if ls.client.watch_files:
        globs = ("**/*.py", f"**/{toml_notes.CONTRACT}", f"**/{toml_notes.SETTINGS}")
        options = t.DidChangeWatchedFilesRegistrationOptions([t.FileSystemWatcher(glob_pattern=glob) for glob in globs])
        wanted.append(t.Registration("cubridge-specs", t.WORKSPACE_DID_CHANGE_WATCHED_FILES, options))
    if ls.client.configuration and ls.client.configuration_changes:
        wanted.append(t.Registration("cubridge-settings", t.WORKSPACE_DID_CHANGE_CONFIGURATION))
    if wanted:
        await ls.client_register_capability_async(t.RegistrationParams(wanted))


def did_open(ls: CubridgeServer, params: t.DidOpenTextDocumentParams) -> None:
    """``textDocument/didOpen``."""
    item = params.text_document
    if convert.is_kernel(item.uri):
        ls.documents.open(item.uri, item.version, item.text)
        looking = asyncio.ensure_future(observed.opened(ls, item.uri))
        ls.lookups.add(looking)
        looking.add_done_callback(ls.lookups.discard)
    elif convert.is_spec(item.uri) or toml_notes.is_contract(item.uri):
        path = convert.path_of(item.uri)
        ls.documents.keep(path, item.text)
        ls.toml_changed(path)


def did_change(ls: CubridgeServer, params: t.DidChangeTextDocumentParams) -> None:
    """``textDocument/didChange``."""
    uri = params.text_document.uri
    if convert.is_kernel(uri):
        text = ls.workspace.get_text_document(uri).source
        ls.documents.change(uri, params.text_document.version, text)
        ls.file_changed(convert.path_of(uri), ls.documents.text(convert.path_of(uri)).data)
    elif convert.is_spec(uri) or toml_notes.is_contract(uri):
        path = convert.path_of(uri)
        ls.documents.keep(path, ls.workspace.get_text_document(uri).source)
        ls.file_changed(path, ls.documents.text(path).data)
        ls.toml_changed(path)


async def did_save(ls: CubridgeServer, params: t.DidSaveTextDocumentParams) -> None:
    """``textDocument/didSave``: of a kernel, and of a spec for clients that attach this server to Python files."""
    path = convert.path_of(params.text_document.uri)
    if convert.is_kernel(params.text_document.uri):
        await check.saved(ls, params.text_document.uri)
    elif toml_notes.is_contract(params.text_document.uri):
        ls.documents.check_again()
    elif convert.is_spec(params.text_document.uri):
        ls.forget_specs()
        text = ls.documents.text(path).data
        ls.file_changed(path, text)
        if ls.settings.read_specs == "save" and ls.settings.trusted and specs.entry_of(text.decode("utf-8", "replace")):
            await spec_reading.read(ls, path)


def did_close(ls: CubridgeServer, params: t.DidCloseTextDocumentParams) -> None:
    """``textDocument/didClose``: a closed kernel has no reading diagnostics any more."""
    uri = params.text_document.uri
    if convert.is_kernel(uri):
        ls.documents.close(uri)
        diagnostics.publish(ls, [convert.path_of(uri)])
    elif convert.is_spec(uri) or toml_notes.is_contract(uri):
        path = convert.path_of(uri)
        ls.documents.keep(path, None)
        ls.file_changed(path, convert.read_disk(path))
        ls.toml_changed(path)


def did_change_watched_files(ls: CubridgeServer, params: t.DidChangeWatchedFilesParams) -> None:
    """``workspace/didChangeWatchedFiles``."""
    ls.forget_specs()
    for change in params.changes:
        path = convert.path_of(change.uri)
        ls.file_changed(path, ls.documents.text(path).data)
        ls.toml_changed(path)
    if any(not convert.is_spec(change.uri) for change in params.changes):
        ls.documents.check_again()


async def did_change_configuration(ls: CubridgeServer, params: t.DidChangeConfigurationParams) -> None:
    """``workspace/didChangeConfiguration``: pulled where the client can, else taken from the notification."""
    values: Any = params.settings
    if ls.client.configuration:
        item = t.ConfigurationItem(section="cubridge")
        (values,) = await ls.workspace_configuration_async(t.ConfigurationParams([item])) or (None,)
    elif isinstance(values, dict):
        values = values.get("cubridge", values)
    before, ls.settings = ls.settings, settings.merge(ls.settings, values)
    if ls.settings.check_while_typing != before.check_while_typing:
        ls.documents.check_again()
    ls.refresh_lenses()
    if ls.client.hint_refresh:
        ls.workspace_inlay_hint_refresh(None)


async def shutdown(ls: CubridgeServer, _params: None) -> None:
    """``shutdown``: no worker may outlive the server, and no running request may be left: pygls trips over those."""
    await ls.running.drain(SHUTDOWN_S)
    await ls.worker.close()
    await ls.watcher.close()


async def list_specs(ls: CubridgeServer, argument: Any = None) -> list[dict[str, str]]:
    """``workspace/executeCommand cubridge.specs``: ``[{uri, name, entry}]``, those nearest to ``kernel`` first."""
    kernel = argument.get("kernel", "") if isinstance(argument, dict) else getattr(argument, "kernel", "")
    found = specs.nearest_first(await ls.specs(), convert.path_of(str(kernel)))
    return [{"uri": convert.uri_of(item.path), "name": item.name, "entry": item.entry} for item in found]


# method -> handler, options. The handlers take the server first, which pygls passes because of its annotation.
FEATURES: tuple[tuple[str, Any, Any], ...] = (
    (t.INITIALIZE, initialize, None),
    (t.INITIALIZED, initialized, None),
    (t.SHUTDOWN, shutdown, None),
    (t.TEXT_DOCUMENT_DID_OPEN, did_open, None),
    (t.TEXT_DOCUMENT_DID_CHANGE, did_change, None),
    (t.TEXT_DOCUMENT_DID_SAVE, did_save, t.SaveOptions(include_text=False)),
    (t.TEXT_DOCUMENT_DID_CLOSE, did_close, None),
    (t.WORKSPACE_DID_CHANGE_WATCHED_FILES, did_change_watched_files, None),
    (t.WORKSPACE_DID_CHANGE_CONFIGURATION, did_change_configuration, None),
    (t.TEXT_DOCUMENT_HOVER, hover.hover, None),
    (t.TEXT_DOCUMENT_CODE_LENS, code_lens.code_lens, t.CodeLensOptions(resolve_provider=False)),
    (t.TEXT_DOCUMENT_CODE_ACTION, code_actions.code_action, code_actions.OPTIONS),
    (t.CODE_ACTION_RESOLVE, code_actions.resolve, None),
    (t.TEXT_DOCUMENT_DOCUMENT_SYMBOL, symbols.document_symbol, t.DocumentSymbolOptions(label="CuBridge")),
    (t.TEXT_DOCUMENT_INLAY_HINT, inlay_hints.inlay_hint, t.InlayHintOptions(resolve_provider=False)),
    (t.TEXT_DOCUMENT_DIAGNOSTIC, diagnostics.pull, diagnostics.OPTIONS),
)

COMMANDS: dict[str, Any] = {
    "cubridge.adapt": adapt.adapt,
    "cubridge.askModel": ask_model.ask_model,
    "cubridge.verify": verify.verify,
    "cubridge.check": check.check,
    "cubridge.codePage": code_pages.code_page,
    "cubridge.explain": explain.explain,
    "cubridge.compare": explain.compare,
    "cubridge.contract": contract.contract,
    "cubridge.showIr": show_ir.show_ir,
    "cubridge.irTree": ir_tree.ir_tree,
    "cubridge.irDiff": ir_diff.ir_diff,
    "cubridge.pipeline": pipeline_view.pipeline,
    "cubridge.maskMap": mask_map.mask_map,
    "cubridge.revealLine": code_lens.reveal_line,
    "cubridge.phases": phase_marks.phase_marks,
    "cubridge.readSpec": spec_reading.read_spec,
    "cubridge.experts": expert_kernels.list_experts,
    "cubridge.copyExpert": expert_kernels.copy,
    "cubridge.specs": list_specs,
}


def create_server() -> CubridgeServer:
    """A server with every feature registered, not yet listening."""
    server = CubridgeServer()
    for method, handler, options in FEATURES:
        server.feature(method, options)(handler)
    for name, handler in COMMANDS.items():
        server.command(name)(_command(handler))
    return server


def _command(handler: Any) -> Any:
    """pygls evaluates a command's annotations and counts its arguments; clients may send none: `handler` refuses."""

    async def run(ls: CubridgeServer, *arguments: Any) -> Any:
        return await handler(ls, arguments[0] if arguments else None)

    return run
