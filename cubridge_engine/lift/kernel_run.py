"""Executing a kernel: its parameters become symbols, its template parameters values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import calls, places, rotation, statements
from .ctypes_table import stars
from .machine import Definition, Frame, Machine, OutOfBudget, Scope, Stopped
from .syntax import Syn
from .values import CType, NotUnderstood, Ptr


def bind_kernel(m: Machine, definition: Definition, template: Mapping[str, Any]) -> Scope:
    """The scope of a kernel's body."""
    scope = Scope(m.globals, dict(template))
    for at, param in enumerate(definition.params):
        name = calls.parameter_name(param)
        kind, declarator = param.get("type"), param.get("declarator")
        ctype = places.read_type(m, kind, scope) if kind is not None else CType("?", 4, "other")
        levels = stars(declarator) + (1 if declarator is not None and declarator.type == "array_declarator" else 0)
        ctype = CType(ctype.name, ctype.size, ctype.kind, ctype.pointer + levels, ctype.signed)
        cells = m.new_cells(name, ctype, (), param.start)
        if ctype.pointer:
            cells.values[0] = Ptr("global", at, 0, ctype.pointee())
            m.param_sizes[at] = max(1, ctype.size)
        else:
            kind_name = {"bool": "bool", "float": "float", "half": "float", "bf16": "float", "int": "int"}.get(
                ctype.kind, "other"
            )
            cells.values[0] = m.store.node("param", (), at, kind_name)
        scope.names[name] = cells
    return scope


def run_kernel(m: Machine, definition: Definition, template: Mapping[str, Any]) -> None:
    """Fill `m.trace`."""
    scope = bind_kernel(m, definition, template)
    m.frames.append(Frame(None))
    try:
        statements.execute(m, definition.body, scope)
        rotation.check_behind(m)
    except Stopped:
        return
    except OutOfBudget:
        m.unknown(definition.body, "the kernel takes too many steps to execute symbolically")
    except NotUnderstood as why:
        m.unknown(m.statement or definition.body, str(why))
    finally:
        m.frames.pop()


def parameter_name(param: Syn) -> str:
    """The declared name of a parameter."""
    return calls.parameter_name(param)
