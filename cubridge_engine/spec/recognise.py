"""From traced outputs to an attention: which inputs are q, k, v; the score, mask, sink and head map between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..ir.expr import TRUE, Call, Const, Expr, Read, Var, rebuild
from .elements import Elements, Refused
from .masks import peel
from .nodes import ZERO, Cat, Reduce, either, factors, negate, terms, variables, walk
from .normalisers import ROW_SUM, peel_weight
from .parts import Parts, describe, take_apart
from .trace import Line

SIZE_OF = {"b": "B", "h": "H", "hk": "Hkv", "i": "Sq", "j": "Sk"}


@dataclass
class Template:
    """What one trace, at fixed sizes, says. Expressions are over s, b, h, i, j and the operands."""

    roles: dict[str, str]  # 'q' | 'k' | 'v' -> input name
    axes: dict[str, tuple[str, ...]]  # input name -> axes, as in TensorInput
    outputs: list[tuple[str, tuple[str, ...]]]
    sizes: dict[str, int]
    head_map: Expr
    score: Expr
    mask: Expr | None
    fill: Expr
    sink: Expr | None
    lines: dict[str, Line] = field(default_factory=dict)
    normaliser: str = "softmax"
    divisor: Expr | None = None
    rename: dict[Expr, Expr] = field(default_factory=dict[Expr, Expr])  # of the graph's variables, and of q k to s

    @property
    def expressions(self) -> tuple[Expr, ...]:
        """Every expression that may read operands."""
        return tuple(e for e in (self.score, self.mask, self.sink, self.divisor) if e is not None)


def recognise(el: Elements) -> Template:
    """Read all outputs of the graph. Raises Refused."""
    graph = el.graph
    whole: list[Parts] = []
    for n, node in enumerate(graph.outputs):
        if not graph.is_node(node):
            raise Refused("CB212", None, what="a number")
        outs: list[Expr] = []
        for axis, extent in enumerate(el.shape(node)):
            el.algebra.extent[f"o{axis}"] = extent
            outs.append(ZERO if extent == 1 else Var(f"o{axis}"))
        try:
            whole.append(take_apart(el, el.at(node, outs), outs))
        except Refused as refused:
            if refused.line is None:
                refused.line = graph.line(node)
            refused.fields.setdefault("output", n)
            raise
    main = next((p for p in whole if p.value is not None), None)
    if main is None:
        raise Refused("CB228", graph.line(graph.outputs[0]), reason="no output is a weighted sum of values")
    try:
        return _assemble(el, main, whole)
    except Refused as refused:
        refused.line = refused.line or graph.line(graph.outputs[0])
        raise


# roles -------------------------------------------------------------------------------------------------------------
def _qk_product(x: Expr, key: str) -> Reduce:
    found = {e for e in walk(x) if isinstance(e, Reduce)}
    if any(isinstance(inner, Reduce) for e in found for inner in walk(e.body)):
        raise Refused("CB224") if _mixes(found) else Refused("CB231", None, name="q or k", reason="it is reduced first")
    if not found:
        raise Refused("CB228", None, reason="the scores do not contain a product q k^T")
    if len(found) > 1:
        raise Refused("CB260", None, count=len(found))
    return next(iter(found))


def _mixes(found: set[Reduce]) -> bool:
    """A sum of scores (a reduction over a product of two tensors, itself a factor) rather than a norm of q or k."""
    return any(
        isinstance(f, Reduce) and sum(isinstance(g, Read) for g in factors(f.body)[0]) == 2
        for e in found
        for t in terms(e.body)
        for f in [g for h in factors(t[1])[0] if not _is_attention(h) for g in walk(h)]
        if len({g.tensor for g in walk(f) if isinstance(g, Read)}) == 2
    )


def _is_attention(factor: Expr) -> bool:
    """A weighted sum with an exponential in its weights: the result of an attention before this one."""
    return any(
        isinstance(e, Reduce) and any(isinstance(x, Call) and x.op == "exp" for x in walk(e)) for e in walk(factor)
    )


def _q_and_k(product: Reduce, key: str, inputs: Sequence[str]) -> tuple[Read, Read]:
    over, under = factors(product.body)
    reads = [f for f in over if isinstance(f, Read)]
    if under or len(over) != 2 or len(reads) != 2:
        odd = next((f for f in over + under if not isinstance(f, Read)), Const(1.0))
        names = sorted({e.tensor for e in walk(product.body) if isinstance(e, Read)})
        raise Refused("CB231", None, name=" or ".join(names) or "q", reason=describe(odd))
    keyed = [key in variables(r) for r in reads]
    if keyed == [True, False]:
        reads.reverse()
    elif keyed != [False, True]:
        raise Refused("CB228", None, reason="the product does not pair one query with one key")
    return reads[0], reads[1]


def _roles(q: Read, k: Read, key: str, feature: str, packed: bool) -> dict[str, str]:
    """Names of the output variables: i by the place of j in k, h by sharing, b before h otherwise."""
    j_axis = k.index.index(Var(key))
    if len(q.index) != len(k.index) or q.index.index(Var(feature)) != k.index.index(Var(feature)):
        raise Refused("CB230", None, name=q.tensor, reason="q and k have different layouts")
    names: dict[str, str] = {}
    rest = [n for n in range(len(q.index)) if n != j_axis and q.index[n] != Var(feature)]
    shared = [n for n in rest if k.index[n] != q.index[n]]
    if len(rest) > 2:
        many = f"it has {len(rest)} axes beside its rows and features; join all but the heads into one of batches"
        raise Refused("CB230", None, name=q.tensor, reason=many)
    if len(shared) > 1:
        raise Refused("CB230", None, name=k.tensor, reason="its batch and head indices differ from those of q")
    order = ["b", "h"] if not shared or shared[0] == rest[-1] else ["h", "b"]
    if len(rest) == 1:  # packed rows of heads [T, H, D], and heads that share K and V, are heads of one batch
        order = ["h"] if shared or packed or j_axis < rest[0] else ["b"]
    for axis, role in [(j_axis, "i"), *zip(rest, order, strict=True)]:
        at = q.index[axis]
        if isinstance(at, Var):
            names[at.name] = role
        elif at != ZERO:
            raise Refused(
                "CB230", None, name=q.tensor, reason="an axis of it merges two of batch, head, row and feature"
            )
        names[f"axis {axis}"] = role
    return names


def _assemble(el: Elements, main: Parts, whole: list[Parts]) -> Template:
    graph = el.graph
    product = _qk_product(main.x, main.key)
    q, k = _q_and_k(product, main.key, graph.names)
    v = main.value
    assert v is not None
    for read in (q, k, v):
        if read.tensor not in graph.names:
            raise Refused("CB231", graph.use_line(read.tensor), name=read.tensor, reason="it is not an argument")
    if len({q.tensor, k.tensor, v.tensor}) < len("qkv"):
        twice = q.tensor if q.tensor in (k.tensor, v.tensor) else k.tensor
        raise Refused("CB231", graph.use_line(twice), name=twice, reason="it is two of queries, keys and values")
    if Var(main.key) not in k.index or Var(product.var) not in k.index or Var(product.var) not in q.index:
        raise Refused("CB230", graph.use_line(k.tensor), name=k.tensor, reason="its key or feature axis is cut up")
    names = _roles(q, k, main.key, product.var, graph.packed)
    rename: dict[Expr, Expr] = {Var(old): Var(new) for old, new in names.items() if not old.startswith("axis ")}
    rename[Var(main.key)] = Var("j")
    axis_role = {int(old.split()[1]): new for old, new in names.items() if old.startswith("axis ")}
    d_axis = q.index.index(Var(product.var))
    axis_role[d_axis] = "d"
    q_axes = tuple(axis_role[n] for n in range(len(q.index)))
    k_axes = tuple({"i": "j", "h": "hk"}.get(a, a) for a in q_axes)
    shapes = graph.input_shapes
    sizes: dict[str, int] = {"B": 1, "H": 1, "Hkv": 1}
    for read, axes in ((q, q_axes), (k, k_axes)):
        for axis, extent in zip(axes, shapes[read.tensor], strict=True):
            sizes[SIZE_OF.get(axis, "D")] = extent
    _set_ranges(el, sizes)
    head = next((el.algebra.substitute(k.index[n], rename) for n, a in enumerate(k_axes) if a == "hk"), Var("h"))
    v_axes, d_out = _value_axes(el, v, rename, head, [o for o in main.vars if isinstance(o, Var)])
    rename[d_out] = Var("d")
    sizes["Dv"] = shapes[v.tensor][v_axes.index("d")]
    score = _piecewise(el.algebra.substitute(main.x, {product: Var("s"), **rename}))
    outputs = [_output(el, p, main, rename) for p in whole]
    peeled = peel(el.algebra, score) if main.normaliser == "softmax" else peel_weight(el.algebra, score)
    sinks = [el.algebra.substitute(s, rename) for s in main.sinks]
    template = Template(
        roles={"q": q.tensor, "k": k.tensor, "v": v.tensor},
        axes={q.tensor: q_axes, k.tensor: k_axes, v.tensor: v_axes},
        outputs=outputs,
        sizes=sizes,
        head_map=head,
        score=peeled.score,
        mask=peeled.mask,
        fill=peeled.fill,
        sink=_one_sink(sinks),
        normaliser=main.normaliser,
        divisor=None if main.divisor is None else el.algebra.substitute(main.divisor, rename),
        rename={product: Var("s"), Var(product.var): Var("d"), **rename},
    )
    _check_reads(el, template)
    _operand_axes(el, template)
    return template


def _piecewise(expr: Expr) -> Expr:
    """Concatenations that stayed undecided (a list of numbers, one for each head) as nested selections."""
    if not isinstance(expr, Cat):
        return rebuild(expr, _piecewise)
    result = _piecewise(expr.parts[-1])
    for part, bound in reversed(list(zip(expr.parts[:-1], expr.bounds[1:-1], strict=True))):
        here, before = _piecewise(part), Call("lt", (expr.index, Const(bound)))
        if TRUE in (here, result):  # keys of the past in front of a mask: `j < past or tree[i, j - past]`
            result = either(before, result) if here == TRUE else either(negate(before), here)
        else:
            result = Call("where", (before, here, result))
    return result


def _set_ranges(el: Elements, sizes: dict[str, int]) -> None:
    for var, size in SIZE_OF.items():
        el.algebra.extent[var] = sizes[size]


def _one_sink(sinks: list[Expr]) -> Expr | None:
    if len(sinks) < 2:
        return sinks[0] if sinks else None
    total: Expr = Call("exp", (sinks[0],))
    for s in sinks[1:]:
        total = Call("add", (total, Call("exp", (s,))))
    return Call("log", (total,))


def _value_axes(
    el: Elements, v: Read, rename: dict[Expr, Expr], head: Expr, outs: list[Var]
) -> tuple[tuple[str, ...], Var]:
    axes: list[str] = []
    feature: Var | None = None
    for at in v.index:
        new = el.algebra.substitute(at, rename)
        if new == Var("j"):
            axes.append("j")
        elif isinstance(at, Var) and at in outs and at not in rename:
            feature = at
            axes.append("d")
        elif new == Var("b"):
            axes.append("b")
        elif new == head and "hk" not in axes and new != ZERO:
            axes.append("hk")
        elif new == ZERO:
            axes.append("?")
        else:
            raise Refused("CB230", el.graph.use_line(v.tensor), name=v.tensor, reason="its axes are not those of k")
    missing = [a for a in ("b", "hk") if a not in axes]
    for n, a in enumerate(axes):
        if a == "?":
            if not missing:
                raise Refused(
                    "CB230", el.graph.use_line(v.tensor), name=v.tensor, reason="only one position of an axis is used"
                )
            axes[n] = missing.pop(0)
    if feature is None or "j" not in axes:
        raise Refused(
            "CB230", el.graph.use_line(v.tensor), name=v.tensor, reason="its feature axis is not one of the output"
        )
    return tuple(axes), feature


def _output(el: Elements, part: Parts, main: Parts, rename: dict[Expr, Expr]) -> tuple[str, tuple[str, ...]]:
    whole = (part.value, part.x, part.normaliser, part.divisor)
    if part.value is not None and part is not main and whole != (main.value, main.x, main.normaliser, main.divisor):
        raise Refused("CB233", None, reason="two outputs are different weighted sums")
    own = el.algebra.substitute(part.x, {Var(part.key): Var(main.key)})
    if own != main.x:
        raise Refused("CB233", None, reason="the logsumexp belongs to other scores than the output")
    axes: list[str] = []
    expected = [a for a in ("b", "h", "i") if a]
    for out in part.vars:
        new = rename.get(out)
        axes.append(new.name if isinstance(new, Var) else "?")
    missing = [a for a in expected if a not in axes]
    axes = [missing.pop(0) if a == "?" and missing else a for a in axes]
    if "?" in axes:
        raise Refused("CB230", None, name="the output", reason="an axis of it is not batch, head, row or feature")
    return ("o" if part.value is not None else "lse"), tuple(axes)


def _check_reads(el: Elements, t: Template) -> None:
    taken = set(t.roles.values())
    for part in t.expressions:
        for e in walk(part):
            if isinstance(e, Read) and e.tensor in taken:
                raise Refused(
                    "CB231", el.graph.use_line(e.tensor), name=e.tensor, reason="single elements of it are used"
                )
            if isinstance(e, (Reduce, Cat)):
                raise Refused("CB229", None, op=describe(e))
            if isinstance(e, Call) and e.op in ("nan_to_num", "isnan"):
                raise Refused("CB229", None, op=e.op)
            known = ("s", "b", "h", "i", "j", *((ROW_SUM.name,) if part is t.divisor else ()))
            if isinstance(e, Var) and e.name not in known:
                raise Refused("CB230", None, name="the output", reason="it merges two of batch, head, row and feature")


def _operand_axes(el: Elements, t: Template) -> None:
    shapes = el.graph.input_shapes
    for part in t.expressions:
        for e in walk(part):
            if not isinstance(e, Read):
                continue
            axes = [
                _axis(at, extent, t, name)
                for at, extent, name in zip(
                    e.index, shapes[e.tensor], t.axes.get(e.tensor, ("",) * len(e.index)), strict=True
                )
            ]
            t.axes[e.tensor] = tuple(axes)
    for name in el.graph.names:
        t.axes.setdefault(name, tuple(str(n) for n in shapes[name]))


def _axis(at: Expr, extent: int, t: Template, known: str) -> str:
    if known and not known.isdigit():
        return known
    size = SIZE_OF.get(at.name, "") if isinstance(at, Var) else "Hkv" if at == t.head_map else ""
    if not size and _among_last_keys(at, extent, t):
        return "Sq"
    return size if size and t.sizes[size] == extent else str(extent)


def _among_last_keys(at: Expr, extent: int, t: Template) -> bool:
    """True for ``j - (Sk - Sq)`` on an axis as long as the queries: a table over the newest tokens, as of trees."""
    past = t.sizes["Sk"] - t.sizes["Sq"]
    parts = list(walk(at))
    shifted = any(isinstance(e, Const) and type(e.value) is int and abs(e.value) == past for e in parts)
    return past > 0 and extent == t.sizes["Sq"] and Var("j") in parts and shifted
