"""Questions about a whole trace: its nodes, the parameters used as flags."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from . import addresses
from .machine import Machine
from .values import Node, Poly, Value
from .walking import walk

_FOUND: WeakKeyDictionary[Machine, tuple[int, list[Node]]] = WeakKeyDictionary()


def all_nodes(m: Machine) -> list[Node]:
    """Every node that an event refers to. Walked once for a trace that does not grow any more."""
    known = _FOUND.get(m)
    if known is None or known[0] != m.order:
        known = _FOUND[m] = (m.order, _all_nodes(m))
    return known[1]


def _all_nodes(m: Machine) -> list[Node]:
    values: list[Value] = []
    for event in addresses.events_of(m.trace.items):
        for attribute in ("value", "ptr", "shared", "live", "condition", "lo", "hi"):
            values.append(getattr(event, attribute, None))
        values.extend(getattr(event, "predicates", ()))
    return list(walk(values))


def find_flags(m: Machine) -> set[int]:
    """Integer parameters that are only compared with zero, and bool parameters."""
    tested: set[int] = set()
    other: set[int] = set()
    for node in all_nodes(m):
        if node.op == "param" and node.kind == "bool":
            tested.add(node.data)
        is_test = node.op in ("ne", "eq") and node.args[1] == 0
        for at, arg in enumerate(node.args):
            for atom in [arg] if isinstance(arg, Node) else arg.atoms() if isinstance(arg, Poly) else []:
                if atom.op == "param" and atom.kind == "int":
                    (tested if is_test and at == 0 and arg is atom else other).add(atom.data)
    for event in addresses.events_of(m.trace.items):
        for attribute in ("ptr", "lo", "hi", "shared"):
            value = getattr(event, attribute, None)
            value = getattr(value, "offset", value)
            if isinstance(value, Poly):
                other |= {a.data for a in value.atoms() if a.op == "param"}
    return tested - other
