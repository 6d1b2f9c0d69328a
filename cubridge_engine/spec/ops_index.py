"""Element rules of operators that move elements: views, slices, concatenations, lookups, factories."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..ir.expr import TRUE, Call, Const, Expr, Var
from .elements import Elements, Index, Refused, number, rule
from .nodes import ZERO, Algebra, both, children, either
from .stitch import stitch


def _dim(dim: int, rank: int) -> int:
    return dim % rank if rank else 0


@rule("clone", "alias", "detach", "contiguous", "lift_fresh_copy", "lift_fresh", "lift", "detach_")
def _same(el: Elements, node: Any, a: dict[str, Any], index: Index) -> Expr:
    return el.at(a["self"], index)


def reindex(algebra: Algebra, index: Index, old: list[int], new: list[int]) -> Index:
    """Where element `index` of a tensor viewed as `old` sizes lies in the same data of `new` sizes.

    Runs of dimensions with equal products are matched first, so that an untouched dimension keeps its bare variable.
    """
    result: Index = []
    m = n = 0
    while m < len(old) or n < len(new):
        start_m, start_n = m, n
        left = right = 1
        if m < len(old):
            left, m = old[m], m + 1
        if n < len(new):
            right, n = new[n], n + 1
        while left != right:
            if left < right and m < len(old):
                left, m = left * old[m], m + 1
            elif n < len(new):
                right, n = right * new[n], n + 1
            else:
                left, m = left * old[m], m + 1
        linear: Expr = ZERO
        for size, at in zip(old[start_m:m], index[start_m:m], strict=True):
            linear = algebra.add(algebra.mul(linear, Const(size)), at)
        stride = right
        for size in new[start_n:n]:
            stride //= max(size, 1)
            whole = algebra.floordiv(linear, stride) if stride > 1 else linear
            result.append(algebra.mod(whole, size) if stride * size != right else whole)
    return [ZERO if size == 1 else e for size, e in zip(new, result, strict=True)]


@rule("view", "_unsafe_view", "reshape")
def _view(el: Elements, node: Any, a: dict[str, Any], index: Index) -> Expr:
    return el.at(a["self"], reindex(el.algebra, index, el.shape(node), el.shape(a["self"])))


@rule("permute")
def _permute(el: Elements, node: Any, a: dict[str, Any], index: Index) -> Expr:
    inner: Index = list(index)
    for out, source in enumerate(a["dims"]):
        inner[_dim(source, len(index))] = index[out]
    return el.at(a["self"], inner)


@rule("transpose")
def _transpose(el: Elements, node: Any, a: dict[str, Any], index: Index) -> Expr:
    i, j = a["dim0"], a["dim1"]
    index[i], index[j] = index[j], index[i]
    return el.at(a["self"], index)


@rule("t")
def _t(el: Elements, node: Any, a: dict[str, Any], index: Index) -> Expr:
    return el.at(a["self"], index[::-1])


@rule("expand", "broadcast_to")
def _expand(el: Elements, node: Any, a: dict[str, Any], index: Index) -> Expr:
    return el.broadcast(a["self"], index)


@rule("unsqueeze")
def _unsqueeze(el: Elements, node: Any, a: dict[str, Any], index: Index) -> Expr:
    at = _dim(a["dim"], len(index))
    return el.at(a["self"], index[:at] + index[at + 1 :])


@rule("squeeze")
def _squeeze(el: Elements, node: Any, a: dict[str, Any], index: Index) -> Expr:
    shape = el.shape(a["self"])
    dims = a.get("dim")
    chosen = (
        range(len(shape))
        if dims is None
        else [_dim(d, len(shape)) for d in ([dims] if isinstance(dims, int) else dims)]
    )
    rest = iter(index)
    return el.at(a["self"], [ZERO if d in chosen and n == 1 else next(rest) for d, n in enumerate(shape)])


@rule("slice")
def _slice(el: Elements, node: Any, a: dict[str, Any], index: Index) -> Expr:
    size = el.shape(a["self"])[a["dim"]]
    start = a["start"] or 0
    start = max(0, start + size) if start < 0 else min(start, size)
    at = _dim(a["dim"], len(index))
    index[at] = el.algebra.add(el.algebra.mul(index[at], Const(a["step"] or 1)), Const(start))
    return el.at(a["self"], index)


@rule("select")
def _select(el: Elements, node: Any, a: dict[str, Any], index: Index) -> Expr:
    shape = el.shape(a["self"])
    at = _dim(a["dim"], len(shape))
    return el.at(a["self"], [*index[:at], Const(a["index"] % shape[at]), *index[at:]])


@rule("getitem")
def _getitem(el: Elements, node: Any, a: dict[str, Any], index: Index) -> Expr:
    source, which = node.args
    op, args = el.graph.op_name(source), el.graph.arguments(source)
    if op in ("split", "split_with_sizes", "chunk"):
        at = _dim(args["dim"], len(index))
        skipped = sum(int(source.meta["val"][n].shape[at]) for n in range(which))
        index[at] = el.algebra.add(index[at], Const(skipped))
        return el.at(args["self"], index)
    if op == "unbind":
        at = _dim(args["dim"], len(index) + 1)
        return el.at(args["self"], [*index[:at], Const(which), *index[at:]])
    if op == "max" and which == 0:
        return reduce_dims(el, source, args["self"], [args["dim"]], args["keepdim"], index, "max")
    raise el.refusal(source, op)


# A few components of an index or of a table, not of q or k: written out.
_UNROLLED = 4
_JOINED: dict[str, Callable[[Expr, Expr], Expr]] = {
    "sum": lambda a, b: Call("add", (a, b)),
    "max": lambda a, b: Call("max", (a, b)),
    "any": either,
    "all": both,
}


def reduce_dims(el: Elements, node: Any, source: Any, dims: list[int], keep: bool, index: Index, op: str) -> Expr:
    """A sum, max or any over dimensions of `source`."""
    from .nodes import Reduce

    shape = el.shape(source)
    chosen = sorted(_dim(d, len(shape)) for d in dims) if dims else list(range(len(shape)))
    inner: Index = []
    rest = iter(index)
    bound: list[tuple[str, int]] = []
    for d, n in enumerate(shape):
        if d in chosen:
            if keep:
                next(rest)
            var = el.fresh(node, n, f"_{d}" if len(chosen) > 1 else "")
            bound.append((var.name, n))
            inner.append(var if n > 1 else ZERO)
        else:
            inner.append(next(rest))
    body = el.at(source, inner)
    for name, n in bound:
        if n <= _UNROLLED and op in _JOINED and not el.graph.depends(source) & el.graph.qkv_like:
            pieces = [el.algebra.substitute(body, {Var(name): Const(at)}) for at in range(n)]
            body = functools.reduce(_JOINED[op], pieces)
            continue
        body = el.algebra.sum(name, n, body) if op == "sum" else Reduce(op, name, n, body) if n > 1 else body
    return body


@rule("cat")
def _cat(el: Elements, node: Any, a: dict[str, Any], index: Index) -> Expr:
    at = _dim(a["dim"], len(index))
    sources = [t for t in a["tensors"] if len(el.shape(t)) == len(index) and el.shape(t)[at]]
    bounds = [0]
    for t in sources:
        bounds.append(bounds[-1] + el.shape(t)[at])
    span = el.algebra.bounds(index[at])
    parts: list[Expr] = []
    width = bounds[1] if len(sources) > 1 and all(n * bounds[1] == b for n, b in enumerate(bounds)) else 0
    for t, low, high in zip(sources, bounds, bounds[1:], strict=False):
        if span and (span[1] < low or span[0] >= high):
            parts.append(ZERO)  # never chosen
            continue
        inner = list(index)
        inner[at] = ZERO if high - low == 1 else el.algebra.add(index[at], Const(-low))
        if width > 1 and span == (0, bounds[-1] - 1):
            inner[at] = el.algebra.mod(index[at], width)  # the same in every piece, so that a loop's pieces agree
        parts.append(el.at(t, inner))
    whole = stitch(el.algebra, index[at], bounds, parts) if span == (0, bounds[-1] - 1) else None
    return whole if whole is not None else el.algebra.cat(index[at], tuple(bounds), tuple(parts))


def _written_slice(el: Elements, node: Any) -> Any:
    """`node`; or, where it is ``out[b]`` of an `out` just written at b (loops of ``out[b, h] = ...``), what was put."""
    while el.graph.is_node(node) and el.graph.op_name(node) == "select":
        a = el.graph.arguments(node)
        source = a["self"]
        if not el.graph.is_node(source) or el.graph.op_name(source) != "select_scatter":
            return node
        rank, size = len(el.shape(source)), el.shape(source)[a["dim"]]
        put = el.graph.arguments(source)
        if _dim(put["dim"], rank) != _dim(a["dim"], rank) or put["index"] % size != a["index"] % size:
            return node
        node = put["src"]
    return node


def _written(el: Elements, node: Any, index: Index) -> Expr:
    """A tensor filled piece by piece (`out[:, h] = ...` in a loop): its pieces over what was there before."""
    op = el.graph.op_name(node)
    a = el.graph.arguments(node)
    dim = _dim(a["dim"], len(index))
    at = index[dim]
    span = el.algebra.bounds(at)
    pieces: list[tuple[int, int, Any]] = []
    base = node
    while (
        el.graph.is_node(base)
        and el.graph.op_name(base) == op
        and _dim(el.graph.arguments(base)["dim"], len(index)) == dim
    ):
        a = el.graph.arguments(base)
        low, high, step = _window(op, a, el.shape(base)[dim])
        if step != 1:
            break
        if not any(low < other_high and other_low < high for other_low, other_high, _ in pieces):
            pieces.append((low, high, a["src"]))
        base = _written_slice(el, a.get("self", a.get("input")))
    pieces.sort(key=lambda p: p[0])
    bounds = [0, *(p[1] for p in pieces)]
    covers = (
        bool(pieces)
        and all(p[0] == b for p, b in zip(pieces, bounds, strict=False))
        and bounds[-1] == el.shape(node)[dim]
    )
    parts = [el.at(src, _inner(el, op, index, dim, low)) for low, _, src in pieces]
    if covers and span == (0, bounds[-1] - 1):
        whole = stitch(el.algebra, at, bounds, parts)
        if whole is not None:
            return whole
    if covers:
        return el.algebra.cat(at, tuple(bounds), tuple(parts))
    result = el.at(base, index)
    for (low, high, _), part in zip(pieces, parts, strict=True):
        inside: Expr = TRUE
        if span is None or span[0] < low:
            inside = Call("ge", (at, Const(low))) if high - low > 1 else Call("eq", (at, Const(low)))
        if high - low > 1 and (span is None or span[1] >= high):
            inside = both(inside, Call("lt", (at, Const(high))))
        elif high - low == 1:
            inside = Call("eq", (at, Const(low)))
        result = part if inside == TRUE else Call("where", (inside, part, result))
        el.fills[node] = None
    return result


def _window(op: str, a: dict[str, Any], size: int) -> tuple[int, int, int]:
    if op == "select_scatter":
        low = a["index"] % size
        return low, low + 1, 1
    low, high = a["start"] or 0, size if a["end"] is None else min(a["end"], size)
    return (low + size if low < 0 else low), (high + size if high < 0 else high), a["step"] or 1


def _inner(el: Elements, op: str, index: Index, dim: int, low: int) -> Index:
    if op == "select_scatter":
        return index[:dim] + index[dim + 1 :]
    inner = list(index)
    inner[dim] = el.algebra.add(index[dim], Const(-low))
    return inner


@rule("slice_scatter", "select_scatter")
def _scatter(el: Elements, node: Any, a: dict[str, Any], index: Index) -> Expr:
    if el.graph.op_name(node) == "slice_scatter":
        dim = _dim(a["dim"], len(index))
        low, high, step = _window("slice_scatter", a, el.shape(node)[dim])
        if step != 1:
            raise Refused("CB229", el.graph.line(node), op="assignment to a strided slice")
        if low == 0 and high == el.shape(node)[dim]:
            return el.at(a["src"], index)
    return _written(el, node, index)


@rule("constant_pad_nd")
def _pad(el: Elements, node: Any, a: dict[str, Any], index: Index) -> Expr:
    shape = el.shape(a["self"])
    inside: Expr = TRUE
    inner = list(index)
    for n in range(len(a["pad"]) // 2):
        d = len(shape) - 1 - n
        before, after = a["pad"][2 * n], a["pad"][2 * n + 1]
        inner[d] = el.algebra.add(index[d], Const(-before))
        if before > 0:
            inside = both(inside, Call("ge", (inner[d], ZERO)))
        if after > 0:
            inside = both(inside, Call("lt", (inner[d], Const(shape[d]))))
    value = Const(number(a["value"] or 0, el.dtype(node) == "float"))
    body = el.at(a["self"], inner)
    return body if inside == TRUE else Call("where", (inside, body, value))


@rule("flip")
def _flip(el: Elements, node: Any, a: dict[str, Any], index: Index) -> Expr:
    shape = el.shape(node)
    dims = [_dim(d, len(shape)) for d in a["dims"]]
    return el.at(
        a["self"],
        [
            el.algebra.add(Const(n - 1), e, -1) if d in dims else e
            for d, (n, e) in enumerate(zip(shape, index, strict=True))
        ],
    )


@rule("roll")
def _roll(el: Elements, node: Any, a: dict[str, Any], index: Index) -> Expr:
    for shift, d in zip(a["shifts"], a["dims"], strict=True):
        index[d] = el.algebra.mod(el.algebra.add(index[d], Const(-shift)), el.shape(node)[d])
    return el.at(a["self"], index)


@rule("repeat")
def _repeat(el: Elements, node: Any, a: dict[str, Any], index: Index) -> Expr:
    shape = el.shape(a["self"])
    own = index[len(index) - len(shape) :]
    return el.at(a["self"], [el.algebra.mod(e, n) if n > 1 else ZERO for e, n in zip(own, shape, strict=True)])


@rule("embedding")
def _embedding(el: Elements, node: Any, a: dict[str, Any], index: Index) -> Expr:
    return el.at(a["weight"], [el.at(a["indices"], index[:-1]), index[-1]])


@rule("index_select")
def _index_select(el: Elements, node: Any, a: dict[str, Any], index: Index) -> Expr:
    d = _dim(a["dim"], len(index))
    index[d] = el.at(a["index"], [index[d]])
    return el.at(a["self"], index)


@rule("gather")
def _gather(el: Elements, node: Any, a: dict[str, Any], index: Index) -> Expr:
    inner = list(index)
    inner[_dim(a["dim"], len(index))] = el.at(a["index"], index)
    return el.at(a["self"], inner)


def _position(el: Elements, expr: Expr, size: int) -> Expr:
    """Python's negative positions count from the end."""
    span = el.algebra.bounds(expr)
    if span and span[0] >= 0:
        return expr
    if span and span[1] < 0:
        return el.algebra.add(expr, Const(size))
    if not any(isinstance(e, Var) for e in (expr, *children(expr))):
        return expr
    return Call("where", (Call("lt", (expr, ZERO)), el.algebra.add(expr, Const(size)), expr))


