"""Damaged kernels through a real server: every request of an editor is answered, and memory stays what it was."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
import pytest_asyncio
from lsprotocol import types as t

from tests.fuzz.damage import damaged
from tests.server.conftest import Session, connect, workspace

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="module")]

TEXTS = 6
EDITS = 500
WARM = 100  # edits after which caches are full
GROWTH_MB = 60


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def session(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Session]:
    folder = tmp_path_factory.mktemp("workspace")
    workspace(folder)
    async with connect(folder, "extension") as found:
        yield found


async def asked(session: Session, line: int) -> None:
    """What an editor asks about an open file. Each raises where the server answers with an error."""
    client, document = session.client, t.TextDocumentIdentifier(session.uri)
    place = t.Position(line, 2)
    everything = t.Range(t.Position(0, 0), t.Position(line + 50, 0))
    await session.diagnostics()
    await client.text_document_hover_async(t.HoverParams(document, place))
    await client.text_document_code_lens_async(t.CodeLensParams(document))
    await client.text_document_inlay_hint_async(t.InlayHintParams(document, everything))
    await client.text_document_document_symbol_async(t.DocumentSymbolParams(document))
    await client.text_document_code_action_async(
        t.CodeActionParams(document, everything, t.CodeActionContext(await session.diagnostics()))
    )


async def test_every_request_about_a_damaged_kernel_is_answered(session: Session) -> None:
    original = (ROOT / "tests/lift/kernels/warp_per_row.cu").read_text()
    session.open(original)
    for seed in range(TEXTS):
        text = damaged(original, seed)
        session.change(text)
        await asyncio.wait_for(asked(session, random.Random(seed).randrange(text.count("\n") + 1)), 300)
    assert psutil.pid_exists(session.server_pid)
    session.change(original)
    assert not await session.problems()


def resident(pid: int) -> float:
    """Megabytes of the server without its worker."""
    return psutil.Process(pid).memory_info().rss / 2**20


async def test_hundreds_of_edits_do_not_make_the_server_grow(session: Session) -> None:
    original = (ROOT / "tests/lift/kernels/block2d.cu").read_text()
    rng = random.Random(11)
    text, after = original, {}
    for edit in range(1, EDITS + 1):
        at = rng.randrange(len(text))
        text = damaged(original, edit) if edit % 5 == 0 else text[:at] + rng.choice("x; }{()") + text[at:]
        session.change(text)
        if edit % 50 == 0:
            await asyncio.wait_for(session.diagnostics(), 300)
        if edit in (WARM, EDITS):
            after[edit] = resident(session.server_pid)
    assert after[EDITS] - after[WARM] < GROWTH_MB
    session.change(original)  # a server that still reads damaged text takes its time to end
    assert not await asyncio.wait_for(session.problems(), 300)
