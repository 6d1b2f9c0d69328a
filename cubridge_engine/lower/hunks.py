"""Hunks: small replacements on the user's bytes, applied only when the text is still the one that was read."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ..diagnostics import Diagnostic, Span, make

_WORD = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class Hunk:
    """Bytes ``[start, end)`` of the file, which read `old`, become `new`. `why` names the rule; `spec_span` the line
    that asked.
    """

    start: int
    end: int
    old: str
    new: str
    why: str
    line: int = 0  # 0-based, of `start`
    spec_span: Span | None = None


class StaleText(ValueError):
    """The file no longer holds what a hunk expects; `start` is the byte."""

    def __init__(self, start: int) -> None:
        super().__init__(f"the text at byte {start} is not the one that was read")
        self.start = start


def apply_hunks(data: bytes, hunks: Iterable[Hunk]) -> bytes:
    """`data` with the hunks applied; every other byte stays. Raises StaleText, and ValueError for overlapping hunks."""
    out: list[bytes] = []
    at = 0
    for hunk in sorted(hunks, key=lambda h: (h.start, h.end)):
        if hunk.start < at:
            raise ValueError(f"hunks overlap at byte {hunk.start}")
        if data[hunk.start : hunk.end] != hunk.old.encode():
            raise StaleText(hunk.start)
        out += [data[at : hunk.start], hunk.new.encode()]
        at = hunk.end
    return b"".join([*out, data[at:]])


def stale_diagnostic(problem: StaleText, path: str) -> Diagnostic:
    """The finding for a file that changed meanwhile."""
    return make("CB403", Span(path, problem.start, problem.start, 0, 0, 0, 0), start=problem.start)


def merge(hunks: Sequence[Hunk]) -> tuple[Hunk, ...]:
    """Hunks in file order; insertions at one place become one hunk, in the order they were made."""
    out: list[Hunk] = []
    for hunk in sorted(hunks, key=lambda h: (h.start, h.end)):
        last = out[-1] if out else None
        if last is not None and last.start == last.end == hunk.start == hunk.end:
            why = last.why if hunk.why in last.why.split(", ") else f"{last.why}, {hunk.why}"
            out[-1] = replace(last, new=last.new + hunk.new, why=why)
        else:
            out.append(hunk)
    return tuple(out)


def named_in(hunks: Iterable[Hunk]) -> dict[str, list[int]]:
    """The names that new text uses, with the places of that text."""
    found: dict[str, list[int]] = {}
    for hunk in hunks:
        for word in set(_WORD.findall(hunk.new)):
            found.setdefault(word, []).append(hunk.start)
    return found


def unified_diff(path: str, before: bytes, after: bytes, *, context: int = 3) -> str:
    """A unified diff of two versions of a file, ``a/path`` to ``b/path``; empty when they are equal."""
    old = before.decode("utf-8", "replace").splitlines(keepends=True)
    new = after.decode("utf-8", "replace").splitlines(keepends=True)
    lines = difflib.unified_diff(old, new, f"a/{path}", f"b/{path}", n=context)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
