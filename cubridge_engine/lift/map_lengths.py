"""Sq and Sk of a kernel whose copies are bounded by tensor maps."""

from __future__ import annotations

from typing import Any

from ..ir.expr import Var
from .loops import uses
from .machine import Machine
from .map_unknowns import is_map_unknown
from .problem import Problem
from .queries import all_nodes
from .trace import Loop
from .values import Node, Poly, Value
from .walking import walk

_COMPARED = frozenset({"lt", "le", "gt", "ge"})


def learn_lengths(m: Machine, p: Problem, loop: Loop | None, limits: dict[str, list[Value]]) -> None:
    """Sq and Sk where TMA bounds the rows: the row counts of the maps are those lengths, and the length of K is the
    parameter that ends the KV loop, or the one that its keys are compared with.
    """
    if "Sk" not in p.sizes and loop is not None and any(map(is_map_unknown, limits.get("k", ()))):
        bound = list(walk([loop.lo if loop.step < 0 else loop.hi]))  # where the keys end
        found = [
            {a for n in bound if n.op in ("min", "select") for a in n.args if _length(a)},
            {a for n in all_nodes(m) if n.op in _COMPARED for a, b in _sides(n) if _length(a) and uses(b, loop.iv)},
            {a for n in bound for x in n.args if isinstance(x, Poly) for a in x.atoms() if _length(a)},
        ]
        other = {p.sizes.get("Sq")}  # a bound may end at the last query row as well
        chosen = next((names - other or names for names in found if names), set[Value]())
        node = next(iter(chosen), None)
        if len(chosen) == 1 and isinstance(node, Node):
            p.sizes["Sk"] = node

    for size, roles in (("Sq", ("q",)), ("Sk", ("k", "v"))):
        for limit in (x for role in roles for x in limits.get(role, ())):
            if is_map_unknown(limit) and isinstance(limit, Node):
                p.canon[limit] = Var(size)


def _sides(node: Node) -> tuple[tuple[Value, Value], tuple[Value, Value]]:
    return (node.args[0], node.args[1]), (node.args[1], node.args[0])


def _length(value: Any) -> bool:
    return isinstance(value, Node) and value.op == "param" and value.kind == "int" and not is_map_unknown(value)
