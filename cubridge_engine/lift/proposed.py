"""Parts of a kernel that a model proposed stand between two comments; what is lifted from them is marked as such."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from typing import Any

from ..diagnostics import Span
from ..ir.nodes import Kernel, Op, Origin

BEGIN = "cubridge: begin proposed"
END = "cubridge: end proposed"
HEAD = 80  # bytes of a statement before the first expression in it that a model wrote
_BEGIN = re.compile(rb"cubridge: begin proposed (\S+) \(([^()\n]*)\)")


def proposed_ranges(data: bytes) -> tuple[tuple[int, int, str, str], ...]:
    """(first byte, byte after the last, site, model) of each part; one that is not closed goes on to the end."""
    found: list[tuple[int, int, str, str]] = []
    for match in _BEGIN.finditer(data):
        end = data.find(END.encode(), match.end())
        stop = len(data) if end < 0 else end
        found.append((match.start(), stop, match[1].decode("utf-8", "replace"), match[2].decode("utf-8", "replace")))
    return tuple(found)


def with_provenance(kernel: Kernel, data: bytes) -> Kernel:
    """`kernel` with provenance ``model`` on every operation that comes from a proposed part of `data`."""
    ranges = proposed_ranges(data)
    return replace(kernel, body=_block(kernel.body, ranges)) if ranges else kernel


def _block(body: tuple[Op, ...], ranges: tuple[tuple[int, int, str, str], ...]) -> tuple[Op, ...]:
    return tuple(_marked(op, ranges) for op in body)


def _marked(op: Op, ranges: tuple[tuple[int, int, str, str], ...]) -> Op:
    changed: dict[str, Any] = {}
    origin: Origin = getattr(op, "origin")  # noqa: B009 - every op has one, the base class does not say so
    spans = [span for span in (origin.span, origin.callee) if span is not None]
    if any(_is_part(span, one) for span in spans for one in ranges):
        changed["origin"] = replace(origin, provenance="model")
    for name in ("body", "orelse"):
        if name in {field.name for field in fields(op)}:
            changed[name] = _block(getattr(op, name), ranges)
    return replace(op, **changed) if changed else op


def _is_part(span: Span, proposed: tuple[int, int, str, str]) -> bool:
    """True inside a proposed part, and for a statement that begins with one: ``if (<condition>) ...``. Not for a loop
    with one somewhere in it.
    """
    start, end, *_ = proposed
    if start <= span.start and span.end <= end:
        return True
    return span.start <= start < end <= span.end and start - span.start <= HEAD
