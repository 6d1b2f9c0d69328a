"""Conditions of elements without branches, in kernels whose tensor cores work beside them.

Between two wgmma every score is tested in a loop that is unrolled: 64 conditions a thread. Of ``a && (b || c)``, or of
a conjunct that divides, ptxas makes branches, and around these it has no registers to keep the products in flight: it
serialises them (C7511, C7512) and spills. ``a & (b | c)`` is evaluated as a whole and stays in predicates.
"""

from __future__ import annotations

from ..ir.expr import Call, Expr, Read, walk
from .context import Job
from .cuda_expr import PRIMARY, Scope, print_cuda
from .fast_math import is_hopper

_BITS = {"and": "&", "or": "|"}
_BRANCHES = frozenset({"or", "floordiv", "mod", "div", "where"})


def wants_no_branch(job: Job, keep: Expr) -> bool:
    """True where `keep` would branch. What reads a tensor is left alone: its conjuncts guard the read."""
    nodes = list(walk(keep))
    if not is_hopper(job.source.data) or any(isinstance(node, Read) for node in nodes):
        return False
    return any(isinstance(node, Call) and node.op in _BRANCHES for node in nodes)


def joined_without_branch(job: Job, start: int, old: str, token: str, new: Expr, scope: Scope) -> str:
    """``(old) & new`` for the token ``&&``, ``(old) | new`` for ``||``; `start` is where the old text begins."""
    op = "and" if token == "&&" else "or"
    text = f"({old}) {_BITS[op]} {_operand(new, scope, op)}"
    indent = job.line_indent(start) + "    "
    if job.style.fits(f"{job.column(start)}{text} ? "):
        return text
    # One conjunct a line.
    return f"({old}) {_BITS[op]}{job.style.newline}{indent}{text.removeprefix(f'({old}) {_BITS[op]} ')}"


def _operand(expr: Expr, scope: Scope, outer: str) -> str:
    """A side of ``&`` or ``|``, in parentheses unless it is the same operation."""
    if not (isinstance(expr, Call) and expr.op in _BITS):
        return print_cuda(expr, scope, PRIMARY)
    text = f" {_BITS[expr.op]} ".join(_operand(arg, scope, expr.op) for arg in expr.args)
    return text if expr.op == outer else f"({text})"
