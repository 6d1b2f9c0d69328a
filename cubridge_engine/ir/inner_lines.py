"""A kernel whose work is done in functions and methods, seen at the lines inside them.

An operation's origin names the statement of the kernel that it comes from. That is what a reader wants of a helper
with one purpose (``load_tile(...)``). A call that does many steps, such as a consumer's whole walk over the KV tiles,
would put all of them on one line.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from .nodes import NOWHERE, Alloc, For, If, Kernel, Op, Origin

# A call with operations of so many kinds does more than one step.
_MANY = 3

_Place = tuple[str, int, int]


def with_inner_lines(kernel: Kernel) -> Kernel:
    """The kernel with the operations of crowded calls at the innermost statement in place of the call.

    A call is crowded that does operations of three kinds or more, or some inside the KV loop and some outside it.
    Only origins change, so the two programs are equal.
    """
    kinds: dict[_Place, set[tuple[str, str]]] = defaultdict(set)
    inside: dict[_Place, set[bool]] = defaultdict(set)
    for op, in_loop in _all(kernel.body, False):
        place = _call(op)
        if place is not None and not isinstance(op, Alloc):
            kinds[place].add((type(op).__name__, getattr(op, "role", "")))
            inside[place].add(in_loop)
    crowded = {place for place in kinds if len(kinds[place]) >= _MANY or len(inside[place]) > 1}
    return replace(kernel, body=_moved(kernel.body, crowded)) if crowded else kernel


def _origin(op: Op) -> Origin:
    return getattr(op, "origin", NOWHERE)


def _call(op: Op) -> _Place | None:
    """Where the call is that does the operation; None where it is no call, or what it calls is in another file."""
    origin = _origin(op)
    call, inner = origin.span, origin.where
    if call is None or inner is None or inner.path != call.path or (inner.start, inner.end) == (call.start, call.end):
        return None
    return call.path, call.start, call.end


def _all(body: tuple[Op, ...], in_loop: bool) -> Iterator[tuple[Op, bool]]:
    """Every operation, and whether the KV loop is around it."""
    for op in body:
        yield op, in_loop
        if isinstance(op, For):
            yield from _all(op.body, in_loop or op.role == "kv_loop")
        elif isinstance(op, If):
            yield from _all((*op.body, *op.orelse), in_loop)


def _moved(body: tuple[Op, ...], crowded: set[_Place]) -> tuple[Op, ...]:
    made: list[Op] = []
    for op in body:
        new = op
        if isinstance(new, For):
            new = replace(new, body=_moved(new.body, crowded))
        elif isinstance(new, If):
            new = replace(new, body=_moved(new.body, crowded), orelse=_moved(new.orelse, crowded))
        if _call(op) in crowded:
            new = replace(new, origin=replace(_origin(op), span=_origin(op).where))  # type: ignore[call-arg]
        made.append(new)
    return tuple(made)
