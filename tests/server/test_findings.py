"""Findings while typing: on the responsible line, gone with the mistake, ignored with a reason, mended where that is
certain."""

from __future__ import annotations

from pathlib import Path

import pytest
from lsprotocol import types as t

from server import engine
from server.checks import run
from server.reuse import Lifts

from .conftest import Session, Start, until

pytestmark = [pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="module")]
BARRIER = "    __syncthreads();\n"
MISSING = {"CB851", "CB852"}  # reuse, or a read, without a barrier
EXPERTS = sorted(Path("expert_kernels").glob("*/kernel.cu"))


def line_of(text: str, needle: str) -> int:
    return next(number for number, line in enumerate(text.split("\n")) if needle in line)


def without_barrier(text: str) -> str:
    """The kernel without the barrier behind the wait in its loop."""
    assert BARRIER in text
    return text.replace(BARRIER, "", 1)


async def findings(session: Session) -> list[t.Diagnostic]:
    return [item for item in await session.diagnostics() if str(item.code) >= "CB845"]


async def test_a_missing_barrier_is_found_where_the_data_are_read_and_goes_when_it_is_back(shared: Session) -> None:
    text = shared.open()
    assert await findings(shared) == []
    shared.change(without_barrier(text))
    found = await findings(shared)
    assert {item.code for item in found} <= MISSING
    assert found
    first = found[0]
    assert first.severity == t.DiagnosticSeverity.Error
    line = without_barrier(text).split("\n")[first.range.start.line]
    assert "ldmatrix" in line or "mma" in line or "cp_async" in line, line
    assert first.range.end.line - first.range.start.line <= 1
    shared.change(text)
    assert await findings(shared) == []


async def test_a_finding_moves_with_its_text_and_not_with_time(shared: Session) -> None:
    text = without_barrier(shared.path.read_text())
    shared.open(text)
    before = await findings(shared)
    shared.change("// a note\n// and another\n" + text)
    after = await findings(shared)
    assert [(item.code, item.range.start.line) for item in after] == [
        (item.code, item.range.start.line + 2) for item in before
    ]


async def test_clients_that_cannot_pull_are_told(start: Start) -> None:
    async with start("emacs") as session:
        text = session.open()
        session.change(without_barrier(text))

        def told() -> bool:
            return any(item.code in MISSING for item in session.client.diagnostics.get(session.uri, []))

        await until(told)
        session.change(text)
        await until(lambda: not told())


async def test_a_setting_turns_it_off(start: Start) -> None:
    async with start("extension", **{"check.whileTyping": False}) as session:
        session.open(without_barrier(session.path.read_text()))
        assert await findings(session) == []
        values = {"cubridge": {"check": {"whileTyping": True}}}
        session.client.workspace_did_change_configuration(t.DidChangeConfigurationParams(values))

        async def told() -> bool:
            return bool(await findings(session))

        await until(told)


async def test_a_kernel_that_cannot_be_run_at_a_save_is_told_of(start: Start) -> None:
    """Without a word no finding would look like nothing wrong. Watching is a wish of its own, also without reading."""
    settings = {"check.whileTyping": False, "check.watch": "save", "timeLimit": 0.1}
    async with start("extension", **settings) as session:
        session.open()
        saved = t.DidSaveTextDocumentParams(t.TextDocumentIdentifier(session.uri))
        session.client.text_document_did_save(saved)

        def told() -> bool:
            return any("was saved and could not be run" in item.message for item in session.client.messages)

        await until(told)


async def test_an_unknown_code_or_word_in_the_settings_of_a_project_is_told_in_them(
    start: Start, tmp_path: Path
) -> None:
    path = tmp_path / "cubridge.toml"
    path.write_text('[check]\nseverity = {CB851 = "off", CB852 = "off", CB123 = "loud"}\n')
    async with start("extension") as session:
        session.open(without_barrier(session.path.read_text()))
        assert await findings(session) == []  # off

        async def told() -> bool:
            return [str(item.code) for item in session.client.diagnostics.get(path.as_uri(), [])] == ["CB894"]

        await until(told)


