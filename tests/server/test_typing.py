"""While somebody types: what was read is shown at once where it still holds; the rest comes with the reading."""

from __future__ import annotations

import pytest
from lsprotocol import types as t

from .conftest import SENTENCE, Session, until

pytestmark = [pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="module")]
LOOP = "for (int tile"


def line_of(text: str, needle: str) -> int:
    return next(number for number, line in enumerate(text.split("\n")) if needle in line)


async def hints(session: Session) -> dict[int, str]:
    params = t.InlayHintParams(t.TextDocumentIdentifier(session.uri), t.Range(t.Position(0, 0), t.Position(10**5, 0)))
    found = await session.client.text_document_inlay_hint_async(params)
    return {hint.position.line: str(hint.label) for hint in found or []}


async def opened(session: Session) -> tuple[str, dict[int, str]]:
    """The kernel, read, and its hints."""
    text = session.open()
    await session.lenses()
    return text, await hints(session)


async def test_hints_below_an_edit_move_at_once_and_are_marked_until_read(shared: Session) -> None:
    text, before = await opened(shared)
    loop = line_of(text, LOOP)
    shared.change(text.replace("  for (int tile", "  int unused = 0;\n  for (int tile", 1))
    moved = await hints(shared)
    assert moved[loop + 1] == f"{before[loop]} …"
    assert {line - 1 for line in moved if line > loop} == {line for line in before if line >= loop}

    async def read() -> bool:
        return (await hints(shared)).get(loop + 1) == before[loop]

    await until(read)
    assert not any(label.endswith("…") for label in (await hints(shared)).values())


async def test_a_line_that_is_typed_on_shows_nothing_until_it_is_read(shared: Session) -> None:
    text, before = await opened(shared)
    loop = line_of(text, LOOP)
    shared.change(text.replace("++tile", "tile += 2", 1))
    assert loop not in await hints(shared)
    assert await shared.hover(loop) == ""
    assert before[loop]


async def test_an_edit_of_a_device_function_takes_the_hints_of_its_calls(shared: Session) -> None:
    text, before = await opened(shared)
    where = line_of(text, "mma.sync.aligned.m16n8k16")
    callers = {line for line, label in before.items() if "Q·Kᵀ" in label or "P·V" in label}
    shared.change("\n".join(f"{row} " if n == where else row for n, row in enumerate(text.split("\n"))))
    now = await hints(shared)
    assert len(callers) == 2
    assert set(now) == set(before) - callers
    assert all(label.endswith("…") for label in now.values())


async def test_a_comment_elsewhere_marks_nothing(shared: Session) -> None:
    text, before = await opened(shared)
    shared.change("// a note\n" + text)
    assert await hints(shared) == {line + 1: label for line, label in before.items()}
    card = await shared.hover(line_of(text, LOOP) + 1)
    assert "KV loop" in card
    assert "before the last change" not in card


async def test_the_lens_says_that_it_is_from_before_the_change(shared: Session) -> None:
    text, _ = await opened(shared)
    shared.change(text.replace("const int lane", "const  int lane", 1))
    first = (await shared.lenses())[SENTENCE].command
    assert first is not None
    assert first.title.endswith("before the last change …")

    async def read() -> bool:
        command = (await shared.lenses())[SENTENCE].command
        return command is not None and "before" not in command.title

    await until(read)


async def test_the_outline_has_the_phases_under_the_kernel(shared: Session) -> None:
    text, _ = await opened(shared)
    params = t.DocumentSymbolParams(t.TextDocumentIdentifier(shared.uri))
    (kernel,) = await shared.client.text_document_document_symbol_async(params) or []
    assert isinstance(kernel, t.DocumentSymbol)
    assert kernel.name == "flash_fwd_sm80"
    assert [part.name for part in kernel.children or []] == ["prologue", "KV loop", "epilogue"]
    prologue, loop, epilogue = kernel.children or []
    assert [step.name for step in loop.children or []] == [
        *("load K", "load V", "S = 0", "S = Q·Kᵀ", "mask", "row max m", "m_new over the lanes of a row"),
        *("rows without a key", "correction α", "rescale l", "P = exp(S - m)", "row sum l", "rescale O", "O += P·V"),
    ]
    assert "load Q" in [step.name for step in prologue.children or []]
    assert [step.name for step in epilogue.children or []][-2:] == ["store O", "store LSE"]
    assert loop.range.start.line == line_of(text, LOOP)
    for outer in (kernel, *(kernel.children or [])):
        for inner in outer.children or []:
            assert outer.range.start.line <= inner.range.start.line
            assert inner.range.end.line <= outer.range.end.line
            assert inner.range.start.line <= inner.selection_range.start.line <= inner.range.end.line


async def test_marks_of_the_phases_are_those_of_the_present_text(shared: Session) -> None:
    text, _ = await opened(shared)
    shared.change("\n" + text)
    reply = await shared.command("cubridge.phases")
    assert reply["version"] == shared.version
    marks = {mark["title"]: mark for mark in reply["marks"]}
    assert marks["S = Q·Kᵀ"]["phase"] == "scores"
    assert "Σ" not in marks
    assert marks["load Q"]["phase"] == "load"
    assert {mark["phase"] for mark in reply["marks"]} <= set(reply["legend"])
