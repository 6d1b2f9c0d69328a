"""Element rules of operators that make tensors: constants, ranges, triangles."""

from __future__ import annotations

from typing import Any

from ..ir.expr import Call, Const, Expr
from .elements import Elements, Index, number, rule
from .nodes import both


@rule("full", "full_like", "new_full")
def _full(el: Elements, node: Any, a: dict[str, Any], index: Index) -> Expr:
    return Const(number(a["fill_value"], el.dtype(node) == "float"))


@rule("zeros", "zeros_like", "new_zeros", "empty", "empty_like", "new_empty", "empty_permuted", "empty_strided")
def _zeros(el: Elements, node: Any, a: dict[str, Any], index: Index) -> Expr:
    return Const({"float": 0.0, "int": 0, "bool": False}[el.dtype(node)])


@rule("ones", "ones_like", "new_ones")
def _ones(el: Elements, node: Any, a: dict[str, Any], index: Index) -> Expr:
    return Const({"float": 1.0, "int": 1, "bool": True}[el.dtype(node)])


@rule("scalar_tensor")
def _scalar(el: Elements, node: Any, a: dict[str, Any], index: Index) -> Expr:
    return Const(number(a["s"], el.dtype(node) == "float"))


@rule("copy")
def _copy(el: Elements, node: Any, a: dict[str, Any], index: Index) -> Expr:
    return el.broadcast(a["src"], index)


@rule("fill")
def _fill(el: Elements, node: Any, a: dict[str, Any], index: Index) -> Expr:
    return el.broadcast(a["value"], index)


@rule("arange")
def _arange(el: Elements, node: Any, a: dict[str, Any], index: Index) -> Expr:
    start, step = a.get("start") or 0, a.get("step") or 1
    if type(start) is int and type(step) is int:
        return el.algebra.add(el.algebra.mul(index[0], Const(step)), Const(start))
    return Call("add", (Call("mul", (index[0], Const(float(step)))), Const(float(start))))


@rule("tril", "triu")
def _triangle(el: Elements, node: Any, a: dict[str, Any], index: Index) -> Expr:
    # Written by hand this is j <= i + diagonal (tril) or j >= i + diagonal (triu).
    edge = el.algebra.add(index[-2], Const(a["diagonal"]))
    keep = Call("le" if el.graph.op_name(node) == "tril" else "ge", (index[-1], edge))
    body = el.at(a["self"], index)
    if el.dtype(node) == "bool":
        return both(keep, body)
    return Call("where", (keep, body, Const(0.0 if el.dtype(node) == "float" else 0)))
