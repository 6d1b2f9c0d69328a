"""The nodes that a value is made of."""

from __future__ import annotations

from collections.abc import Iterable

from .values import Node, Poly, Ptr, Value


def walk(values: Iterable[Value]) -> Iterable[Node]:
    """All nodes below `values`, each once."""
    seen: set[int] = set()
    stack = list(values)
    while stack:
        v = stack.pop()
        if isinstance(v, Poly):
            stack.extend(v.atoms())
        elif isinstance(v, Node):
            if v.uid in seen:
                continue
            seen.add(v.uid)
            yield v
            stack.extend(v.args)
        elif isinstance(v, Ptr):
            stack.append(v.offset)
