"""A real server process with a workspace of its own: a kernel of expert_kernels and specs of examples."""

from __future__ import annotations

import ast
import asyncio
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from lsprotocol import types as t
from pytest_lsp import LanguageClient, client_capabilities, make_test_lsp_client

KERNEL = Path("expert_kernels/flash_fwd_sm80/kernel.cu")
SENTENCE = 3  # which lens of a kernel says what it computes; before it are Adapt, Verify and Explain
WAIT_S = 120.0  # for what happens at once: a busy machine may take its time
SPECS = ("gemma2_softcap_window.py", "causal_bottom_right.py")


class Session:
    """One client talking to one server about one workspace."""

    def __init__(self, client: LanguageClient, folder: Path) -> None:
        self.client = client
        self.folder = folder
        self.path = folder / "kernel.cu"
        self.uri = self.path.as_uri()
        self.version = 0
        self.capabilities: t.ServerCapabilities | None = None

    @property
    def server_pid(self) -> int:
        """Process id of the server."""
        assert self.client._server is not None
        return self.client._server.pid

    def open(self, text: str | None = None) -> str:
        """didOpen of the kernel (with `text` in place of the file's)."""
        text = self.path.read_text() if text is None else text
        self.version += 1
        item = t.TextDocumentItem(self.uri, "cuda-cpp", self.version, text)
        self.client.text_document_did_open(t.DidOpenTextDocumentParams(item))
        return text

    def change(self, text: str) -> None:
        """didChange to `text`."""
        self.version += 1
        self.client.text_document_did_change(
            t.DidChangeTextDocumentParams(
                t.VersionedTextDocumentIdentifier(self.version, self.uri),
                [t.TextDocumentContentChangeWholeDocument(text)],
            )
        )

    async def command(self, name: str, **argument: Any) -> Any:
        """workspace/executeCommand with one object that names the kernel."""
        given = {"kernel": self.uri, **argument}
        reply = await self.client.workspace_execute_command_async(t.ExecuteCommandParams(name, [given]))
        return plain(reply)

    def spec(self, name: str) -> str:
        """URI of a spec of the workspace."""
        return (self.folder / name).as_uri()

    async def diagnostics(self, uri: str | None = None) -> list[t.Diagnostic]:
        """Pulled diagnostics of the kernel, or of `uri`."""
        report = await self.client.text_document_diagnostic_async(
            t.DocumentDiagnosticParams(t.TextDocumentIdentifier(uri or self.uri))
        )
        assert isinstance(report, t.RelatedFullDocumentDiagnosticReport)
        return list(report.items)

    async def problems(self) -> list[t.Diagnostic]:
        """Those that are errors or warnings: a sound kernel has none, but may have notes."""
        return [item for item in await self.diagnostics() if item.severity and item.severity.value <= 2]

    async def hover(self, line: int) -> str:
        """Text of the hover at the start of `line`, '' when there is none."""
        reply = await self.client.text_document_hover_async(
            t.HoverParams(t.TextDocumentIdentifier(self.uri), t.Position(line, 0))
        )
        return reply.contents.value if reply and isinstance(reply.contents, t.MarkupContent) else ""

    async def lenses(self) -> list[t.CodeLens]:
        """Lenses of the kernel, asked again until they are there."""
        for _ in range(1200):
            found = await self.client.text_document_code_lens_async(
                t.CodeLensParams(t.TextDocumentIdentifier(self.uri))
            )
            if found:
                return list(found)
            await asyncio.sleep(0.1)
        raise AssertionError("no lens in two minutes")

    async def actions(self, line: int, only: list[str] | None = None) -> list[t.CodeAction]:
        """Code actions on `line`."""
        place = t.Range(t.Position(line, 0), t.Position(line, 0))
        found = await self.client.text_document_code_action_async(
            t.CodeActionParams(t.TextDocumentIdentifier(self.uri), place, t.CodeActionContext([], only=only))
        )
        return [item if isinstance(item, t.CodeAction) else mended(item) for item in found or []]


def mended(item: t.Command) -> t.CodeAction:
    """lsprotocol's reader takes an action that has a command for a bare command and turns the inner one into text."""
    return t.CodeAction(item.title, command=t.Command(**ast.literal_eval(item.command)))


