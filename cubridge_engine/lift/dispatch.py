"""Evaluation of an expression by the type of its syntax node. The table is filled by `expressions`."""

from __future__ import annotations

from collections.abc import Callable

from .machine import Machine, NotUnderstood, Scope
from .syntax import Syn
from .values import Value

Rule = Callable[[Machine, Syn, Scope], Value]
TABLE: dict[str, Rule] = {}


def evaluate(m: Machine, syn: Syn, scope: Scope) -> Value:
    """The value of an expression. Raises NotUnderstood."""
    m.tick()
    rule = TABLE.get(syn.type)
    if rule is None:
        raise NotUnderstood(f"{syn.type.replace('_', ' ')} is not known to the lifter")
    if m.overrides and (syn.start, syn.end) in m.overrides:
        return m.overrides[(syn.start, syn.end)]
    value = rule(m, syn, scope)
    if syn.type in _NOTED and (len(m.frames) == 1 or m.deep) and m.noting and not m.rehearsal:
        key = (syn.start, syn.end)
        if key in m.noted:
            m.noted_again.setdefault(key, value)
        else:
            m.noted[key] = value
    return value


_NOTED = frozenset(
    {"binary_expression", "conditional_expression", "identifier", "call_expression", "subscript_expression"}
)
