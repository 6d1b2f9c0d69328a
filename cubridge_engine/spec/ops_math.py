"""Element rules of arithmetic, comparisons, selections, reductions and products."""

from __future__ import annotations

import math
from typing import Any

from ..ir.expr import FALSE, TRUE, Call, Const, Expr
from .elements import Elements, Index, Refused, number, rule, simple, typed
from .nodes import ZERO, both, either, negate
from .ops_index import reduce_dims

_SAME_NAME = "exp exp2 log log2 log1p tanh sigmoid relu sqrt rsqrt sin cos erf floor ceil abs neg sign isnan"
UNARY = {name: name for name in _SAME_NAME.split()}
COMPARE = {name: name for name in ("lt", "le", "gt", "ge", "eq", "ne")}
BINARY = {"add": "add", "sub": "sub", "rsub": "sub", "mul": "mul", "maximum": "max", "minimum": "min"}
_BITS = {"bitwise_and": "bitand", "bitwise_or": "bitor", "bitwise_xor": "bitxor"}


@rule(*UNARY)
def _unary(el: Elements, node: Any, a: dict[str, Any], index: Index) -> Expr:
    op = UNARY[el.graph.op_name(node)]
    inner = el.at(a["self"], index)
    if op == "neg" and isinstance(inner, Const):
        return Const(-inner.value)
    new = simple(op, inner)
    return el.algebra.normal(new) if op == "neg" and el.algebra.is_int(new) else new


@rule("reciprocal")
def _reciprocal(el: Elements, node: Any, a: dict[str, Any], index: Index) -> Expr:
    return simple("div", Const(1.0), el.at(a["self"], index))


@rule("logical_not", "bitwise_not")
def _not(el: Elements, node: Any, a: dict[str, Any], index: Index) -> Expr:
    inner = el.at(a["self"], index)
    if el.dtype(a["self"]) == "bool":
        return negate(inner)
    if el.graph.op_name(node) == "logical_not":
        return simple("eq", inner, typed(ZERO, el.dtype(a["self"]) == "float"))
    return simple("sub", simple("neg", inner), Const(1))


def _operands(el: Elements, node: Any, a: dict[str, Any], index: Index) -> tuple[Expr, Expr]:
    other = a["other"]
    float_like = el.dtype(node) == "float" or (el.graph.is_node(a["self"]) and el.dtype(a["self"]) == "float")
    left, right = el.broadcast(a["self"], index), el.broadcast(other, index)
    integers = el.algebra.is_int(left) and el.algebra.is_int(right)
    return typed(left, float_like and not integers), typed(right, float_like and not integers)


@rule(*BINARY)
def _binary(el: Elements, node: Any, a: dict[str, Any], index: Index) -> Expr:
    name = el.graph.op_name(node)
    op = BINARY[name]
    left, right = _operands(el, node, a, index)
    if name == "rsub":
        left, right = right, left
    if el.dtype(node) == "bool" and op in ("add", "mul"):
        return either(left, right) if op == "add" else both(left, right)
    alpha = a.get("alpha", 1)
    if alpha is not None and alpha != 1:
        scaled = Const(number(alpha, el.dtype(node) == "float"))
        left, right = (simple("mul", left, scaled), right) if name == "rsub" else (left, simple("mul", right, scaled))
    return fold(el, op, left, right)


def fold(el: Elements, op: str, left: Expr, right: Expr) -> Expr:
    """A binary operation, without neutral elements and with integer arithmetic in canonical form."""
    new = simple(op, left, right)
    if el.algebra.is_int(new):
        return el.algebra.normal(new)
    values = [e.value for e in (left, right) if isinstance(e, Const)]
    if len(values) == 2 and all(type(v) is not bool for v in values):
        x, y = values
        if op in ("add", "sub", "mul"):
            return Const({"add": x + y, "sub": x - y, "mul": x * y}[op])
        if op == "div" and y != 0:
            return Const(x / y)
    neutral = {"add": (0.0, 0.0), "sub": (None, 0.0), "mul": (1.0, 1.0), "div": (None, 1.0)}.get(op, (None, None))
    if (
        isinstance(right, Const)
        and type(right.value) is not bool
        and right.value == neutral[1]
        and el.algebra.type(left) == "float"
    ):
        return left
    if (
        isinstance(left, Const)
        and type(left.value) is not bool
        and left.value == neutral[0]
        and el.algebra.type(right) == "float"
    ):
        return right
    return new


