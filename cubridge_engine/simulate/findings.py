"""Collecting findings: one per condition and place, with counts, both accesses and the user's lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..diagnostics import CATALOGUE, Diagnostic, Related, Span, make
from .model import Instruction, Location

_Chain = tuple[tuple[str, int], ...]


@dataclass(slots=True)
class _Entry:
    code: str
    site: int
    other: int
    count: int
    fields: dict[str, object]


class Sources:
    """Turns a location into a span; texts are given, or read from disk when the path is there."""

    def __init__(self, texts: Mapping[str, str] | None = None) -> None:
        self._lines: dict[str, list[bytes]] = {path: text.encode().split(b"\n") for path, text in (texts or {}).items()}
        self._names: dict[str, str] = {path: path for path in self._lines}

    def _name(self, path: str) -> str:
        """The path under which the text was given: compilers write the absolute one."""
        found = self._names.get(path)
        if found is None:
            found = next((p for p in self._lines if path.endswith("/" + p)), path)
            self._names[path] = found
        return found

    def span(self, location: Location) -> Span:
        """The rest of the line from the column on; bytes are 0 when the text is not known."""
        path, row, column = self._name(location.path), location.line - 1, max(location.column - 1, 0)
        lines = self._lines.get(path)
        if lines is None:
            try:
                lines = Path(path).read_bytes().split(b"\n")
            except (OSError, ValueError):
                lines = []
            self._lines[path] = lines
        if not 0 <= row < len(lines):
            return Span(path, 0, 0, max(row, 0), column, max(row, 0), column)
        start = sum(len(text) + 1 for text in lines[:row])
        end_column = len(lines[row].rstrip())
        column = min(column, end_column)
        return Span(path, start + column, start + end_column, row, column, row, end_column)


class Findings:
    """Counts per (code, instruction, other instruction); the fields of the first occurrence are kept."""

    def __init__(self, code: list[Instruction], sources: Sources, home: str) -> None:
        self.code = code
        self.sources = sources
        self.home = home
        self._entries: dict[tuple[str, int, int], _Entry] = {}

    def add(self, code: str, site: int, count: int = 1, other: int = -1, /, **fields: object) -> None:
        """Note `count` occurrences of `code` at instruction `site` (-1: no place)."""
        entry = self._entries.get((code, site, other))
        if entry is None:
            self._entries[code, site, other] = _Entry(code, site, other, count, fields)
        else:
            entry.count += count

    def __bool__(self) -> bool:
        return bool(self._entries)

    def has(self, code: str) -> bool:
        """True when this condition was found."""
        return any(entry.code == code for entry in self._entries.values())

    def place(self, site: int) -> tuple[Span | None, tuple[Related, ...]]:
        """The user's line of an instruction, and the calls through which it was inlined.

        The innermost place in the kernel's own file is the span: a helper of the toolkit's headers is not the user's
        line.
        """
        if not 0 <= site < len(self.code):
            return None, ()
        location = self.code[site].loc
        if location is None:
            return None, ()
        chain = location.chain()
        at = next((i for i, place in enumerate(chain) if place.path == self.home), 0)
        related = tuple(
            Related(self.sources.span(outer), f"{inner.function or 'the function'} is inlined here")
            for inner, outer in zip(chain[at:], chain[at + 1 :], strict=False)
        )
        return self.sources.span(chain[at]), related

    def _chain(self, site: int) -> _Chain:
        location = self.code[site].loc if 0 <= site < len(self.code) else None
        return tuple((place.path, place.line) for place in location.chain()) if location else ((str(site), -1),)

    def _merged(self) -> list[_Entry]:
        """One entry per condition and source line: unrolled copies of a line count as one."""
        merged: dict[tuple[str, _Chain, _Chain], _Entry] = {}
        for entry in self._entries.values():
            key = (entry.code, self._chain(entry.site), self._chain(entry.other))
            first = merged.get(key)
            if first is None:
                merged[key] = _Entry(entry.code, entry.site, entry.other, entry.count, entry.fields)
            else:
                first.count += entry.count
        # Where warps race with each other, lanes of one warp do too: the same barrier is missing.
        between = {(e.code, self._chain(e.site), self._chain(e.other)) for e in merged.values()}
        return [
            entry
            for (code, here, there), entry in merged.items()
            if code != "CB527" or not {("CB516", here, there), ("CB517", here, there)} & between
        ]

    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """All findings, worst first, then in the order of the code."""
        found: list[Diagnostic] = []
        for entry in sorted(self._merged(), key=lambda e: (-CATALOGUE[e.code].severity, e.site)):
            span, related = self.place(entry.site)
            if entry.other >= 0:
                other_span, other_chain = self.place(entry.other)
                if other_span is not None:
                    what = self.code[entry.other].op
                    related = (Related(other_span, f"the other access ({what})"), *other_chain, *related)
            ins = self.code[entry.site] if 0 <= entry.site < len(self.code) else None
            extra: dict[str, object] = {"ptx_line": ins.line, "ptx": ins.op} if ins else {}
            if entry.other >= 0:
                extra["other_ptx_line"] = self.code[entry.other].line
            found.append(make(entry.code, span, related=related, **{**extra, "count": entry.count, **entry.fields}))
        return tuple(found)


_ACCESS = {
    "ld": "a read", "ldu": "a read", "st": "a write", "atom": "an atomic", "red": "an atomic",
    "ldmatrix": "an ldmatrix read", "stmatrix": "an stmatrix write", "cp": "an asynchronous copy",
    "wgmma": "a wgmma operand read", "mbarrier": "an mbarrier access", "wmma": "a wmma access",
}  # fmt: skip


def access_name(ins: Instruction) -> str:
    """What an instruction does to memory, in words."""
    return _ACCESS.get(ins.parts[0], ins.parts[0])


def bare(text: str) -> str:
    """Without the article, and without "asynchronous", which the sentence says itself."""
    return text.removeprefix("an ").removeprefix("a ").removeprefix("asynchronous ")
