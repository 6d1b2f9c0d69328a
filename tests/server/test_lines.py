"""Lines of an older text in a newer one: a line is found again only where its text is the same."""

from __future__ import annotations

import random

import pytest

from cubridge_engine.source import TextIndex
from server.lines import Hunk, back, forward, hunk_between


def index(text: str) -> TextIndex:
    return TextIndex(text.encode())


@pytest.mark.parametrize(
    ("old", "new", "hunk"),
    [
        ("a\nb\nc\n", "a\nb\nc\n", None),
        ("a\nb\nc\n", "a\nB\nc\n", Hunk(1, 1, 1)),
        ("a\nb\nc\n", "a\nb\nx\nc\n", Hunk(2, 0, 1)),  # a line typed below b touches neither b nor c
        ("a\nb\nc\n", "a\nc\n", Hunk(1, 1, 0)),
        ("a\nb\nc\n", "x\na\nb\nc\n", Hunk(0, 0, 1)),
        ("ab\nc\n", "a\nb\nc\n", Hunk(0, 1, 2)),
        ("a\nb", "a\nb\nc", Hunk(2, 0, 1)),
        ("", "a\n", Hunk(0, 0, 1)),
    ],
)
def test_one_edit_is_one_hunk(old: str, new: str, hunk: Hunk | None) -> None:
    assert hunk_between(index(old), index(new)) == hunk


def test_after_any_edits_a_line_that_is_found_has_the_same_text() -> None:
    """And the two directions agree."""
    seeded = random.Random(7)
    for _ in range(150):
        texts = ["".join(f"{seeded.choice('abc')}{n % 3}\n" for n in range(seeded.randint(0, 12)))]
        hunks: list[Hunk] = []
        for _ in range(seeded.randint(1, 5)):
            old = texts[-1]
            start = seeded.randint(0, len(old))
            end = min(len(old), start + seeded.randint(0, 6))
            texts.append(old[:start] + seeded.choice(["", "z", "\n", "q\nr", "\n\n", "a0\n"]) + old[end:])
            hunk = hunk_between(index(old), index(texts[-1]))
            hunks += [hunk] if hunk else []
        first, last = index(texts[0]), index(texts[-1])
        for line in range(first.line_count):
            now = forward(hunks, line)
            if now is not None:
                assert first.line_bytes(line) == last.line_bytes(now)
                assert back(hunks, now) == line


def test_a_change_counts_inside_a_range_but_not_at_its_edges() -> None:
    ranges = [(3, 5)]
    assert Hunk(4, 0, 1).inside(ranges)
    assert not Hunk(3, 0, 1).inside(ranges)  # inserted before line 3
    assert not Hunk(6, 0, 1).inside(ranges)  # inserted behind line 5
    assert Hunk(5, 1, 1).inside(ranges)
    assert not Hunk(6, 2, 0).inside(ranges)
