"""A spec that is open in the editor: lenses, what it means, refusals on its lines; and kernels to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lsprotocol import types as t

from .conftest import SPECS, Session, Start, plain, until

WINDOW, CAUSAL = SPECS
UNSUPPORTED = """import torch


def attention(q, k, v):
    s = q @ k.transpose(-1, -2)
    s = s.sort(dim=-1).values
    return torch.softmax(s, -1) @ v


def example_inputs():
    return torch.randn(1, 2, 64, 64), torch.randn(1, 2, 64, 64), torch.randn(1, 2, 64, 64)
"""

pytestmark = [pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="module")]


def open_spec(session: Session, name: str, text: str | None = None) -> str:
    uri = session.spec(name)
    text = (session.folder / name).read_text() if text is None else text
    session.client.text_document_did_open(t.DidOpenTextDocumentParams(t.TextDocumentItem(uri, "python", 1, text)))
    return text


async def lenses(session: Session, name: str) -> dict[str, t.CodeLens]:
    params = t.CodeLensParams(t.TextDocumentIdentifier(session.spec(name)))
    found = await session.client.text_document_code_lens_async(params)
    return {lens.command.title: lens for lens in found or [] if lens.command}


async def command(session: Session, name: str, /, **argument: Any) -> Any:
    return plain(await session.client.workspace_execute_command_async(t.ExecuteCommandParams(name, [argument])))


async def test_a_spec_has_lenses_and_its_meaning_after_it_was_asked_for(shared: Session) -> None:
    text = open_spec(shared, WINDOW)
    before = await lenses(shared, WINDOW)
    assert list(before) == ["What does this spec mean?", "Adapt a kernel…", "Start from an expert kernel…"]
    first = next(iter(before.values()))
    assert text.split("\n")[first.range.start.line].startswith("def attention(")
    reply = await command(shared, "cubridge.readSpec", spec=shared.spec(WINDOW))
    assert reply["state"] == "done", reply["message"]
    assert reply["means"]
    assert f"means: {reply['means']}" in await lenses(shared, WINDOW)
    changed = text.replace("def attention(", "def attention( ", 1)
    version = t.VersionedTextDocumentIdentifier(2, shared.spec(WINDOW))
    change = [t.TextDocumentContentChangeWholeDocument(changed)]
    shared.client.text_document_did_change(t.DidChangeTextDocumentParams(version, change))
    assert "What does this spec mean?" in await lenses(shared, WINDOW)  # what was said is of another text


async def test_a_refusal_is_a_diagnostic_on_the_line_of_the_spec(shared: Session) -> None:
    open_spec(shared, "refused.py", UNSUPPORTED)
    uri = shared.spec("refused.py")
    reply = await command(shared, "cubridge.readSpec", spec=uri)
    assert reply["state"] == "refused"
    await until(lambda: bool(shared.client.diagnostics.get(uri)))
    found = shared.client.diagnostics[uri]
    assert any("sort" in UNSUPPORTED.split("\n")[item.range.start.line] for item in found)
    assert all(str(item.code).startswith("CB2") for item in found)
    assert "not understood: see Problems" in await lenses(shared, "refused.py")


async def test_another_python_file_has_no_lens(shared: Session) -> None:
    open_spec(shared, "other.py", "print('no spec')\n")
    assert await lenses(shared, "other.py") == {}


async def test_bundled_kernels_that_fit_come_first_and_are_copied_never_over_a_file(
    shared: Session, tmp_path: Path
) -> None:
    rows = await command(shared, "cubridge.experts", spec=shared.spec(CAUSAL))
    names = [row["name"] for row in rows]
    assert {"flash_fwd_scalar", "flash_fwd_sm80"} <= set(names)
    assert set(names) <= {path.parent.name for path in Path("expert_kernels").glob("*/contract.toml")}
    fitting = [row["name"] for row in rows if not row["unfit"]]
    assert fitting
    assert names[: len(fitting)] == fitting
    for row in rows:
        assert not row["unfit"] or row["unfit"].startswith("is for ")
    folder = tmp_path.as_uri()
    written: list[Path] = []
    for _ in range(2):
        reply = await command(shared, "cubridge.copyExpert", name=fitting[0], folder=folder)
        assert reply["state"] == "done", reply["message"]
        written.append(Path(reply["kernel"].removeprefix("file://")))
    original = Path("expert_kernels") / fitting[0]
    assert [path.parent.name for path in written] == [fitting[0], f"{fitting[0]}-2"]
    for path in written:
        assert path.read_bytes() == (original / "kernel.cu").read_bytes()
        assert (path.parent / "contract.toml").read_bytes() == (original / "contract.toml").read_bytes()


async def test_an_unknown_bundled_kernel_is_refused(shared: Session) -> None:
    reply = await command(shared, "cubridge.copyExpert", name="nothing", folder=shared.folder.as_uri())
    assert reply["state"] == "refused"
    assert reply["message"].startswith("CB079: There is no bundled kernel 'nothing'")


async def test_the_only_kernel_of_the_workspace_is_taken(shared: Session) -> None:
    shared.open()
    options = {"use_simulator": False}
    reply = await command(shared, "cubridge.adapt", spec=shared.spec(CAUSAL), options=options)
    assert reply["state"] == "done", reply["message"]
    assert reply["kernel"] == shared.uri


async def test_without_trust_a_spec_is_not_run(start: Start) -> None:
    async with start("extension", trusted=False) as session:
        open_spec(session, WINDOW)
        reply = await command(session, "cubridge.readSpec", spec=session.spec(WINDOW))
        assert reply["state"] == "refused"
        assert reply["message"].startswith("CB071")
        reply = await command(session, "cubridge.copyExpert", name="flash_fwd_sm80", folder=session.folder.as_uri())
        assert reply["state"] == "refused"
        assert not (session.folder / "flash_fwd_sm80").exists()


async def test_specs_are_read_at_each_save_where_the_setting_says_so(start: Start) -> None:
    async with start("extension", readSpecs="save") as session:
        open_spec(session, WINDOW)
        assert "What does this spec mean?" in await lenses(session, WINDOW)
        saved = t.DidSaveTextDocumentParams(t.TextDocumentIdentifier(session.spec(WINDOW)))
        session.client.text_document_did_save(saved)

        async def read() -> bool:
            return any(title.startswith("means: ") for title in await lenses(session, WINDOW))

        await until(read)
