"""What a job found goes when a file beside the kernel changes that decided it: the contract, the settings."""

from __future__ import annotations

from pathlib import Path

import pytest
from lsprotocol import types as t

from .conftest import Session, Start, until

pytestmark = [pytest.mark.timeout(600)]
BARRIER = "    __syncthreads();\n"
CONTRACT = Path("expert_kernels/flash_fwd_sm80/contract.toml")


def watched(session: Session, path: Path) -> None:
    event = t.FileEvent(path.as_uri(), t.FileChangeType.Changed)
    session.client.workspace_did_change_watched_files(t.DidChangeWatchedFilesParams([event]))


async def test_a_finding_of_a_check_goes_when_the_contract_or_the_settings_change(start: Start) -> None:
    async with start("extension", **{"check.whileTyping": False}) as session:
        contract, settings = session.folder / "contract.toml", session.folder / "cubridge.toml"
        session.open(session.path.read_text().replace(BARRIER, "", 1))

        async def shown() -> set[str]:
            return {str(item.code) for item in await session.diagnostics() if str(item.code) >= "CB845"}

        async def checked() -> set[str]:
            reply = await session.command("cubridge.check")
            assert reply["state"] == "done", reply["message"]
            return await shown()

        async def gone() -> bool:
            return await shown() == set()

        assert await checked() & {"CB851", "CB852"}
        contract.write_text(CONTRACT.read_text())  # there was none
        watched(session, contract)
        await until(gone)
        found = await checked()
        assert found
        watched(session, contract)  # touched, not changed
        assert await shown() == found
        uri, text = contract.as_uri(), contract.read_text()
        session.client.text_document_did_open(t.DidOpenTextDocumentParams(t.TextDocumentItem(uri, "toml", 1, text)))
        assert await shown() == found
        session.client.text_document_did_change(
            t.DidChangeTextDocumentParams(
                t.VersionedTextDocumentIdentifier(2, uri), [t.TextDocumentContentChangeWholeDocument(f"# \n{text}")]
            )
        )
        await until(gone)
        settings.write_text("[check]\n")
        assert await checked() == found
        settings.write_text('[check]\narch = "sm_90"\n')
        watched(session, settings)
        await until(gone)
