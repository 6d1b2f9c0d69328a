"""Executing a kernel: its parameters become symbols, its template parameters values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import calls, parameters, rotation, statements
from .machine import Definition, Frame, Machine, OutOfBudget, Stopped
from .syntax import Syn
from .values import NotUnderstood


def run_kernel(m: Machine, definition: Definition, template: Mapping[str, Any]) -> None:
    """Fill `m.trace`."""
    m.frames.append(Frame(None))
    try:
        scope = parameters.bind(m, definition, template)
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
