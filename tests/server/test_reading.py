"""What the server does by reading alone, over a real connection: hover, lens, hints, actions, diagnostics."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from lsprotocol import types as t

from .conftest import SENTENCE, SPECS, Session, Start, until

SYNTAX_ERROR = "float x = = 1;"

pytestmark = [pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="module")]


def line_of(text: str, needle: str) -> int:
    return next(number for number, line in enumerate(text.split("\n")) if needle in line)


def first_line_of(text: str) -> int:
    """The line of the kernel's definition, its template line."""
    return line_of(text, "__global__") - 1


async def ready(session: Session) -> t.CodeLens:
    """Wait until the kernel is read; gives its first lens."""
    return (await session.lenses())[0]


async def test_hover_shows_the_cuir_of_the_line(shared: Session) -> None:
    text = shared.open()
    await ready(shared)
    loop = await shared.hover(line_of(text, "for (int tile"))
    assert "```cuir" in loop
    assert "for " in loop
    assert "role=kv_loop" in loop
    assert await shared.hover(0) == ""  # a comment means nothing


async def test_a_line_that_leads_to_a_step_shows_that_step(shared: Session) -> None:
    text = shared.open()
    await ready(shared)
    card = await shared.hover(line_of(text, "ldmatrix_x4(kf"))
    assert card.startswith(f"_In the block of the step on line {line_of(text, 'mma_m16n8k16<T>(s[2 * np]') + 1}:_")
    assert "S = Q·Kᵀ" in card
    assert await shared.hover(line_of(text, "const int stage = tile & 1;")) == ""  # of no step in particular


# The first lines of the statement that computes P, as it is written; then with a macro, and over several lines.
MATHEMATICS = {
    "plain": ("const float p = expf(s[i] - m_safe);", ["const float p ="]),
    "macro": ("const float p = WEIGHT(s[i], m_safe);", ["const float p ="]),
    "lines": (
        "const float x =\n  s[i]\n  - m_safe;\nconst float p = expf(\n  x);",
        ["const float x =", "  - m_safe;", "  x);"],
    ),
}


@pytest.mark.parametrize("form", MATHEMATICS)
async def test_the_line_with_the_mathematics_has_the_card_of_its_step(shared: Session, form: str) -> None:
    written, needles = MATHEMATICS[form]
    text = Path("expert_kernels/flash_fwd_scalar/kernel.cu").read_text()
    assert text.count(MATHEMATICS["plain"][0]) == 1
    macro = "#define WEIGHT(x, m) expf((x) - (m))\n"
    text = shared.open(macro + text.replace(MATHEMATICS["plain"][0], written))
    await ready(shared)
    for needle in needles:
        assert (await shared.hover(line_of(text, needle))).startswith("**P = exp(S - m)**"), needle
    assert (await shared.hover(line_of(text, "const float inv_l ="))).startswith("**store O**")


async def test_lens_says_what_the_kernel_computes_its_tiles_and_level(shared: Session) -> None:
    text = shared.open()
    lenses = await shared.lenses()
    titles = [lens.command.title for lens in lenses if lens.command]
    assert "attention" in titles[SENTENCE]
    assert "64x64" in titles[SENTENCE]
    assert titles[SENTENCE].endswith("lifted")
    assert [lens.command.command for lens in lenses if lens.command] == [
        "cubridge.adapt",
        "cubridge.verify",
        "cubridge.explain",
        "cubridge.showIr",
        "cubridge.revealLine",
    ]
    post = lenses[-1]
    assert post.command
    summary, _, _ = titles[SENTENCE].rpartition(" · ")
    assert post.range.start.line == 0
    assert post.command.title == f"flash_fwd_sm80: {summary} → line {first_line_of(text) + 1}"
    first = lenses[0].range.start.line
    assert text.split("\n")[first].startswith("template")
    assert "__global__" in text.split("\n")[first + 1]


async def test_actions_are_offered_inside_the_kernel_for_each_spec(shared: Session) -> None:
    text = shared.open()
    await ready(shared)
    inside = await shared.actions(line_of(text, "for (int tile"))
    titles = [action.title for action in inside]
    assert sorted(titles) == sorted(
        [f"Adapt this kernel to {name}" for name in SPECS] + [f"Verify against {name}" for name in SPECS]
    )
    assert await shared.actions(0) == []
    rewrites = await shared.actions(line_of(text, "for (int tile"), only=["refactor"])
    assert [action.command.command for action in rewrites if action.command] == ["cubridge.adapt"] * len(SPECS)
    argument = rewrites[0].command.arguments[0] if rewrites[0].command and rewrites[0].command.arguments else None
    assert argument is not None


async def test_a_new_spec_in_the_workspace_is_offered(shared: Session) -> None:
    text = shared.open()
    await ready(shared)
    line = line_of(text, "for (int tile")
    assert not any("fresh.py" in action.title for action in await shared.actions(line))
    (shared.folder / "fresh.py").write_text("def attention(q, k, v):\n    return q\n")
    shared.client.workspace_did_change_watched_files(
        t.DidChangeWatchedFilesParams([t.FileEvent(shared.spec("fresh.py"), t.FileChangeType.Created)])
    )
    assert any("fresh.py" in action.title for action in await shared.actions(line))


