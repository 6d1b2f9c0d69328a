"""Deletions as lines: with the pragma above them, the comment that spoke of them, and no hole left behind."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass

from tree_sitter import Node

from .context import Job
from .liveness import Dead, Range

_WORD = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class _Lines:
    """The lines of a function body: their first bytes and their text."""

    starts: list[int]
    texts: list[str]

    def at(self, offset: int) -> int:
        """The line that holds a byte."""
        return bisect_right(self.starts, offset) - 1

    def is_comment(self, line: int) -> bool:
        return self.texts[line].strip().startswith("//")

    def is_blank(self, line: int) -> bool:
        return not self.texts[line].strip()


def deletions(job: Job, body: Node, dead: Dead) -> list[Range]:
    """Byte ranges to delete: whole lines where a statement has its lines to itself."""
    lines = _lines_of(job, body)
    whole: set[int] = set()
    ranges: list[Range] = [_declarator_range(job, node) for node in dead.declarators]
    for node in dead.statements:
        first, last = lines.at(node.start_byte), lines.at(node.end_byte - 1)
        before = job.text(lines.starts[first], node.start_byte).strip()
        behind = job.text(node.end_byte, _end(lines, last, job)).strip()
        if before or (behind and not behind.startswith("//")):
            ranges.append((node.start_byte, node.end_byte))
            continue
        whole |= set(range(first, last + 1))
        while first > 0 and lines.texts[first - 1].strip().startswith("#pragma"):
            first -= 1
            whole.add(first)
    whole |= _stale_comments(lines, whole, dead.names)
    whole |= _holes(lines, whole)
    return [*ranges, *_runs(lines, whole, job)]


def _lines_of(job: Job, body: Node) -> _Lines:
    start = job.source.data.rfind(b"\n", 0, body.start_byte) + 1
    text = job.text(start, body.end_byte)
    starts, texts, at = [], [], start
    for line in text.splitlines(keepends=True):
        starts.append(at)
        texts.append(line)
        at += len(line.encode())
    return _Lines(starts, texts)


def _end(lines: _Lines, line: int, job: Job) -> int:
    """The byte behind a line and its newline."""
    if line + 1 < len(lines.starts):
        return lines.starts[line + 1]
    return lines.starts[line] + len(lines.texts[line].encode())


def _stale_comments(lines: _Lines, deleted: set[int], names: frozenset[str]) -> set[int]:
    """Comment lines that name what is gone, and those whose whole paragraph is."""
    found: set[int] = set()
    line = 0
    while line < len(lines.texts):
        first = line
        while line < len(lines.texts) and lines.is_comment(line):
            line += 1
        if line == first:
            line += 1
            continue
        words = set(_WORD.findall(" ".join(lines.texts[first:line])))
        if words & names or _heads_deleted_paragraph(lines, line, deleted):
            found |= set(range(first, line))
    return found


def _heads_deleted_paragraph(lines: _Lines, line: int, deleted: set[int]) -> bool:
    if line not in deleted:
        return False
    while line in deleted:
        line += 1
    return line >= len(lines.texts) or lines.is_blank(line) or lines.texts[line].strip().startswith("}")


def _holes(lines: _Lines, deleted: set[int]) -> set[int]:
    """Blank lines that would stand beside another, behind an opening brace or before a closing one, by the deletion."""
    found: set[int] = set()
    for line, _ in enumerate(lines.texts):
        if not lines.is_blank(line) or line in deleted:
            continue
        above, below = line - 1, line + 1
        while above in deleted or above in found:
            above -= 1
        while below in deleted:
            below += 1
        touched = line - 1 in deleted or line + 1 in deleted
        opened = above < 0 or lines.is_blank(above) or lines.texts[above].rstrip().endswith("{")
        closed = below >= len(lines.texts) or lines.texts[below].strip().startswith("}")
        if touched and (opened or closed):
            found.add(line)
    return found


def _runs(lines: _Lines, deleted: set[int], job: Job) -> list[Range]:
    out: list[Range] = []
    for line in sorted(deleted):
        start, end = lines.starts[line], _end(lines, line, job)
        if out and out[-1][1] == start:
            out[-1] = (out[-1][0], end)
        else:
            out.append((start, end))
    return out


def _declarator_range(job: Job, node: Node) -> Range:
    """A declarator with the comma that goes with it."""
    data = job.source.data
    start, end = node.start_byte, node.end_byte
    behind = end
    while data[behind : behind + 1].isspace():
        behind += 1
    if data[behind : behind + 1] == b",":
        behind += 1
        while data[behind : behind + 1].isspace():
            behind += 1
        return start, behind
    while data[start - 1 : start].isspace():
        start -= 1
    return (start - 1, end) if data[start - 1 : start] == b"," else (node.start_byte, end)