async def test_ignoring_inserts_a_comment_that_counts_once_it_has_a_reason(shared: Session) -> None:
    text = without_barrier(shared.path.read_text())
    shared.open(text)
    found = await findings(shared)
    at = found[0].range.start.line
    actions = [item for item in await shared.actions(at) if item.title.startswith(f"Ignore {found[0].code}")]
    assert len(actions) == 1
    assert actions[0].kind == "quickfix"
    assert actions[0].edit
    changed = apply(text, actions[0].edit)
    assert changed.split("\n")[at].strip() == f"// cubridge: ignore[{found[0].code}] <reason>"
    shared.change(changed)
    assert {"CB891", str(found[0].code)} <= {str(item.code) for item in await findings(shared)}
    shared.change(changed.replace("<reason>", "the tile is private to a warp"))
    left = await findings(shared)
    assert [(item.code, item.range.start.line) for item in left] == [
        (item.code, item.range.start.line + 1) for item in found[1:] if item.range.start.line != at
    ]


async def fix_of(session: Session, line: int) -> t.CodeAction:
    """The quick fix on a line, once it is verified."""
    found: list[t.CodeAction] = []

    async def offered() -> bool:
        found[:] = [item for item in await session.actions(line, ["quickfix"]) if "Insert" in item.title]
        return bool(found)

    await until(offered)
    return found[0]


async def test_a_fix_is_offered_when_it_is_verified_and_takes_the_finding_away(shared: Session) -> None:
    text = shared.path.read_text()
    broken = without_barrier(text)
    shared.open(broken)
    found = await findings(shared)
    action = await fix_of(shared, found[0].range.start.line)
    assert action.kind == "quickfix"
    assert action.edit is None  # filled in when it is chosen
    assert [item.code for item in action.diagnostics or []] == [found[0].code]
    resolved = await shared.client.code_action_resolve_async(action)
    assert resolved.edit is not None
    mended = apply(broken, resolved.edit)
    assert mended.count("__syncthreads();") == text.count("__syncthreads();")
    shared.change(mended)
    assert await findings(shared) == []
    # It was verified on the text before: of this one it is no edit.
    assert (await shared.client.code_action_resolve_async(action)).edit is None


async def test_clients_that_do_not_resolve_get_the_edit_at_once(start: Start) -> None:
    async with start("emacs") as session:
        broken = without_barrier(session.path.read_text())
        session.open(broken)

        def found() -> list[int]:
            told = session.client.diagnostics.get(session.uri, [])
            return [item.range.start.line for item in told if item.code in MISSING]

        await until(lambda: bool(found()))
        action = await fix_of(session, found()[0])
        assert action.edit is not None
        edits = action.edit.changes or {session.uri: ()}
        assert len(edits[session.uri]) == 1 or action.edit.document_changes


async def test_codes_link_to_pages_and_the_pages_are_there(shared: Session) -> None:
    shared.open(without_barrier(shared.path.read_text()))
    (first, *_) = await findings(shared)
    assert first.code_description is not None
    page = Path(first.code_description.href.removeprefix("file://"))
    assert page.read_text().startswith(f"# {first.code}")
    listed = await shared.command("cubridge.codePage")
    assert {item["code"] for item in listed["codes"]} > MISSING
    reply = await shared.command("cubridge.codePage", code="CB852")
    assert reply["text"].startswith("# CB852")
    assert (await shared.command("cubridge.codePage", code="CB000"))["message"].startswith("CB085")


def apply(text: str, edit: t.WorkspaceEdit) -> str:
    """`text` with the edits of one file."""
    assert edit.document_changes is not None
    (change,) = edit.document_changes
    assert isinstance(change, t.TextDocumentEdit)
    lines = text.split("\n")
    for one in sorted(change.edits, key=lambda item: item.range.start, reverse=True):
        first, last = one.range.start, one.range.end
        new = one.snippet.value if isinstance(one, t.SnippetTextEdit) else one.new_text
        end = lines[last.line][last.character :]
        lines[first.line : last.line + 1] = (lines[first.line][: first.character] + new + end).split("\n")
    return "\n".join(lines)


@pytest.mark.parametrize("path", EXPERTS, ids=lambda path: path.parent.name)
async def test_sound_kernels_have_no_findings_in_the_editor(path: Path) -> None:
    reading = engine.read(str(path.absolute()), path.read_bytes(), None, Lifts())
    found = run(str(path.absolute()), reading)
    assert found.broken is None
    assert [item.diagnostic.message for item in found.found] == []