async def test_hints_stand_at_landmark_lines(shared: Session) -> None:
    text = shared.open()
    await ready(shared)
    everywhere = t.Range(t.Position(0, 0), t.Position(text.count("\n"), 0))
    hints = await shared.client.text_document_inlay_hint_async(
        t.InlayHintParams(t.TextDocumentIdentifier(shared.uri), everywhere)
    )
    labels = [str(hint.label) for hint in hints or []]
    assert any("Q·Kᵀ" in label for label in labels)
    assert any("P·V" in label for label in labels)
    lines = [hint.position.line for hint in hints or []]
    assert len(set(lines)) == len(lines)


async def test_settings_turn_lens_and_hints_off(start: Start) -> None:
    async with start("extension", codeLens=False, inlayHints=False) as session:
        session.open()
        assert await session.problems() == []  # waits for the reading
        identifier = t.TextDocumentIdentifier(session.uri)
        assert await session.client.text_document_code_lens_async(t.CodeLensParams(identifier)) is None
        session.client.workspace_did_change_configuration(
            t.DidChangeConfigurationParams({"cubridge": {"codeLens": True}})
        )
        assert await session.lenses()


async def test_syntax_errors_are_pulled_with_code_and_line_and_go_away(shared: Session) -> None:
    text = shared.path.read_text()
    line = line_of(text, "for (int tile")
    broken = text.split("\n")
    broken.insert(line, SYNTAX_ERROR)
    shared.open("\n".join(broken))
    found = await shared.diagnostics()
    assert any(item.range.start.line == line and str(item.code).startswith("CB1") for item in found)
    assert all(item.source == "cubridge" and item.message.count("\n") == 0 for item in found)
    shared.change(text)
    assert await shared.problems() == []


async def test_a_name_that_is_not_declared_is_one_diagnostic_with_its_places(shared: Session) -> None:
    text = shared.path.read_text()
    declared = next(line for line in text.split("\n") if "const int lane =" in line)
    shared.open(text.replace(declared, "", 1))
    (found,) = await shared.problems()  # what follows from it fills neither the list nor the explorer
    assert (found.code, found.message) == ("CB128", "lane is not declared in this file")
    place = found.range
    assert text.replace(declared, "", 1).split("\n")[place.start.line][place.start.character :].startswith("lane")
    related = found.related_information or []
    used = [item.location.range.start.line for item in related if item.message == "used here too"]
    assert len(used) >= 5
    assert min(used) > place.start.line
    assert any("not recognised" in item.message for item in related)


async def test_a_client_that_cannot_pull_gets_them_pushed(start: Start) -> None:
    async with start("emacs") as session:
        session.open(session.path.read_text().replace("for (int tile", SYNTAX_ERROR + "\nfor (int tile"))
        await until(lambda: bool(session.client.diagnostics.get(session.uri)))
        assert str(session.client.diagnostics[session.uri][0].code).startswith("CB1")


async def test_files_of_other_suffixes_are_left_alone(shared: Session) -> None:
    shared.uri = (shared.folder / "kernel.cpp").as_uri()
    shared.open("__global__ void k() { = }")
    assert await shared.diagnostics() == []
    assert await shared.hover(0) == ""
    assert await shared.actions(0) == []


async def test_typing_is_not_held_up_by_reading(shared: Session) -> None:
    """Requests are answered while a reading runs, and the last state wins."""
    text = shared.open()
    await ready(shared)
    for count in range(20):
        shared.change(text + "\n" * count)
    pulled = asyncio.ensure_future(shared.diagnostics())  # waits for the reading
    await shared.hover(0)
    assert not pulled.done()
    assert await pulled
    broken = text.replace("for (int tile", SYNTAX_ERROR + "\nfor (int tile")
    shared.change(broken)
    assert await shared.problems() != []


async def test_the_ir_of_the_kernel_as_text(shared: Session) -> None:
    shared.open()
    reply = await shared.command("cubridge.showIr")
    assert reply["state"] == "done"
    assert reply["stale"] is False
    assert "role=kv_loop" in reply["text"]


@pytest.mark.parametrize("argument", [{}, {"kernel": 3}, {"kernel": "file:///a.py"}])
async def test_a_wrong_argument_is_refused_with_a_code(shared: Session, argument: dict[str, object]) -> None:
    reply = await shared.command("cubridge.adapt", **({"kernel": None} | argument))
    assert reply["state"] == "refused"
    assert reply["message"].startswith("CB072: cubridge.adapt was called with wrong arguments")


async def test_an_untrusted_workspace_reads_but_runs_nothing(start: Start) -> None:
    async with start("extension", trusted=False) as session:
        session.open()
        assert await session.lenses()
        for command in ("cubridge.adapt", "cubridge.verify"):
            reply = await session.command(command, spec=session.spec(SPECS[0]))
            assert reply["state"] == "refused"
            assert reply["message"].startswith("CB071")


async def test_a_print_in_the_server_does_not_break_the_protocol(start: Start) -> None:
    """The real stdout belongs to the protocol alone."""
    script = (
        "import sys, server.__main__ as m; out = m._protocol_stdout()\n"
        "print('noise', flush=True); out.write(b'protocol'); out.flush()"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, error = await process.communicate()
    assert (out, error.strip()) == (b"protocol", b"noise")
