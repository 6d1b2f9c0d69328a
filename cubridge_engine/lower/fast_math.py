"""Functions of a score in the kernel's own instructions, where its softmax is computed with approximate exponentials.

tanhf costs an exponential, a reciprocal and some fifteen other instructions. A Hopper kernel (wgmma exists on sm_90a
alone) takes ``tanh.approx``: on an H200 it is off by at most 1.2e-5 of the value, over 2e8 arguments, which every
tolerance allows. For other devices only 2^-11 is promised, which for the scores that a cap is for moves a weight by
several percent; there ``tanh(x)`` is ``1 - 2 / (1 + exp(2 x))``, off by a few 2^-23 of the cap.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from tree_sitter import Node

from ..ir.expr import Call, Const, Expr, Var, free_vars, rebuild
from ..transfer.algebra import split_product
from ..transfer.model import Step
from .context import Job
from .cuda_expr import print_cuda, varies
from .hunks import Hunk

_TWO_LOG2E = 2.0 * math.log2(math.e)
_HOPPER_ONLY = re.compile(rb'"[^"\n]*\bwgmma\.mma_async')  # in inline PTX, not in a comment
_HELPER = (
    "// tanh in one instruction, on sm_90 within 1.2e-5 of the value.",
    "__device__ __forceinline__ float {name}(float x) {{",
    "{unit}float y;",
    '{unit}asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));',
    "{unit}return y;",
    "}}",
)


@dataclass(frozen=True)
class FastScore:
    """A score expression rewritten; `functions` prints it, and `hunks` bring what these need."""

    expr: Expr
    functions: dict[str, str]
    hunks: tuple[Hunk, ...] = ()


def is_hopper(data: bytes) -> bool:
    """True for a file that multiplies by wgmma, which exists on sm_90a alone."""
    return _HOPPER_ONLY.search(data) is not None


def fast_score(job: Job, expr: Expr, extra: dict[str, str], step: Step) -> FastScore:
    """`expr` with tanh as the kernel's own exponentials are: as it is, where these are exact. `extra` maps new
    variables to names.
    """
    unit = _exponential(job)
    functions = job.functions if unit is not None or job.weighted else {}
    if not _has_tanh(expr):
        return FastScore(expr, functions)
    helper = _helper(job, step, _approximate(job)) if is_hopper(job.source.data) else None
    if helper is not None:
        name, hunk = helper
        return FastScore(expr, {**functions, "tanh": name}, (hunk,))
    return FastScore(expr if unit is None else _visit(job, expr, unit, extra), functions)


def _exponential(job: Job) -> tuple[str, float] | None:
    """The kernel's approximate exponential, and what it takes for exp(2 x)."""
    functions = job.functions
    if "div" not in functions:
        return None
    return ("exp2", _TWO_LOG2E) if "exp2" in functions else ("exp", 2.0) if "exp" in functions else None


def _approximate(job: Job) -> set[str]:
    """The file's own functions for an approximate exponential: those that the softmax is known to call, or, where its
    calls are not known, those that are ``ex2.approx`` in inline PTX.
    """
    if _exponential(job) is not None:
        return {function for op, function in job.functions.items() if op != "div"}
    if job.functions:  # it calls exact ones
        return set()
    defined = [n for n in job.source.root.named_children if n.type == "function_definition"]
    return {_name(job, n) for n in defined if "ex2.approx" in job.source.text(n)} - {""}


def _has_tanh(expr: Expr) -> bool:
    return isinstance(expr, Call) and (expr.op == "tanh" or any(_has_tanh(a) for a in expr.args))


def _helper(job: Job, step: Step, own: set[str]) -> tuple[str, Hunk] | None:
    """A device function for tanh behind the first of `own` that this file defines at file scope; None for none."""
    defined = (n for n in job.source.root.named_children if n.type == "function_definition")
    place = next((n for n in defined if _name(job, n) in own), None)
    if place is None:
        return None
    style = job.style
    name = job.scopes.hoisted.maker.make("tanh_approx")
    lines = [line.format(name=name, unit=style.unit) for line in _HELPER]
    if style.allman:
        lines[1:2] = [lines[1].removesuffix(" {"), "{"]
    text = "".join(f"{style.newline}{line}" for line in ("", *lines))
    return name, job.hunk(place.end_byte, place.end_byte, text, step)


def _name(job: Job, node: Node) -> str:
    """What a function definition defines; empty for what has no plain name."""
    declarator = node.child_by_field_name("declarator")
    named = declarator.child_by_field_name("declarator") if declarator is not None else None
    return job.source.text(named) if named is not None else ""


def _visit(job: Job, expr: Expr, unit: tuple[str, float], extra: dict[str, str]) -> Expr:
    if isinstance(expr, Call) and expr.op == "mul" and not varies(expr.args[1]):
        inner, factor = expr.args
        if isinstance(inner, Call) and inner.op == "tanh" and varies(inner):
            out = _named(job, factor, "cap_out", extra)
            return Call("sub", (out, Call("div", (2.0 * out, _one_plus(job, inner.args[0], unit, extra)))))
    if isinstance(expr, Call) and expr.op == "tanh" and varies(expr):
        below = _one_plus(job, expr.args[0], unit, extra)
        return Call("sub", (Const(1.0), Call("div", (Const(2.0), below))))
    return rebuild(expr, lambda e: _visit(job, e, unit, extra))


def _one_plus(job: Job, inside: Expr, unit: tuple[str, float], extra: dict[str, str]) -> Expr:
    """``1 + exp(2 * inside)``, the factors that do not vary together in one name."""
    op, factor = unit
    scaled = split_product(inside * Const(factor), lambda e: not varies(e))
    if isinstance(scaled, Call) and scaled.op == "mul" and not varies(scaled.args[1]):
        scaled = scaled.args[0] * _named(job, scaled.args[1], "cap_in", extra)
    return Call("add", (Const(1.0), Call(op, (_visit(job, scaled, unit, extra),))))


def _named(job: Job, value: Expr, wanted: str, extra: dict[str, str]) -> Expr:
    if isinstance(value, Const | Var) or not free_vars(value):
        return value
    name = job.scopes.hoisted.declare("const float", wanted, print_cuda(value, job.scopes.at_setup()))
    extra[name] = name
    job.scopes.hoisted_types[name] = "float"
    return Var(name)
