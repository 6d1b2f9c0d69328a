"""Which statements compute what an operation stores: a line of mathematics is often not the line of the store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..diagnostics import Span
from . import addresses
from .trace import Assign, Place
from .values import Node, Poly, Value

if TYPE_CHECKING:
    from .state import Emission

MAX_NODES = 400  # of one element: an expression that people write has some tens
Site = tuple[int, int]


def computed_at(e: Emission, events: Sequence[Any], own: Place) -> tuple[Span, ...]:
    """Spans in the kernel's own body, outside of `own`, of the text by which `events` get their values.

    The statements of every event count, and for the first one those of the local variables that its value was computed
    in, back to values that have a name of their own in CuIR: they are steps themselves.
    """
    if not events:
        return ()
    sites = {event.place.site for event in events}
    if e.shapes.contraction(events[0].value) is None:
        sites |= _behind(e, events[0].value)
    low, high = own.site
    return tuple(e.source.span_of(*site) for site in sorted(sites) if site[0] < low or high < site[1])


def written_at(e: Emission) -> dict[int, Site]:
    """Where a node was assigned, or, in branches whose assignments are not recorded, where it was computed first."""
    if not e.written:
        for site, value in e.machine.noted.items():
            if isinstance(value, Node) and value.kind == "float" and value.op not in _VERSIONS:
                e.written.setdefault(value.uid, site)
        traced = addresses.events_of(e.machine.trace.items)
        e.written.update({event.version.uid: event.place.site for event in traced if isinstance(event, Assign)})
    return e.written


_VERSIONS = ("ver", "phi", "after", "join")


def _is_element(e: Emission, node: Node) -> bool:
    """True for an element of a tile, in whatever state."""
    return node.op in _VERSIONS and bool(node.data) and node.data[0] in e.objects


def _behind(e: Emission, value: Value) -> set[Site]:
    """Where the values were assigned that `value` goes back to."""
    written, found, seen = written_at(e), set[Site](), set[int]()
    stack: list[Value] = [value]
    while stack and len(seen) < MAX_NODES:
        node = stack.pop()
        if isinstance(node, Poly):
            stack.extend(node.atoms())
        if not isinstance(node, Node) or node.uid in seen:
            continue
        seen.add(node.uid)
        if node is not value and (node.uid in e.holder or _is_element(e, node)):
            continue
        if node.uid in written:
            found.add(written[node.uid])
        stack.extend(node.args)
    return found
