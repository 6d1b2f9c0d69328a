"""Deletions as lines: with the pragma above them, the comment that spoke of them, and no hole left behind."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from tree_sitter import Node

from .context import Job
from .dead import Dead
from .liveness import LISTED, Range

_WORD = re.compile(r"[A-Za-z_]\w*")
_HOMES = frozenset({"function_definition", "struct_specifier", "class_specifier"})


@dataclass(frozen=True)
class _Lines:
    """The lines of the file: their first bytes and their text."""

    starts: list[int]
    texts: list[str]

    def at(self, offset: int) -> int:
        """The line that holds a byte."""
        return bisect_right(self.starts, offset) - 1

    def is_comment(self, line: int) -> bool:
        return self.texts[line].strip().startswith("//")

    def is_blank(self, line: int) -> bool:
        return not self.texts[line].strip()


def deletions(job: Job, dead: Dead) -> list[Range]:
    """Byte ranges to delete: whole lines where a statement has its lines to itself."""
    lines = _lines_of(job)
    whole: set[int] = set()
    ranges = list_ranges(dead.parts)
    for node in dead.statements:
        first, last = lines.at(node.start_byte), lines.at(node.end_byte - 1)
        before = job.text(lines.starts[first], node.start_byte).strip()
        behind = job.text(node.end_byte, _end(lines, last, job)).strip().removeprefix(";").strip()
        if before or (behind and not behind.startswith("//")):
            ranges.append((node.start_byte, node.end_byte))
            continue
        whole |= set(range(first, last + 1))
        while first > 0 and lines.texts[first - 1].strip().startswith("#pragma"):
            first -= 1
            whole.add(first)
    whole |= _stale_comments(lines, whole, _scopes(job, lines, dead))
    whole |= _holes(lines, whole)
    return [*ranges, *_runs(lines, whole, job)]


def list_ranges(parts: Iterable[Node]) -> list[Range]:
    """Items of lists with the commas that go with them."""
    found: list[Range] = []
    by_list: dict[int, list[Node]] = {}
    for node in parts:
        if node.parent is not None:
            by_list.setdefault(node.parent.id, []).append(node)
    for gone in by_list.values():
        around = gone[0].parent
        assert around is not None
        lost = {n.start_byte for n in gone}
        items = [c for c in around.named_children if _is_item(c, gone[0])]
        kept = [c for c in items if c.start_byte not in lost]
        if not kept:
            found.append((items[0].start_byte, items[-1].end_byte))
            continue
        for at, item in enumerate(items):
            if item.start_byte not in lost:
                continue
            following = next((c for c in items[at + 1 :] if c in kept), None)
            if following is not None:
                found.append((item.start_byte, items[at + 1].start_byte))
            else:
                found.append((items[at - 1].end_byte, item.end_byte))
    return found


def _is_item(node: Node, like: Node) -> bool:
    """True for what stands between the commas of the list that `like` is an item of."""
    listed = like.parent is not None and like.parent.type in LISTED
    return node.type != "comment" and (listed or node.type.endswith(("declarator", "identifier")))


@dataclass(frozen=True)
class _Scope:
    """The lines in which names that are gone were in scope."""

    first: int
    last: int
    names: frozenset[str]


def _scopes(job: Job, lines: _Lines, dead: Dead) -> list[_Scope]:
    """Where comments may speak of what is gone: in the function or struct, and above a function that a kernel calls."""
    found: dict[tuple[int, int], set[str]] = {}
    for variable in dead.variables:
        node = job.source.root.descendant_for_byte_range(variable.start, variable.start + 1)
        while node is not None and node.type not in _HOMES:
            node = node.parent
        if node is not None:
            found.setdefault((node.start_byte, node.end_byte), set()).add(variable.name)
    scopes: list[_Scope] = []
    for (start, end), names in found.items():
        first, last = lines.at(start), lines.at(end - 1)
        if b"__global__" not in job.source.data[start : job.source.data.find(b"{", start)]:
            while first > 0 and lines.texts[first - 1].strip().startswith(("//", "template")):
                first -= 1
        scopes.append(_Scope(first, last, frozenset(names)))
    return scopes


def _lines_of(job: Job) -> _Lines:
    starts, texts, at = [], [], 0
    for line in job.text(0, len(job.source.data)).splitlines(keepends=True):
        starts.append(at)
        texts.append(line)
        at += len(line.encode())
    return _Lines(starts, texts)


def _end(lines: _Lines, line: int, job: Job) -> int:
    """The byte behind a line and its newline."""
    if line + 1 < len(lines.starts):
        return lines.starts[line + 1]
    return lines.starts[line] + len(lines.texts[line].encode())


def _stale_comments(lines: _Lines, deleted: set[int], scopes: list[_Scope]) -> set[int]:
    """Comments that name what is gone where it was in scope, and those whose whole paragraph is gone."""
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
        stale = any(s.first <= first and line - 1 <= s.last and words & s.names for s in scopes)
        if stale or _heads_deleted_paragraph(lines, line, deleted):
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