def plain(value: Any) -> Any:
    """pygls gives a command's reply as attribute bags: back to dicts and lists."""
    if isinstance(value, list | tuple):
        items: list[Any] = [plain(item) for item in value]
        return items
    if hasattr(value, "_asdict"):
        value = value._asdict()
    elif hasattr(value, "__dict__") and not isinstance(value, type):
        value = vars(value)
    return {key: plain(item) for key, item in value.items()} if isinstance(value, dict) else value


def modern(*, diff_editor: bool) -> t.ClientCapabilities:
    """A client that can do everything, as VS Code does; with or without our extension in it."""
    capabilities = client_capabilities("visual-studio-code")
    assert capabilities.text_document
    assert capabilities.workspace
    capabilities.text_document.diagnostic = t.DiagnosticClientCapabilities(related_document_support=True)
    capabilities.text_document.inlay_hint = t.InlayHintClientCapabilities()
    capabilities.workspace.inlay_hint = t.InlayHintWorkspaceClientCapabilities(refresh_support=True)
    capabilities.workspace.diagnostics = t.DiagnosticWorkspaceClientCapabilities(refresh_support=True)
    capabilities.workspace.did_change_watched_files = None
    capabilities.workspace.configuration = None
    capabilities.experimental = {"cubridgeDiffEditor": True} if diff_editor else None
    return capabilities


CLIENTS: dict[str, Callable[[], t.ClientCapabilities]] = {
    "extension": lambda: modern(diff_editor=True),
    "modern": lambda: modern(diff_editor=False),
    "neovim": lambda: client_capabilities("neovim@v0.11.0"),
    "emacs": lambda: client_capabilities("emacs"),
}

Start = Callable[..., AbstractAsyncContextManager[Session]]


def workspace(folder: Path) -> None:
    """Put the kernel and the specs into `folder`, and nothing else."""
    for path in folder.iterdir():
        path.unlink()
    shutil.copy(KERNEL, folder / "kernel.cu")
    for name in SPECS:
        shutil.copy(Path("examples") / name, folder / name)


@asynccontextmanager
async def connect(folder: Path, name: str, **settings: Any) -> AsyncIterator[Session]:
    """A server of its own for the client `name`, with `settings` as initialization options."""
    client = make_test_lsp_client()
    await client.start_io(sys.executable, "-m", "tests.server.patient")
    session = Session(client, folder)
    try:
        result = await client.initialize_session(
            t.InitializeParams(
                capabilities=CLIENTS[name](),
                root_uri=folder.as_uri(),
                workspace_folders=[t.WorkspaceFolder(folder.as_uri(), "w")],
                initialization_options=settings,
            )
        )
        session.capabilities = result.capabilities
        yield session
    finally:  # also after a failed assertion: a server left running would hang the test run
        await asyncio.wait_for(client.shutdown_session(), WAIT_S)
        await asyncio.wait_for(client.stop(), WAIT_S)


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """``async with start("extension", trusted=False) as session``: a server for one test."""
    workspace(tmp_path)
    return partial(connect, tmp_path)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server_of_module(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Session]:
    """One server, and one warm worker, for the tests of a module that leave both sound."""
    async with connect(tmp_path_factory.mktemp("workspace"), "extension") as session:
        yield session


@pytest_asyncio.fixture(loop_scope="module")
async def shared(server_of_module: Session) -> AsyncIterator[Session]:
    """The module's server with a fresh workspace; the test opens the kernel and the fixture closes it."""
    session = server_of_module
    workspace(session.folder)
    session.uri = session.path.as_uri()
    session.client.progress_reports.clear()
    session.client.diagnostics.clear()
    changed = [t.FileEvent(session.spec(name), t.FileChangeType.Changed) for name in SPECS]
    session.client.workspace_did_change_watched_files(t.DidChangeWatchedFilesParams(changed))
    yield session
    identifier = t.TextDocumentIdentifier(session.path.as_uri())
    session.client.text_document_did_close(t.DidCloseTextDocumentParams(identifier))


async def until(check: Callable[[], Awaitable[bool]] | Callable[[], bool], seconds: float = WAIT_S) -> None:
    """Wait for `check` to hold; fails after `seconds`."""
    for _ in range(int(seconds / 0.05)):
        result = check()
        if await result if isinstance(result, Awaitable) else result:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"did not happen within {seconds} s")
