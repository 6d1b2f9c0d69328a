"""Mutants of a PTX text: each synchronisation, wait, bound and predicate removed, weakened or moved, one at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

# Rule -> (what it looks for in a line, what it becomes; None removes the instruction)
WEAKEN = {"lt": "le", "le": "lt", "gt": "ge", "ge": "gt", "eq": "ne", "ne": "eq"}
RULES: tuple[tuple[str, str, str | None], ...] = (
    ("remove barrier", r"\bbar\.sync\b.*;", None),
    ("remove commit", r"\bcp\.async(\.bulk)?\.commit_group;", None),
    ("remove wait", r"\bcp\.async(\.bulk)?\.wait_group(\.read)?\s+\d+;", None),
    ("copy without bound", r"(cp\.async\.c[ag]\.shared\S*\s+\[[^]]+\],\s*\[[^]]+\],\s*)(\d+),\s*%r\d+;", r"\1\2;"),
    ("remove mbarrier arrive", r"\bmbarrier\.arrive\.shared\S*\s.*;", None),
    ("skip mbarrier wait", r"\bmbarrier\.try_wait\S*\s+(\S+),.*;", r"mov.pred \1, -1;"),
    ("remove wgmma wait", r"\bwgmma\.wait_group\S*\s+\d+;", None),
    ("remove wgmma commit", r"\bwgmma\.commit_group\S*;", None),
    ("remove wgmma fence", r"\bwgmma\.fence\S*;", None),
    ("remove proxy fence", r"\bfence\.proxy\.async\S*;", None),
    ("lane left out of shuffle", r"(shfl\.sync\.bfly\.b32 .*,\s*)\d+(,\s*\d+,\s*-1;)", r"\g<1>0\2"),
)
_SHARED = re.compile(r"\b(cp\.async\.c|ldmatrix|ld\.shared|st\.shared)")


@dataclass(frozen=True)
class Mutant:
    """One change of the text; `line` is 1-based."""

    rule: str
    line: int
    before: str
    text: str


def _replace(lines: list[str], index: int, new: str) -> str:
    return "\n".join([*lines[:index], new, *lines[index + 1 :]])


def _weaker_wait(line: str) -> str | None:
    m = re.search(r"(cp\.async(?:\.bulk)?\.wait_group(?:\.read)?\s+)(\d+);", line)
    return line.replace(m[0], f"{m[1]}{int(m[2]) + 1};") if m else None


def _comparison(line: str) -> str | None:
    m = re.search(r"\bsetp\.(lt|le|gt|ge|eq|ne)\.", line)
    return line.replace(m[0], f"setp.{WEAKEN[m[1]]}.", 1) if m else None


def _predicate(line: str) -> str | None:
    m = re.match(r"(\s*)@!?%p\d+\s+(?!bra)(.*)", line)
    return m[1] + m[2] if m else None


def _moved_barrier(lines: list[str], index: int) -> Iterator[tuple[str, str]]:
    """The barrier before the previous shared access, or behind the next one, of its straight-line code."""
    for step, rule in ((-1, "move barrier up"), (1, "move barrier down")):
        at = index + step
        while 0 <= at < len(lines) and not re.search(r"^\s*(\$|@|bra|ret|\}|bar\.)", lines[at]):
            if _SHARED.search(lines[at]):
                rest = [*lines[:index], "", *lines[index + 1 :]]
                place = at if step < 0 else at + 1
                yield rule, "\n".join([*rest[:place], lines[index].strip(), *rest[place:]])
                break
            at += step


def mutants(ptx: str) -> Iterator[Mutant]:
    """All mutants of a module, in the order of its lines."""
    lines = ptx.split("\n")
    for index, line in enumerate(lines):
        found: list[tuple[str, str]] = []
        for rule, pattern, new in RULES:
            if re.search(pattern, line):
                found.append((rule, _replace(lines, index, re.sub(pattern, new or "", line))))
        for rule, change in (
            ("wait off by one", _weaker_wait),
            ("comparison", _comparison),
            ("no predicate", _predicate),
        ):
            changed = change(line)
            if changed is not None:
                found.append((rule, _replace(lines, index, changed)))
        if re.search(r"\bbar\.sync\b", line):
            found += _moved_barrier(lines, index)
        for rule, text in found:
            yield Mutant(rule, index + 1, line.strip(), text)
