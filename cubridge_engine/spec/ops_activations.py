"""Element rules of activations that PyTorch keeps whole: each as the formula of its documentation."""

from __future__ import annotations

import math
from typing import Any

from ..ir.expr import Call, Const, Expr
from .elements import Elements, Index, Refused, rule, simple

ZERO, ONE, HALF = Const(0.0), Const(1.0), Const(0.5)


def _times(expr: Expr, factor: float) -> Expr:
    return expr if factor == 1 else simple("mul", expr, Const(float(factor)))


@rule("elu", "celu", "selu")
def _elu(el: Elements, node: Any, a: dict[str, Any], index: Index) -> Expr:
    """``scale * (x > 0 ? x : alpha * (exp(x * input_scale) - 1))``; celu divides by alpha inside."""
    x = el.at(a["self"], index)
    name = el.graph.op_name(node)
    alpha, scale = float(a.get("alpha", 1.0)), float(a.get("scale", 1.0))
    inner = float(a.get("input_scale", 1.0))
    if name == "celu":
        inner = 1.0 / alpha
    elif name == "selu":
        alpha, scale = 1.6732632423543772, 1.0507009873554805
    low = _times(simple("sub", simple("exp", _times(x, inner)), ONE), alpha)
    return _times(simple("where", simple("gt", x, ZERO), x, low), scale)


@rule("gelu")
def _gelu(el: Elements, node: Any, a: dict[str, Any], index: Index) -> Expr:
    x = el.at(a["self"], index)
    kind = a.get("approximate", "none")
    if kind == "tanh":
        cubic = simple("add", x, simple("mul", simple("mul", simple("mul", x, x), x), Const(0.044715)))
        curve: Call = Call("tanh", (_times(cubic, math.sqrt(2.0 / math.pi)),))
    elif kind == "none":
        curve = Call("erf", (_times(x, math.sqrt(0.5)),))
    else:
        raise Refused("CB229", el.graph.line(node), op=f"gelu(approximate={kind!r})")
    return simple("mul", simple("mul", x, HALF), simple("add", curve, ONE))


@rule("silu")
def _silu(el: Elements, node: Any, a: dict[str, Any], index: Index) -> Expr:
    x = el.at(a["self"], index)
    return simple("mul", x, simple("sigmoid", x))


@rule("leaky_relu")
def _leaky_relu(el: Elements, node: Any, a: dict[str, Any], index: Index) -> Expr:
    x = el.at(a["self"], index)
    return simple("where", simple("gt", x, ZERO), x, _times(x, float(a.get("negative_slope", 0.01))))


@rule("softplus")
def _softplus(el: Elements, node: Any, a: dict[str, Any], index: Index) -> Expr:
    x = el.at(a["self"], index)
    beta, threshold = float(a.get("beta", 1.0)), float(a.get("threshold", 20.0))
    curve = simple("log1p", simple("exp", _times(x, beta)))
    soft = curve if beta == 1 else simple("div", curve, Const(beta))
    return simple("where", simple("gt", _times(x, beta), Const(threshold)), x, soft)


@rule("log_sigmoid")
def _log_sigmoid(el: Elements, node: Any, a: dict[str, Any], index: Index) -> Expr:
    return simple("log", simple("sigmoid", el.at(a["self"], index)))
