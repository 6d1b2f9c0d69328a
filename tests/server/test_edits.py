"""The adaptation as text edits: applied by an editor they give exactly the adapted text, in every line-ending style."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lsprotocol import types as t

from cubridge_engine.source import Encoding, TextIndex
from server.adapt import text_edits

LINES = st.lists(st.sampled_from(["", "a", "b", "  s = é;", "𝛼 = 1", "x\r", "\r"]), max_size=8)
TEXTS = st.builds("\n".join, LINES)


def apply(old: str, edits: list[t.TextEdit], encoding: Encoding) -> str:
    """Apply as an editor does: all ranges refer to the old text, inserts at one place keep their order."""
    index = TextIndex(old.encode())
    data = index.data
    placed = sorted(enumerate(edits), key=lambda e: (e[1].range.start.line, e[1].range.start.character, e[0]))
    for _, edit in reversed(placed):
        start = index.offset(edit.range.start.line, edit.range.start.character, encoding)
        end = index.offset(edit.range.end.line, edit.range.end.character, encoding)
        data = data[:start] + edit.new_text.encode() + data[end:]
    return data.decode()


@given(TEXTS, TEXTS, st.sampled_from(["utf-8", "utf-16", "utf-32"]))
def test_edits_give_the_new_text(old: str, new: str, encoding: Encoding) -> None:
    assert apply(old, list(text_edits(TextIndex(old.encode()), new, encoding)), encoding) == new


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_only_changed_lines_are_touched(newline: str) -> None:
    old = newline.join(["int a;", "int b;", "int c;", "int d;", ""])
    new = old.replace("int b;", f"int x;{newline}int y;").replace("int d;", "int z;")
    edits = list(text_edits(TextIndex(old.encode()), new, "utf-16"))
    assert [(edit.range.start.line, edit.range.end.line) for edit in edits] == [(1, 2), (3, 4)]
    assert edits[0].new_text == f"int x;{newline}int y;{newline}"


def test_equal_texts_need_no_edit() -> None:
    assert list(text_edits(TextIndex(b"a\nb"), "a\nb", "utf-16")) == []
