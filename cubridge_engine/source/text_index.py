"""Offsets <-> (line, column) of a byte text, in the three column units that editors and tools use.

Lines end at ``\\n`` only (a preceding ``\\r`` belongs to the line ending), as compilers, git and tree-sitter count.
Lines and columns are 0-based. A byte that is not UTF-8 counts as one unit in every encoding.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from typing import Literal

Encoding = Literal["utf-8", "utf-16", "utf-32"]
BOM = b"\xef\xbb\xbf"


class TextIndex:
    """Line starts of `data`, found once; every query afterwards costs a bisection and one line."""

    __slots__ = ("_starts", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._starts = array("Q", [0])
        self._starts.extend(match.end() for match in re.finditer(rb"\n", data))

    @property
    def line_count(self) -> int:
        """Number of lines; a text that ends in a newline has an empty last line."""
        return len(self._starts)

    def line_start(self, line: int) -> int:
        """Byte offset of the first byte of `line` (clamped to the text)."""
        return self._starts[min(max(line, 0), len(self._starts) - 1)]

    def line_end(self, line: int) -> int:
        """Byte offset just behind the last byte of `line`, its ``\\n`` or ``\\r\\n`` left out."""
        line = min(max(line, 0), len(self._starts) - 1)
        if line + 1 == len(self._starts):
            return len(self.data)
        end = self._starts[line + 1] - 1
        return end - 1 if end > self._starts[line] and self.data[end - 1] == 0x0D else end

    def line_bytes(self, line: int) -> bytes:
        """The bytes of `line` without its line ending."""
        return self.data[self.line_start(line) : self.line_end(line)]

    def line_text(self, line: int) -> str:
        """The text of `line` without its line ending and byte order mark; bytes that are not UTF-8 become U+FFFD."""
        return self.line_bytes(line).decode("utf-8", "replace").removeprefix("\ufeff")

    def locate(self, offset: int) -> tuple[int, int]:
        """(line, byte column) of `offset`, which is clamped to the text."""
        offset = min(max(offset, 0), len(self.data))
        line = bisect_right(self._starts, offset) - 1
        return line, offset - self._starts[line]

    def position(self, offset: int, encoding: Encoding = "utf-16") -> tuple[int, int]:
        """(line, column) of `offset` in units of `encoding`. Editors strip a byte order mark, so it has no width."""
        line, column = self.locate(offset)
        start = self._visible_start(line)
        return line, _units(self.data[start : self._starts[line] + column], encoding)

    def offset(self, line: int, column: int, encoding: Encoding = "utf-8") -> int:
        """Byte offset of (line, column in units of `encoding`). Columns behind the line's end clamp to its end,
        lines behind the text to the end of the text, and a column inside a character to that character's start."""
        if line >= len(self._starts):
            return len(self.data)
        if line < 0:
            return 0
        start, end = self._visible_start(line), self.line_end(line)
        if encoding == "utf-8":
            at = min(start + max(column, 0), end)
            while start < at < end and self.data[at] & 0xC0 == 0x80:
                at -= 1
            return at
        text = self.data[start:end].decode("utf-8", "surrogateescape")
        taken = 0
        units = max(column, 0)
        for char in text:
            width = 2 if encoding == "utf-16" and ord(char) > 0xFFFF else 1
            if width > units:
                break
            units -= width
            taken += 1
        return start + len(text[:taken].encode("utf-8", "surrogateescape"))

    def _visible_start(self, line: int) -> int:
        start = self._starts[line]
        return start + len(BOM) if start == 0 and self.data.startswith(BOM) else start


def _units(piece: bytes, encoding: Encoding) -> int:
    if encoding == "utf-8" or piece.isascii():
        return len(piece)
    text = piece.decode("utf-8", "surrogateescape")
    return len(text) if encoding == "utf-32" else len(text) + sum(ord(char) > 0xFFFF for char in text)


def changed_range(old: bytes, new: bytes) -> tuple[int, int, int]:
    """(start, old_end, new_end): replacing ``old[start:old_end]`` by ``new[start:new_end]`` turns `old` into `new`."""
    shorter = min(len(old), len(new))
    start = _common(old, new, shorter, 0)
    tail = _common(old, new, shorter - start, 1)
    return start, len(old) - tail, len(new) - tail


def _common(left: bytes, right: bytes, limit: int, from_end: int) -> int:
    """Length of the common prefix (`from_end` 0) or suffix (1), at most `limit`; by bisection over slice comparison."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        same = (
            left[len(left) - middle : len(left) - low] == right[len(right) - middle : len(right) - low]
            if from_end
            else left[low:middle] == right[low:middle]
        )
        low, high = (middle, high) if same else (low, middle - 1)
    return low
