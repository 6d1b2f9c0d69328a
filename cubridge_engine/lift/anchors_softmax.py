"""Where the online softmax stands in the text: what must go when the weights are no softmax."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..diagnostics import Span
from ..ir.anchors import SoftmaxSite, WeightSite
from . import tree
from .shape_types import Tile, look
from .syntax import Syn
from .values import Node

if TYPE_CHECKING:
    from .anchors_find import Finder

_ELEMENTS = frozenset({"subscript_expression", "identifier"})
_TARGETS = frozenset({"assignment_expression", "init_declarator"})


def site(f: Finder) -> SoftmaxSite | None:
    """The places of exponential, correction, row sum and log-sum-exp; None when one of them is in another function."""
    if f.loop_body is None:
        return None
    weights = tuple(w for w in (_weight(f, call) for call in _exponentials(f, f.loop_body)) if w is not None)
    corrections = _targets(f, [d for kind, d in f.e.sites if kind == "row" and d[0].role == "correction"])
    sums = [d for kind, d in f.e.sites if kind == "reduce" and d[0].role == "row_sum"]
    summed = [x for _, events, _ in sums for event in events for x in _elements(f, event.place)]
    stored = [d[1] for kind, d in f.e.sites if kind == "store_lse"]
    if not weights or corrections is None or any(event.place.callee is not None for event in stored):
        return None
    return SoftmaxSite(
        weights,
        corrections,
        tuple(dict.fromkeys(f.span(x) for x in summed)),
        tuple(f.span(event.place.site) for event in stored),
        f.span(f.body),
    )


def _exponentials(f: Finder, root: Syn) -> Iterator[Syn]:
    """Calls in the loop whose value is the exponential of a tile element, outermost first."""
    for node in root.walk():
        if node.type != "call_expression":
            continue
        value = f.e.machine.noted.get((node.start, node.end))
        plain = look(value)
        if isinstance(plain, Node) and plain.op in ("exp", "exp2") and isinstance(f.e.shapes.info(value), Tile):
            yield node


def _weight(f: Finder, call: Syn) -> WeightSite | None:
    function, arguments = call.get("function"), call.get("arguments")
    value = look(f.e.machine.noted[call.start, call.end])
    if function is None or arguments is None or not isinstance(value, Node):
        return None
    element = next((n for n in arguments.walk() if n.type in _ELEMENTS and _is_element(f, n)), None)
    if element is None:
        return None
    return WeightSite(f.span(call), f.text(element), value.op, f.text(function))


def _is_element(f: Finder, node: Syn) -> bool:
    value: Any = f.e.machine.noted.get((node.start, node.end))
    return value is not None and isinstance(f.e.shapes.info(value), Tile)


def _targets(f: Finder, rows: list[Any]) -> tuple[Span, ...] | None:
    """The names that take the corrections; None when there is none or one is not assigned in the kernel's own body."""
    found: list[Span] = []
    for _, events, _ in rows:
        for event in events:
            name = _target(f, event.place.site)
            if name is None:
                return None
            found.append(f.span(name))
    return tuple(dict.fromkeys(found)) or None


def _target(f: Finder, at: tuple[int, int]) -> Syn | None:
    """The variable that the statement at `at`, or the one around the call at `at`, assigns."""
    around = [n for n in tree.path_to(f.body, at) if n.type in _TARGETS]
    assigned = next(iter(tree.find(f.body, _TARGETS, *at)), around[-1] if around else None)
    name = assigned.get("left") or assigned.get("declarator") if assigned is not None else None
    while name is not None and name.type != "identifier":
        name = name.get("argument") or name.get("declarator")
    return name


def _elements(f: Finder, place: Any) -> list[Syn]:
    """The tile elements that a row sum adds, in the statement at `place`."""
    statement = tree.path_to(f.body, place.site)[-1]
    inside = [
        n for n in statement.walk() if n.type in _ELEMENTS and place.site[0] <= n.start and n.end <= place.site[1]
    ]
    elements = [n for n in inside if _is_element(f, n)]
    return [n for n in elements if not any(o is not n and o.start <= n.start and n.end <= o.end for o in elements)]
