"""Explaining a kernel, comparing two: the replies that the panel shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from lsprotocol import types as t

from .conftest import Session, Start

pytestmark = [pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="module")]


def line_of(text: str, needle: str) -> int:
    return next(number for number, line in enumerate(text.split("\n")) if needle in line)


async def test_an_explanation_is_of_the_open_text_and_leads_to_its_lines(shared: Session) -> None:
    text = "// one line more\n" + shared.path.read_text()
    shared.open(text)  # not saved
    reply = await shared.command("cubridge.explain", version=shared.version)
    assert reply["state"] == "done", reply["message"]
    result = reply["result"]
    assert result["kernel_name"] == "flash_fwd_sm80"
    assert result["understood"]
    assert {item["topic"] for item in result["unknown"]} <= {"assumed"}
    assert not result["watched"]
    assert "causal" in result["paragraph"]
    mask = next(item for item in result["sentences"] if item["topic"] == "mask")
    first, last = mask["lines"][0]
    assert first <= line_of(text, "col > row") <= last


async def test_a_comparison_with_a_changed_copy_says_what_is_computed_otherwise(shared: Session) -> None:
    text = shared.open()
    other = shared.folder / "other.cu"
    other.write_text(text.replace("correction", "alpha"))
    same = await shared.command("cubridge.compare", other=other.as_uri())
    assert same["state"] == "done", same["message"]
    assert same["result"]["same"] is True
    assert same["result"]["semantic"] == []
    other.write_text(text.replace("col > row", "col >= row"))
    reply = await shared.command("cubridge.compare", other=other.as_uri())
    assert reply["state"] == "done", reply["message"]
    assert reply["result"]["same"] is False
    assert "mask" in {item["part"] for item in reply["result"]["semantic"]}


async def test_what_cannot_be_asked_is_refused_with_a_sentence(shared: Session) -> None:
    shared.open()
    for command, argument, word in (
        ("cubridge.explain", {"kernel": "file:///w/spec.py"}, "CB072"),
        ("cubridge.explain", {"watch": "yes"}, "CB072"),
        ("cubridge.explain", {"options": {"nonsense": 1}}, "CB072"),
        ("cubridge.explain", {"kernel": "untitled:Untitled-1.cu"}, "CB078"),
        ("cubridge.compare", {"other": (shared.folder / "nowhere.cu").as_uri()}, "CB075"),
        ("cubridge.explain", {"version": shared.version + 1}, "CB073"),
    ):
        reply = await shared.command(command, **argument)
        assert reply["state"] == ("stale" if word == "CB073" else "refused"), (command, argument)
        assert reply["message"].startswith(word), (command, argument, reply["message"])


async def test_without_trust_reading_explains_and_nothing_is_run(start: Start, tmp_path: Path) -> None:
    async with start("extension", trusted=False) as session:
        session.open()
        for command, argument in (
            ("cubridge.explain", {"watch": True}),
            ("cubridge.check", {"watch": True}),
            ("cubridge.contract", {}),
        ):
            reply = await session.command(command, **argument)
            assert (reply["state"], reply["message"][:5]) == ("refused", "CB071"), command
        assert (await session.command("cubridge.explain"))["state"] == "done"


UNREAD = """__device__ __forceinline__ float unread_exp2(float x) {
  float y;
  asm("{ .reg .f32 t; ex2.approx.ftz.f32 t, %1; abs.f32 %0, t; }" : "=f"(y) : "f"(x));
  return y;
}

"""


async def test_what_was_observed_stands_beside_what_was_read(shared: Session) -> None:
    """A kernel that reading does not know as a whole: watching adds the steps, and an edit takes them away."""
    text = shared.path.read_text().replace("s[nb][e] = exp2_approx(", "s[nb][e] = unread_exp2(")
    first = "__device__ __forceinline__ void ldmatrix_x4("
    assert text.count(first) == 1
    odd = text.replace(first, UNREAD + first)
    shared.open(odd)
    before = await shared.command("cubridge.irTree")
    assert "observed" not in [root["id"] for root in before["roots"]]
    reply = await shared.command("cubridge.explain", watch=True)
    assert reply["state"] == "done", reply["message"]
    result = reply["result"]
    assert "causal bottom-right" in result["function"]
    assert "observed" in result["coverage"]
    assert result["agrees"] is None  # what was not read as a whole cannot be compared
    step = next(one for one in result["steps"] if one["name"] == "exp")
    assert (step["line"], step["read"]) == (line_of(odd, "= unread_exp2("), "")
    tree = await shared.command("cubridge.irTree")
    rows = {child["id"]: child for child in tree["roots"][-1]["children"]}
    assert tree["roots"][-1]["id"] == "observed"
    assert rows["observed/exp"]["lines"] == [step["line"], step["line"]]
    hover = await shared.hover(step["line"])
    assert "**Observed**" in hover
    assert "Sk = 192" in hover
    assert any("watched: causal bottom-right" in lens.command.title for lens in await shared.lenses() if lens.command)
    hints = await hints_of(shared, odd)
    assert hints[step["line"]].endswith("(observed)")
    shared.change(odd + "\n// an edit\n")
    gone = await shared.command("cubridge.irTree")
    assert "observed" not in [root["id"] for root in gone["roots"]]
    assert not any("(observed)" in label for label in (await hints_of(shared, odd)).values())


async def hints_of(session: Session, text: str) -> dict[int, str]:
    """The inlay hints by line."""
    whole = t.Range(t.Position(0, 0), t.Position(text.count("\n"), 0))
    found = await session.client.text_document_inlay_hint_async(
        t.InlayHintParams(t.TextDocumentIdentifier(session.uri), whole)
    )
    return {hint.position.line: str(hint.label) for hint in found or ()}