@rule("index")
def _index(el: Elements, node: Any, a: dict[str, Any], index: Index) -> Expr:
    tensors = list(a["indices"])
    given = [n for n, t in enumerate(tensors) if t is not None]
    if any(el.dtype(tensors[n]) == "bool" for n in given) or given != list(range(given[0], given[-1] + 1)):
        raise Refused("CB229", el.graph.line(node), op="indexing by a bool tensor or by separated positions")
    rank = max(len(el.shape(tensors[n])) for n in given)
    chosen, first = index[given[0] : given[0] + rank], given[0]
    shape = el.shape(a["self"])
    inner = [_position(el, el.broadcast(tensors[n], chosen), shape[n]) for n in given]
    return el.at(a["self"], [*index[:first], *inner, *index[first + rank :]])


@rule("index_put")
def _index_put(el: Elements, node: Any, a: dict[str, Any], index: Index) -> Expr:
    if a["accumulate"] or el.shape(a["values"]):
        raise Refused("CB229", el.graph.line(node), op="assignment through an index")
    condition: Expr | None = None
    d = 0
    for tensor in a["indices"]:
        if tensor is None:
            d += 1
            continue
        if el.dtype(tensor) != "bool" or condition is not None:
            raise Refused("CB229", el.graph.line(node), op="assignment through an integer index")
        rank = len(el.shape(tensor))
        condition = el.broadcast(tensor, index[d : d + rank])
        d += rank
    assert condition is not None
    el.fills[node] = None
    return Call("where", (condition, el.at(a["values"], []), el.at(a["self"], index)))
