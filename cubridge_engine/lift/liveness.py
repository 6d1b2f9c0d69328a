"""Assignments that nothing reads: what a trip computes for the case that its tile need not be done again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .trace import Assign, Branch, Loop
from .values import Node, Ptr, Value


def drop_dead(items: list[Any]) -> None:
    """Take the assignments out of a trace whose versions reach no store, no condition and no state of a loop."""
    live = _Live()
    for event in _all(items):
        if not isinstance(event, Assign):
            live.mark(_read_by(event))
    grown = True
    while grown:
        before = len(live.seen)
        for event in _all(items):
            if isinstance(event, Loop):
                for carried in event.carried:
                    if live.holds(carried.node) or live.holds(carried.result):
                        live.mark([carried.after, carried.before, carried.node])
        grown = len(live.seen) > before
    _keep(items, live)


class _Live:
    """Nodes that are read, themselves or by what is read."""

    def __init__(self) -> None:
        self.seen: set[int] = set()

    def mark(self, values: list[Value]) -> None:
        stack = list(values)
        while stack:
            value = stack.pop()
            if isinstance(value, Ptr):
                stack.append(value.offset)
            elif isinstance(value, Node):
                if value.uid not in self.seen:
                    self.seen.add(value.uid)
                    stack.extend(value.args)
            elif value is not None and not isinstance(value, bool | int | float) and hasattr(value, "atoms"):
                stack.extend(value.atoms())  # type: ignore[union-attr]

    def holds(self, node: Any) -> bool:
        return isinstance(node, Node) and node.uid in self.seen


def _all(items: list[Any]) -> Iterator[Any]:
    for event in items:
        yield event
        if isinstance(event, Loop):
            yield from _all(event.items)
        elif isinstance(event, Branch):
            yield from _all(event.then)
            yield from _all(event.orelse)


def _read_by(event: Any) -> list[Value]:
    values = [getattr(event, name, None) for name in ("value", "ptr", "condition", "lo", "hi", "row", "live", "shared")]
    return [v for v in (*values, *getattr(event, "predicates", ())) if v is not None]


def _keep(items: list[Any], live: _Live) -> None:
    items[:] = [x for x in items if not isinstance(x, Assign) or live.holds(x.version)]
    for event in items:
        if isinstance(event, Loop):
            event.carried = [c for c in event.carried if live.holds(c.node) or live.holds(c.result)]
            _keep(event.items, live)
        elif isinstance(event, Branch):
            _keep(event.then, live)
            _keep(event.orelse, live)
