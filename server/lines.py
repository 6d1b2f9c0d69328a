"""Lines of a text and of an older one: what was read of the old text is shown at its present place, or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cubridge_engine.source import TextIndex
from cubridge_engine.source.text_index import changed_range

Range = tuple[int, int]  # first and last line, both 0-based and inclusive


@dataclass(frozen=True, slots=True)
class Hunk:
    """Lines ``first .. first+old`` of one text became ``first .. first+new`` of the next (half-open); the others are
    the same text."""

    first: int
    old: int
    new: int

    def forward(self, line: int) -> int | None:
        """Where a line of the old text is in the new one; None when it was touched."""
        if line < self.first:
            return line
        return line + self.new - self.old if line >= self.first + self.old else None

    def back(self, line: int) -> int | None:
        """Where a line of the new text was in the old one; None when it is new or was touched."""
        return Hunk(self.first, self.new, self.old).forward(line)

    def inside(self, ranges: Iterable[Range]) -> bool:
        """Whether the change falls into one of `ranges` of the old text; an insertion before or behind one does not."""
        if self.old == 0:
            return any(first < self.first <= last for first, last in ranges)
        return any(first < self.first + self.old and self.first <= last for first, last in ranges)


def hunk_between(old: TextIndex, new: TextIndex) -> Hunk | None:
    """The lines in which two texts differ, as one hunk; None when they are equal."""
    start, old_end, new_end = changed_range(old.data, new.data)
    if start == old_end == new_end:
        return None
    first = old.locate(start)[0]
    last_old, last_new = old.locate(old_end)[0], new.locate(new_end)[0]
    # A line at either end of the range may be whole in both texts: a line that was typed below another one touches
    # neither its upper nor its lower neighbour.
    if first < min(last_old, last_new) and old.line_bytes(first) == new.line_bytes(first):
        first += 1
    elif first == last_old < last_new and old.line_bytes(first) == new.line_bytes(first):
        return Hunk(first + 1, 0, last_new - first)
    elif first == last_new < last_old and old.line_bytes(first) == new.line_bytes(first):
        return Hunk(first + 1, last_old - first, 0)
    old_count, new_count = last_old - first + 1, last_new - first + 1
    if old_count > 0 and new_count > 0 and old.line_bytes(last_old) == new.line_bytes(last_new):
        old_count, new_count = old_count - 1, new_count - 1
    return Hunk(first, old_count, new_count)


def forward(hunks: Sequence[Hunk], line: int) -> int | None:
    """`line` of the oldest text in the newest; None when one of the hunks touched it."""
    at: int | None = line
    for hunk in hunks:
        if at is None:
            return None
        at = hunk.forward(at)
    return at


def back(hunks: Sequence[Hunk], line: int) -> int | None:
    """`line` of the newest text in the oldest; None when it is new or was touched."""
    at: int | None = line
    for hunk in reversed(hunks):
        if at is None:
            return None
        at = hunk.back(at)
    return at
