"""Loop invariants of a score expression get a name in the setup of the kernel; what is left is cheap per element."""

from __future__ import annotations

from ..ir.expr import Call, Const, Expr, Read, Var, free_vars, reads, rebuild, type_of, walk
from .cuda_expr import print_cuda, varies
from .names import Scopes


def hoist(expr: Expr, scopes: Scopes, extra: dict[str, str], context: str = "") -> Expr:
    """`expr` with its largest invariant parts replaced by variables declared at setup; `extra` maps the new variables
    to their names.

    Plain variables and constants stay; an integer is not worth a name.
    """
    if not varies(expr):
        if not _worth_a_name(expr, scopes) or (free_vars(expr) and free_vars(expr) <= set(extra)):
            return expr  # what is left of names made already is for the compiler
        name = scopes.hoisted.declare("const float", _wanted(expr, context), print_cuda(expr, scopes.at_setup()))
        extra[name] = name
        return Var(name)
    inner = "masked" if isinstance(expr, Call) and expr.op == "where" else context if context != "masked" else ""
    if isinstance(expr, Call) and expr.op in ("tanh", "exp", "exp2", "sigmoid", "sqrt", "log", "sin", "cos"):
        inner = f"{expr.op}_in"
    elif isinstance(expr, Call) and expr.op == "mul" and not context:
        inner = next(
            (f"{a.op}_out" for a in expr.args if isinstance(a, Call) and a.op in ("tanh", "exp", "sigmoid")), ""
        )
    if isinstance(expr, Read):
        return expr  # its invariant offset becomes a pointer, when it is printed
    return rebuild(expr, lambda e: hoist(e, scopes, extra, inner))


def hoist_reads(expr: Expr, scopes: Scopes, extra: dict[str, str]) -> Expr:
    """`expr` with tensor reads that are the same for the whole CTA replaced by variables declared at setup."""
    if isinstance(expr, Read):
        if varies(expr):
            return expr
        kind = scopes.types.get(expr.tensor, "float")
        name = scopes.hoisted.declare(f"const {kind}", _wanted(expr, ""), print_cuda(expr, scopes.at_setup()))
        extra[name] = name
        scopes.hoisted_types.update({name: kind})
        return Var(name)
    return rebuild(expr, lambda e: hoist_reads(e, scopes, extra))


def _worth_a_name(expr: Expr, scopes: Scopes) -> bool:
    if isinstance(expr, Const | Var):
        return False
    if type_of(expr, scopes.types) != "float":
        return False
    return bool(free_vars(expr) or reads(expr))


def _wanted(expr: Expr, context: str) -> str:
    """A name a person might choose: the operand read, else the function it goes into (``cap_in`` of a tanh), else
    ``score_factor``.
    """
    if context == "sink":
        return "sink"
    tensors = [e.tensor for e in walk(expr) if isinstance(e, Read)]
    if tensors:
        stem = tensors[0].rsplit("_", 1)[-1] if len(tensors[0]) > 14 else tensors[0]
        plural = stem.endswith("s") and not stem.endswith(("ss", "as", "is", "us")) and len(stem) > 2
        return stem[:-1] if plural else f"{stem}_value"
    if isinstance(expr, Call) and expr.op in ("log", "log2"):
        return f"{expr.op}_{'decay' if free_vars(expr) & {'h', 'hk', 'b'} else 'n'}"
    if isinstance(expr, Call) and expr.op == "div" and expr.args[0] == Const(1.0):
        return "inv_scale"
    names = {"tanh_in": "cap_in", "tanh_out": "cap_out"}
    return names.get(context, context.replace("_in", "_factor") or "score_factor")
