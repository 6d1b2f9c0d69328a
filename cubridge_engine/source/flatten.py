"""One text of a file and of the headers that it includes by quotes, as the preprocessor would paste them.

What is found in that text, and what is changed in it, has a place in one of the files.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .includes import file_key
from .source_file import SourceFile

_ONCE = re.compile(rb"^[ \t]*#[ \t]*pragma[ \t]+once\b", re.MULTILINE)
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes ``[start, end)`` of the pasted text are those of the file `path` from its byte `at` on."""

    start: int
    end: int
    path: str
    at: int


@dataclass(frozen=True, slots=True)
class Flat:
    """The pasted text `data`, where each piece of it comes from, and the files by path, the main one first."""

    data: bytes
    pieces: tuple[Piece, ...]
    files: Mapping[str, SourceFile] = field(hash=False)

    def place(self, start: int, end: int) -> tuple[str, int, int] | None:
        """(path, start, end) in a file of ``[start, end)`` of the text; None where that is in no single piece.

        A place between two pieces is in the header of the two: text put there stays off the line of the ``#include``.
        """
        main = next(iter(self.files))
        last = bisect_right(self.pieces, start, key=lambda piece: piece.start) - 1
        near = [p for p in self.pieces[max(last - 1, 0) : last + 1] if p.start <= start and end <= p.end]
        piece = next((p for p in near if p.path != main), next(iter(near), None))
        return None if piece is None else (piece.path, piece.at + start - piece.start, piece.at + end - piece.start)


def flatten(source: SourceFile) -> Flat | None:
    """`source` with its headers (`with_includes`) in the place of their ``#include`` lines.

    None where there is none, and where pasting once is not what the preprocessor does: a header without a guard that
    is included twice.
    """
    if not source.headers:
        return None
    pasting = _Pasting({file_key(Path(h.source.path)): h.source for h in source.headers})
    if not pasting.paste(source):
        return None
    files = {s.path: s for s in (source, *pasting.seen.values())}
    return Flat(b"".join(pasting.out), tuple(pasting.pieces), files)


class _Pasting:
    def __init__(self, headers: Mapping[str, SourceFile]) -> None:
        self.headers = headers
        self.seen: dict[str, SourceFile] = {}
        self.out: list[bytes] = []
        self.pieces: list[Piece] = []
        self.size = 0

    def paste(self, file: SourceFile) -> bool:
        """Append the text of `file`; False where it cannot be pasted."""
        at = len(_BOM) if self.pieces and file.data.startswith(_BOM) else 0
        for include in file.includes:
            key = file_key(Path(file.path).parent / include.target) if include.quoted else ""
            header = self.headers.get(key)
            if header is None:
                continue  # a header of a library, or one that was not found
            if b"/*" in file.data[include.start : include.end]:
                return False  # the comment may go on behind the line
            self._take(file, at, include.start)
            at = include.end
            if key not in self.seen:
                self.seen[key] = header
                if not self.paste(header):
                    return False
            elif not _guarded(header):
                return False
        self._take(file, at, len(file.data))
        return True

    def _take(self, file: SourceFile, start: int, end: int) -> None:
        if start == end:
            return
        # `#pragma once` is for headers, which this text no longer is.
        text = _ONCE.sub(lambda m: b" " * len(m[0]), file.data[start:end])
        self.out.append(text)
        self.pieces.append(Piece(self.size, self.size + len(text), file.path, start))
        self.size += len(text)


def _guarded(header: SourceFile) -> bool:
    """True where a second ``#include`` adds nothing."""
    if _ONCE.search(header.data):
        return True
    code = re.sub(rb"//[^\n]*|/\*.*?\*/", b" ", header.data, flags=re.DOTALL).strip()
    guard = re.match(rb"#[ \t]*(?:ifndef|if[ \t]+!defined)[ \t(]*(\w+)\)?\s*#[ \t]*define[ \t]+(\w+)", code)
    return guard is not None and guard[1] == guard[2] and re.search(rb"#[ \t]*endif$", code) is not None