@rule("div", "floor_divide")
def _div(el: Elements, node: Any, a: dict[str, Any], index: Index) -> Expr:
    left, right = _operands(el, node, a, index)
    mode = "floor" if el.graph.op_name(node) == "floor_divide" else a.get("rounding_mode")
    if mode is None:
        return fold(el, "div", left, typed(right, True))
    span = el.algebra.bounds(left)
    if not el.algebra.is_int(left) or not el.algebra.is_int(right):
        if mode == "floor":
            return simple("floor", simple("div", left, right))
        raise Refused("CB229", el.graph.line(node), op="div(rounding_mode='trunc')")
    if mode == "trunc" and not (span and span[0] >= 0):
        raise Refused("CB229", el.graph.line(node), op="div(rounding_mode='trunc') of a value that may be negative")
    if isinstance(right, Const) and int(right.value) > 0:
        return el.algebra.floordiv(left, int(right.value))
    return simple("floordiv", left, right)


@rule("remainder")
def _remainder(el: Elements, node: Any, a: dict[str, Any], index: Index) -> Expr:
    left, right = _operands(el, node, a, index)
    if el.algebra.is_int(left) and isinstance(right, Const) and type(right.value) is int and right.value > 0:
        return el.algebra.mod(left, right.value)
    return simple("mod", left, right)


@rule(*COMPARE)
def _compare(el: Elements, node: Any, a: dict[str, Any], index: Index) -> Expr:
    op = COMPARE[el.graph.op_name(node)]
    left, right = _operands(el, node, a, index)
    if el.graph.is_node(a["self"]) and el.dtype(a["self"]) == "bool" and isinstance(right, Const):
        truth = bool(right.value) if op == "eq" else not right.value if op == "ne" else None
        if truth is not None:
            return left if truth else negate(left)
    return compare(op, left, right)


def compare(op: str, left: Expr, right: Expr) -> Expr:
    """A comparison. That of a 0/1 mask with a number (``tril(ones) == 1``) becomes the mask's own condition."""
    if isinstance(left, Const) and isinstance(right, Const):
        x, y = left.value, right.value
        return Const({"lt": x < y, "le": x <= y, "gt": x > y, "ge": x >= y, "eq": x == y, "ne": x != y}[op])
    if isinstance(right, Const) and isinstance(left, Call) and left.op == "where" and _all_const(left):
        condition = left.args[0]
        yes, no = compare(op, left.args[1], right), compare(op, left.args[2], right)
        return either(both(condition, yes), both(negate(condition), no))
    if isinstance(right, Const) and isinstance(left, Call) and left.op in ("float", "int") and right.value in (0, 1):
        truth = compare(op, Const(1), right), compare(op, Const(0), right)
        inner = left.args[0]
        if op in _EQUALITY:
            return inner if truth == (TRUE, FALSE) else negate(inner)
    return simple(op, left, right)


_EQUALITY = ("eq", "ne")


def _all_const(expr: Expr) -> bool:
    """A tree of selections between numbers."""
    if isinstance(expr, Call) and expr.op == "where":
        return _all_const(expr.args[1]) and _all_const(expr.args[2])
    return isinstance(expr, Const)


def _truth(el: Elements, source: Any, expr: Expr) -> Expr:
    if not el.graph.is_node(source) or el.dtype(source) == "bool":
        return expr
    return compare("ne", expr, typed(ZERO, el.dtype(source) == "float"))


@rule("logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor", "__and__", "__or__")
def _logic(el: Elements, node: Any, a: dict[str, Any], index: Index) -> Expr:
    name = el.graph.op_name(node).strip("_")
    left, right = el.broadcast(a["self"], index), el.broadcast(a["other"], index)
    if el.dtype(node) != "bool":
        return simple(_BITS.get(name, "bitand" if name == "and" else "bitor"), left, right)
    left, right = _truth(el, a["self"], left), _truth(el, a["other"], right)
    if name.endswith("xor"):
        return simple("ne", left, right)
    return both(left, right) if name.endswith("and") else either(left, right)


