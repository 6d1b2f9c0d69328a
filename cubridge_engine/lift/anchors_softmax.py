"""Where the online softmax stands in the text: what must go when the weights are no softmax.

Its steps may stand in the kernel's own body or in functions and methods that the kernel calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..diagnostics import Span
from ..ir.anchors import SoftmaxSite, WeightSite
from . import tree
from .bodies import all_bodies, innermost
from .shape_types import Tile, look
from .syntax import Syn
from .values import Node

if TYPE_CHECKING:
    from .anchors_find import Finder

_ELEMENTS = frozenset({"subscript_expression", "identifier"})
_TARGETS = frozenset({"assignment_expression", "init_declarator"})


def site(f: Finder) -> SoftmaxSite | None:
    """The places of exponential, correction, row sum and log-sum-exp; None when one of them was not found."""
    if f.loop_body is None:
        return None
    weights = tuple(w for w in (_weight(f, call) for call in _exponentials(f)) if w is not None)
    corrections = _targets(f, [d for kind, d in f.e.sites if kind == "row" and d[0].role == "correction"])
    sums = [d for kind, d in f.e.sites if kind == "reduce" and d[0].role == "row_sum"]
    summed = [x for _, events, _ in sums for event in events for x in _elements(f, innermost(event.place))]
    summed = summed or list(_added(f))
    stored = [d[1] for kind, d in f.e.sites if kind == "store_lse"]
    if not weights or corrections is None:
        return None
    rotation = f.e.machine.rotation
    return SoftmaxSite(
        weights,
        corrections,
        tuple(dict.fromkeys(f.span(x) for x in summed)),
        tuple(f.span(innermost(event.place)) for event in stored),
        f.span(f.main_body()),
        tuple(f.span(at) for at in sorted(rotation.again)) if rotation is not None else (),
    )


def _exponentials(f: Finder) -> list[Syn]:
    """Calls whose value is the exponential of a tile element, outermost first: those of the loop, then those of
    functions. A function that is itself called for an exponential is one, and is left as it is.
    """
    assert f.loop_body is not None
    main = f.main_body()
    functions = [b for b in _bodies(f) if b.start != main.start]
    found = [(root, call) for root in (f.loop_body, *functions) for call in _exponentials_in(f, root)]
    called = {_called(call) for _, call in found}
    homes = {d.body.start for name in called for d in f.e.machine.functions.get(name, ())}
    return list({call.start: call for root, call in found if root.start not in homes}.values())


def _called(call: Syn) -> str:
    function = call.get("function")
    return function.text.split("<")[0] if function is not None else ""


def _exponentials_in(f: Finder, root: Syn) -> Iterator[Syn]:
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
    """The names that take the corrections; None when there is none or one is not assigned."""
    found: list[Syn | None] = []
    inside: list[Any] = []  # computed in a function that no variable of the kernel's body is assigned from
    for event in (event for _, of_row, _ in rows for event in of_row):
        name = _target(f, event.place.site)
        if name is None and event.place.callee is not None:
            inside.append(event)
        else:
            found.append(name)
    if inside:  # the rows of a thread share a statement, of which the value of one is noted
        held = [n for b in _bodies(f) for n in b.walk() if n.type in _TARGETS and any(_holds(f, n, e) for e in inside)]
        found += [_name_of(n) for n in held] or [None]
    if not found or None in found:
        return None
    return tuple(dict.fromkeys(f.span(name) for name in found if name is not None))


def _holds(f: Finder, assigned: Syn, event: Any) -> bool:
    """True when a variable is set to the event's value."""
    right = assigned.get("right") or assigned.get("value")
    if assigned.type == "assignment_expression" and _operator(f, assigned) != "=":
        return False
    given = f.e.machine.noted.get((right.start, right.end)) if right is not None else None
    return given is not None and look(given) in (look(event.version), look(event.value))


def _operator(f: Finder, assigned: Syn) -> str:
    left, right = assigned.get("left"), assigned.get("right")
    between = f.source.data[left.end : right.start] if left is not None and right is not None else b""
    return between.decode("utf-8", "replace").strip()


def _target(f: Finder, at: tuple[int, int]) -> Syn | None:
    """The variable that the statement at `at`, or the one around the call at `at`, assigns."""
    body = f.home(at)
    around = [n for n in tree.path_to(body, at) if n.type in _TARGETS]
    assigned = next(iter(tree.find(body, _TARGETS, *at)), around[-1] if around else None)
    return _name_of(assigned) if assigned is not None else None


def _name_of(assigned: Syn) -> Syn | None:
    name = assigned.get("left") or assigned.get("declarator")
    while name is not None and name.type != "identifier":
        name = name.get("argument") or name.get("declarator")
    return name


def _bodies(f: Finder) -> list[Syn]:
    """The kernel's body, then those of functions and methods, each once."""
    return list({b.start: b for b in (f.main_body(), *all_bodies(f.e))}.values())


def _elements(f: Finder, at: tuple[int, int]) -> list[Syn]:
    """The tile elements that a row sum adds, in the statement at `at`."""
    statement = tree.path_to(f.home(at), at)[-1]
    inside = [n for n in statement.walk() if n.type in _ELEMENTS and at[0] <= n.start and n.end <= at[1]]
    elements = [n for n in inside if _is_element(f, n)]
    return [n for n in elements if not any(o is not n and o.start <= n.start and n.end <= o.end for o in elements)]


def _added(f: Finder) -> Iterator[Syn]:
    """The tile elements that something is added up of, in functions: their sums reach the row sum by way of others."""
    for node in (n for body in _bodies(f) for n in body.walk() if n.type == "assignment_expression"):
        right = node.get("right")
        if right is not None and _operator(f, node) == "+=" and _is_element(f, right):
            yield right
