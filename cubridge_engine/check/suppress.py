"""Inline suppression: ``// cubridge: ignore[CB850] the reason`` at the end of a line, or on a line above it.

A reason is required. A comment that has none, or that finds nothing to ignore, is a finding itself, so that comments
do not outlive what they are about.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from ..diagnostics import make
from ..source import SourceFile
from . import codes as codes
from .model import Finding, Suppression

_COMMENT = re.compile(rb"//[ \t]*cubridge:[ \t]*ignore[ \t]*\[([^\]\r\n]*)\][ \t]*:?[ \t]*([^\r\n]*)")
_CODE = re.compile(r"CB\d{3}")


def suppressions(source: SourceFile) -> tuple[Suppression, ...]:
    """The comments of a file, in order."""
    found: list[Suppression] = []
    for match in _COMMENT.finditer(source.data):
        node = source.root.descendant_for_byte_range(match.start(), match.start() + 1)
        if node is not None and node.type.startswith(("string", "raw_string", "char")):
            continue  # a text that looks like one
        listed = tuple(part.strip() for part in match.group(1).decode("utf-8", "replace").split(",") if part.strip())
        reason = match.group(2).decode("utf-8", "replace").strip().removesuffix("*/").strip()
        reason = "" if re.fullmatch(r"<[^<>]*>", reason) else reason  # a place for one, not filled in
        span = source.span_of(match.start(), match.end())
        found.append(Suppression(span, listed, reason, _line(source, span.line, span.column)))
    return tuple(found)


def _line(source: SourceFile, line: int, column: int) -> int:
    """The line that a comment is about: its own where code stands before it, else the next one with code."""
    if source.code[source.line_start(line) : source.line_start(line) + column].strip():
        return line
    last = source.data.count(b"\n")
    for following in range(line + 1, last + 1):
        end = source.line_start(following + 1) if following < last else len(source.code)
        if source.code[source.line_start(following) : end].strip():
            return following
    return line


def apply(
    found: Sequence[Finding], comments: Iterable[Suppression], looked_for: Callable[[str], bool] = lambda code: True
) -> tuple[list[Finding], list[Finding], list[Finding]]:
    """(findings that are left, those that comments ignore, findings about the comments: CB890, CB891, CB892).

    `looked_for` says of a code whether it could have been found at all: else a comment about it is left alone.
    """
    kept, ignored, frame = list(found), list[Finding](), list[Finding]()
    for comment in comments:
        words = ", ".join(comment.codes) or "nothing"
        unknown = [code for code in comment.codes if not _CODE.fullmatch(code)]
        for code in unknown:
            frame.append(Finding(make("CB892", comment.span, name=code), "frame", method="frame"))
        if not comment.reason:
            frame.append(Finding(make("CB891", comment.span, codes=words), "frame", method="frame"))
            continue
        hit = [f for f in kept if f.code in comment.codes and _is_at(f, comment)]
        ignored += hit
        kept = [f for f in kept if f not in hit]
        if not hit and not unknown and all(looked_for(code) for code in comment.codes):
            frame.append(Finding(make("CB890", comment.span, codes=words), "frame", method="frame"))
    return kept, ignored, frame


def _is_at(found: Finding, comment: Suppression) -> bool:
    span = found.span
    return span is not None and span.path == comment.span.path and span.line <= comment.line <= span.end_line