@rule("pow")
def _pow(el: Elements, node: Any, a: dict[str, Any], index: Index) -> Expr:
    base, power = el.broadcast(a["self"], index), el.broadcast(a["exponent"], index)
    if isinstance(power, Const) and power.value == 2:
        return fold(el, "mul", base, base)
    if isinstance(power, Const) and power.value == 0.5:
        return simple("sqrt", base)
    return simple("pow", typed(base, True), typed(power, True))


@rule("where")
def _where(el: Elements, node: Any, a: dict[str, Any], index: Index) -> Expr:
    return choose(el, node, el.broadcast(a["condition"], index), a["self"], a["other"], index)


def choose(el: Elements, node: Any, condition: Expr, yes: Any, no: Any, index: Index) -> Expr:
    """``yes if condition else no``, the branches being broadcast to `index`."""
    if condition in (TRUE, FALSE):
        return typed(el.broadcast(yes if condition == TRUE else no, index), el.dtype(node) == "float")
    el.fills[node] = None
    float_like = el.dtype(node) == "float"
    left, right = typed(el.broadcast(yes, index), float_like), typed(el.broadcast(no, index), float_like)
    if el.dtype(node) == "bool" and isinstance(left, Const) and isinstance(right, Const):
        return left if left == right else condition if left.value else negate(condition)
    return left if left == right else simple("where", condition, left, right)


@rule("masked_fill")
def _masked_fill(el: Elements, node: Any, a: dict[str, Any], index: Index) -> Expr:
    return choose(el, node, el.broadcast(a["mask"], index), a["value"], a["self"], index)


@rule("clamp", "clamp_min", "clamp_max", "hardtanh")
def _clamp(el: Elements, node: Any, a: dict[str, Any], index: Index) -> Expr:
    inner = el.at(a["self"], index)
    float_like = el.dtype(node) == "float" and not el.algebra.is_int(inner)
    low, high = a.get("min", a.get("min_val")), a.get("max", a.get("max_val"))
    if low is not None:
        inner = simple("max", inner, typed(el.broadcast(low, index), float_like))
    if high is not None:
        inner = simple("min", inner, typed(el.broadcast(high, index), float_like))
    return inner


@rule("_to_copy", "to", "type_as", "_conj")
def _convert(el: Elements, node: Any, a: dict[str, Any], index: Index) -> Expr:
    # Rounding to a narrower float is the dtype policy's business, not the mathematics'; integers enter float arithmetic
    # as they are.
    inner = el.at(a["self"], index)
    if not el.graph.is_node(a["self"]):  # a number, made a tensor by torch.vmap
        return typed(inner, el.dtype(node) == "float")
    source, target = el.dtype(a["self"]), el.dtype(node)
    if source == target or (source, target) == ("int", "float"):
        return typed(inner, target == "float" and isinstance(inner, Const))
    if target == "bool":
        return _truth(el, a["self"], inner)
    if isinstance(inner, Const):
        return Const(float(inner.value) if target == "float" else int(inner.value))
    return simple(target, inner)


@rule("nan_to_num")
def _nan_to_num(el: Elements, node: Any, a: dict[str, Any], index: Index) -> Expr:
    return simple("nan_to_num", el.at(a["self"], index))


@rule("sum", "mean")
def _sum(el: Elements, node: Any, a: dict[str, Any], index: Index) -> Expr:
    dims = a.get("dim") or []
    total = reduce_dims(
        el, node, a["self"], [dims] if isinstance(dims, int) else list(dims), bool(a.get("keepdim")), index, "sum"
    )
    if el.graph.op_name(node) == "mean":
        count = math.prod(el.shape(a["self"])) // max(1, math.prod(el.shape(node)))
        return simple("div", total, Const(float(count)))
    return total


@rule("amax", "any", "all")
def _extreme(el: Elements, node: Any, a: dict[str, Any], index: Index) -> Expr:
    dims = a.get("dim")
    chosen = [] if dims is None else [dims] if isinstance(dims, int) else list(dims)
    op = {"amax": "max"}.get(el.graph.op_name(node), el.graph.op_name(node))
    return reduce_dims(el, node, a["self"], chosen, bool(a.get("keepdim")), index, op)


def softmax_parts(el: Elements, node: Any, source: Any, dim: int, index: Index) -> tuple[Expr, Expr]:
    """The score at `index` and the sum of exponentials of its row along `dim` (the row maximum cancels)."""
    d = dim % len(index)
    extent = el.shape(source)[d]
    var = el.fresh(node, extent)
    row = el.at(source, [*index[:d], var if extent > 1 else ZERO, *index[d + 1 :]])
    return el.at(source, index), el.algebra.sum(var.name, extent, simple("exp", row))


