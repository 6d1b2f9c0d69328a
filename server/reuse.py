"""Lifting each kernel once per content: what was lifted is kept with a digest of everything that it depends on.

A kernel depends on its own text, on the functions it can reach by name, on everything in the file that is no function
(types, constants, macros), and on the functions that name it (launches give template values and block sizes). Where all
of that has the same tokens in a new version of the file, the earlier lift holds and only its places move: also where
somebody writes a comment in the kernel. What cannot be told for sure counts as a dependency: a lift too many costs a
moment, a stale one would be wrong.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, cast

from tree_sitter import Node

from cubridge_engine.diagnostics import Span
from cubridge_engine.ir.anchors import Anchors
from cubridge_engine.ir.expr import Call, Const, Read, Var
from cubridge_engine.source import SourceFile

from .tokens import Tokens, tokens_of

if TYPE_CHECKING:
    from cubridge_engine.lift import Lifted

UNREAD = ""
MAX_KEPT = 48  # lifts, of all kernels and versions of one file: undo and redo find theirs again
_CONTAINERS = frozenset({"namespace_definition", "linkage_specification"})
_PLAIN_NAME = re.compile(r"[A-Za-z_]\w*")
_WORD = re.compile(rb"[A-Za-z_]\w*")
_LOOPS = frozenset({b"for", b"while", b"do", b"goto"})
_WITHOUT_SPANS = (Call, Const, Read, Var, str, int, float, bool, type(None))


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """A top-level declaration: byte range, the words in it, and the name of a function that only its name can reach
    (UNREAD for text that the grammar gave up on, which nothing reaches)."""

    start: int
    end: int
    name: str | None
    words: frozenset[bytes] = dataclasses.field(repr=False, compare=False)


Places = tuple[tuple[int, int, Tokens], ...]  # of pieces: first byte, byte after the last, tokens


class Moved(Exception):
    """A place of the earlier lift is in none of the pieces that it was made from, or at none of their tokens."""


@dataclasses.dataclass(slots=True)
class Lifts:
    """The lifts of one file. Used by one reading thread at a time."""

    _kept: dict[tuple[str, bytes], tuple[Places, Lifted]] = dataclasses.field(
        default_factory=dict[tuple[str, bytes], "tuple[Places, Lifted]"]
    )

    def get(self, source: SourceFile, name: str, uses: tuple[Piece, ...]) -> Lifted | None:
        """The lift of the kernel `name`, moved to its places in `source`; None when its content was never lifted."""
        key = (name, digest(source, uses))
        if key not in self._kept:
            return None
        before, lifted = self._kept.pop(key)
        after = places_of(source, uses)
        try:
            moved = move(lifted, before, after, source)
        except Moved:
            return None
        self._kept[key] = (after, moved)  # at the end: recently used
        return moved

    def put(self, source: SourceFile, name: str, uses: tuple[Piece, ...], lifted: Lifted) -> Lifted:
        """Keep a lift. Returns it without anchors: they are for lowering, which lifts by itself, and do not move."""
        kept = dataclasses.replace(lifted, anchors=Anchors(), source=None)
        self._kept[name, digest(source, uses)] = (places_of(source, uses), kept)
        while len(self._kept) > MAX_KEPT:
            del self._kept[next(iter(self._kept))]
        return kept


def uses_of(source: SourceFile, name: str, pieces: tuple[Piece, ...]) -> tuple[Piece, ...]:
    """The pieces that the kernel `name` depends on, in the order of the file."""
    pasting = any("##" in macro.body for macro in source.macros.values())  # then names are made that nobody sees
    own = name.encode()
    waiting = {p.start: p for p in pieces if p.name is not None and not pasting and own not in p.words}
    frontier = [piece for piece in pieces if piece.start not in waiting]
    reached: set[bytes] = set()
    while frontier:
        reached.update(*(piece.words for piece in frontier))
        frontier = [piece for piece in waiting.values() if (piece.name or "").encode() in reached]
        for piece in frontier:
            del waiting[piece.start]
    return tuple(piece for piece in pieces if piece.start not in waiting)


def has_loop(uses: tuple[Piece, ...]) -> bool:
    """False when nothing that a kernel depends on has a loop: then it does not walk over keys."""
    return any(not piece.words.isdisjoint(_LOOPS) for piece in uses)


def pieces_of(source: SourceFile) -> tuple[Piece, ...]:
    """The top-level declarations of a file; comments are none."""
    names = {f.node.start_byte: f.name for group in source.functions().values() for f in group}
    return tuple(_pieces(source, source.root, names))


def _pieces(source: SourceFile, parent: Node, names: dict[int, str]) -> Iterator[Piece]:
    for node in parent.children:
        body = node.child_by_field_name("body") if node.type in _CONTAINERS else None
        if node.type == "comment":
            continue
        if body is not None:
            yield _piece(source, node.start_byte, body.start_byte, None)
            yield from _pieces(source, body, names)
            continue
        inner = node
        while inner.type == "template_declaration" and inner.named_children:
            inner = inner.named_children[-1]
        name = names.get(inner.start_byte) if inner.type == "function_definition" else None
        if node.is_error and not any(node.start_byte <= start < node.end_byte for start in names):
            name = UNREAD
        # Operators, conversions and destructors are reached without their name.
        plain = name if name is not None and (name == UNREAD or _PLAIN_NAME.fullmatch(name)) else None
        yield _piece(source, node.start_byte, node.end_byte, plain)


def _piece(source: SourceFile, start: int, end: int, name: str | None) -> Piece:
    return Piece(start, end, name, _words(source.clean[start:end]))


@lru_cache(maxsize=4096)
def _words(text: bytes) -> frozenset[bytes]:
    return frozenset(_WORD.findall(text))


def digest(source: SourceFile, uses: tuple[Piece, ...]) -> bytes:
    """Equal for two texts in which the dependencies of a kernel are the same, wherever they are in the file."""
    whole = hashlib.sha256()
    for macro in source.macros.values():
        whole.update(repr((macro.name, macro.params, macro.body)).encode())
    # One question that the lifter asks the whole file, to guess the element type of a template nobody instantiates.
    whole.update(bytes((b"mma.sync" in source.data or b"ldmatrix" in source.data,)))
    for header in source.headers:
        whole.update(hashlib.sha256(header.source.data).digest())
    for piece in uses:
        for text in (source.data, source.clean):
            whole.update(tokens_of(text[piece.start : piece.end]).digest)
    return whole.digest()


def places_of(source: SourceFile, uses: tuple[Piece, ...]) -> Places:
    """Where the pieces and their tokens are in `source`."""
    return tuple((piece.start, piece.end, tokens_of(source.data[piece.start : piece.end])) for piece in uses)


def move(lifted: Lifted, before: Places, after: Places, source: SourceFile) -> Lifted:
    """`lifted` with its spans and byte ranges where the same tokens are now. Raises Moved when one of them is in no
    piece, or does not begin and end with tokens."""
    from cubridge_engine.lift.observed import Meeting
    from cubridge_engine.lift.trace import Place

    pairs = list(zip(before, after, strict=True))

    @cache
    def moved(first: int, last: int) -> tuple[int, int]:
        for (start, end, old), (now, _, new) in pairs:
            if start <= first and last <= end:
                found = old.moved(new, first - start, last - start)
                if found is None:
                    raise Moved
                return now + found[0], now + found[1]
        if first == last == 0:
            return 0, 0  # the file as a whole
        raise Moved

    def span(old: Span) -> Span:
        return old if old.start == old.end == 0 else source.span_of(*moved(old.start, old.end))

    def place(old: Place) -> Place:
        callee, where = (moved(*at) if at is not None else None for at in (old.callee, old.where))
        return Place(moved(*old.site), callee, where)

    def meeting(old: Meeting) -> Meeting:
        splits = tuple(moved(*split) for split in old.splits)
        return dataclasses.replace(old, place=place(old.place), splits=splits)

    return cast("Lifted", _moved(lifted, {Span: span, Place: place, Meeting: meeting}))


def _moved(value: Any, movers: dict[type, Any]) -> Any:
    """`value` with every place in it replaced by its mover; parts without places are shared, not copied."""
    if isinstance(value, _WITHOUT_SPANS):
        return value
    mover = movers.get(type(value))
    if mover is not None:
        return mover(value)
    if isinstance(value, tuple):
        items = tuple(_moved(item, movers) for item in cast("tuple[Any, ...]", value))
        same = all(a is b for a, b in zip(items, cast("tuple[Any, ...]", value), strict=True))
        return cast("Any", value) if same else items
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed = {
            field.name: new
            for field in dataclasses.fields(value)
            if (new := _moved(old := getattr(value, field.name), movers)) is not old
        }
        return dataclasses.replace(value, **changed) if changed else value
    return value  # strides and template values by name, arrays: no places in them