@rule("_softmax", "softmax", "_safe_softmax")
def _softmax(el: Elements, node: Any, a: dict[str, Any], index: Index) -> Expr:
    score, total = softmax_parts(el, node, a["self"], a["dim"], index)
    return simple("div", simple("exp", score), total)


@rule("_log_softmax")
def _log_softmax(el: Elements, node: Any, a: dict[str, Any], index: Index) -> Expr:
    score, total = softmax_parts(el, node, a["self"], a["dim"], index)
    return simple("sub", score, simple("log", total))


@rule("logsumexp")
def _logsumexp(el: Elements, node: Any, a: dict[str, Any], index: Index) -> Expr:
    dims = a["dim"] if not isinstance(a["dim"], int) else [a["dim"]]
    if len(dims) != 1:
        raise Refused("CB229", el.graph.line(node), op="logsumexp over several dimensions")
    d = dims[0] % len(el.shape(a["self"]))
    inner = list(index) if a["keepdim"] else [*index[:d], ZERO, *index[d:]]
    _, total = softmax_parts(el, node, a["self"], d, inner)
    return simple("log", total)


def product(el: Elements, node: Any, left: Any, right: Any, batch: Index, row: Expr, column: Expr) -> Expr:
    """One element of a matrix product."""
    extent = el.shape(left)[-1]
    var = el.fresh(node, extent)
    body = simple("mul", el.at(left, [*batch, row, var]), el.at(right, [*batch, var, column]))
    return el.algebra.sum(var.name, extent, body)


@rule("bmm", "mm")
def _matmul(el: Elements, node: Any, a: dict[str, Any], index: Index) -> Expr:
    return product(el, node, a["self"], a["mat2"], index[:-2], index[-2], index[-1])


@rule("baddbmm", "addmm")
def _addmm(el: Elements, node: Any, a: dict[str, Any], index: Index) -> Expr:
    left, right = a.get("batch1", a.get("mat1")), a.get("batch2", a.get("mat2"))
    total = product(el, node, left, right, index[:-2], index[-2], index[-1])
    if a["alpha"] != 1:
        total = fold(el, "mul", total, Const(float(a["alpha"])))
    if a["beta"] == 0:
        return total
    extra = el.broadcast(a["self"], index)
    return fold(el, "add", total, extra if a["beta"] == 1 else fold(el, "mul", extra, Const(float(a["beta"]))))


@rule("scaled_dot_product_attention")
def _sdpa(el: Elements, node: Any, a: dict[str, Any], index: Index) -> Expr:
    if a["dropout_p"]:
        raise Refused("CB220", el.graph.line(node))
    query, key, value, mask = a["query"], a["key"], a["value"], a["attn_mask"]
    batch, row, column = index[:-2], index[-2], index[-1]
    width, keys = el.shape(query)[-1], el.shape(key)[-2]
    scale = 1.0 / math.sqrt(width) if a["scale"] is None else float(a["scale"])

    def shared(source: Any, at: Expr, feature: Expr) -> Expr:
        lead = list(batch)
        if a["enable_gqa"]:
            lead[-1] = el.algebra.floordiv(lead[-1], el.shape(query)[-3] // el.shape(source)[-3])
        return el.broadcast(source, [*lead, at, feature])

    def score(at: Expr) -> Expr:
        d = el.fresh(node, width, "_d")
        x = el.algebra.sum(d.name, width, simple("mul", el.broadcast(query, [*batch, row, d]), shared(key, at, d)))
        x = fold(el, "mul", x, Const(scale))
        if a["is_causal"]:
            x = simple("where", simple("le", at, row), x, Const(-math.inf))
        if mask is None:
            return x
        el.fills[node] = None
        extra = el.broadcast(mask, [*batch, row, at])
        return simple("where", extra, x, Const(-math.inf)) if el.dtype(mask) == "bool" else simple("add", x, extra)

    j, t = el.fresh(node, keys, "_j"), el.fresh(node, keys, "_t")
    total = el.algebra.sum(t.name, keys, simple("exp", score(t)))
    weight = simple("div", simple("exp", score(j)), total)
    return el.algebra.sum(j.name, keys, simple("mul", weight, shared(value, j, column)))
