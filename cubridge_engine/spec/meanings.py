"""What each line of a spec became: the expressions that were pulled from its operations, in the names of the result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ..ir.expr import Call, Const, Expr, Read, Var
from ..ir.text_expr import print_expr
from .attention import Cut, LineMeaning
from .elements import Elements
from .nodes import Cat, Reduce, show, variables, walk
from .recognise import Template
from .trace import Graph

_LONGEST = 160
_FUSED = "scaled_dot_product_attention"
_PRODUCTS = frozenset({"bmm", "mm", "baddbmm", "addmm", _FUSED})
_ORDER = (
    "before",
    "after",
    "nothing",
    "layout",
    "index",
    "mask",
    "bias",
    "product",
    "score",
    "normaliser",
    "output",
    "unused",
)


def meanings(el: Elements, t: Template, source: str) -> tuple[LineMeaning, ...]:
    """One row for each line of the file that an operation comes from, in order. Numbers are those of the example."""
    graph = el.graph
    rows = source.split("\n")
    by_line: dict[int, list[Any]] = {}
    for node in graph.nodes:
        line = graph.line(node)
        if line is not None and node.op == "call_function":
            by_line.setdefault(line[0] - 1, []).append(node)
    namer = _Namer(el, t)
    found: list[LineMeaning] = []
    said: set[str] = set()
    for at in graph.idle:
        by_line.setdefault(at[0] - 1, [])
    for line, nodes in sorted(by_line.items()):
        kinds = {kind: text for kind, text in _collected(_kinds(namer, nodes)) if text not in said}
        if any(at[0] - 1 == line for at in graph.idle):
            kinds["nothing"] = "dropout that is off: changes nothing"
        said |= set(kinds.values())
        if kinds and line < len(rows):
            ordered = sorted(kinds, key=_ORDER.index)
            what = "; ".join(kinds[k] for k in ordered if k != "layout" or len(kinds) == 1)
            found.append(LineMeaning(line, rows[line].strip(), tuple(ordered), what))
    return tuple(found)


def _collected(found: Iterator[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """The last text of each kind; of layouts, all."""
    kinds: dict[str, str] = {}
    layouts: dict[str, None] = {}
    for kind, text in found:
        if kind == "layout":
            layouts[text] = None
        else:
            kinds[kind] = text
    if layouts:
        yield "layout", f"{', '.join(layouts)}: layout, type or sharing of heads"
    yield from kinds.items()


def around(found: Sequence[LineMeaning], cut: Cut | None, source: str) -> tuple[LineMeaning, ...]:
    """`found` with the lines before and after an attention that is a part of a function."""
    if cut is None:
        return tuple(found)
    rows = source.split("\n")
    by_line = {m.line: m for m in found if m.kinds != ("unused",)}
    for kind, lines in (("before", cut.before), ("after", cut.after)):
        for line in lines:
            if line not in by_line:
                text = rows[line].strip() if line < len(rows) else ""
                by_line[line] = LineMeaning(line, text, (kind,), f"{kind} the attention: stays in PyTorch")
    return tuple(by_line[line] for line in sorted(by_line))


class _Namer:
    """Expressions of the graph's elements under the names of the template."""

    def __init__(self, el: Elements, t: Template) -> None:
        self.el = el
        self.roles = {name: role for role, name in t.roles.items()}
        self.rename = t.rename
        self.softmax = t.normaliser == "softmax"
        self.best: dict[Any, Expr] = {}
        known = {old.name for old in t.rename if isinstance(old, Var)}
        for (node, _), expr in el.pulled():
            # Denominators and row maxima pull the same nodes at variables of their own.
            if variables(expr) <= known and len(variables(expr)) >= len(variables(self.best.get(node, Const(0)))):
                self.best[node] = expr

    def of(self, node: Any) -> Expr | None:
        """The element of `node` at the indices of the result; None where nothing pulled it there."""
        expr = self.best.get(node)
        return None if expr is None else self.el.algebra.substitute(expr, self.rename)


def _kinds(namer: _Namer, nodes: Sequence[Any]) -> Iterator[tuple[str, str]]:
    """(kind, text) of the nodes of one line; a later one of a kind replaces an earlier one."""
    graph = namer.el.graph
    pulled = [n for n in nodes if n in namer.el.visited]
    if not pulled:
        if nodes and any(_is_shown(graph, n) for n in nodes):
            yield "unused", "does not reach the outputs that count"
        return
    for node in pulled:
        expr = namer.of(node)
        if expr is not None:
            yield from _kind(namer, graph.op_name(node), graph.kind_of(node), expr)


def _is_shown(graph: Graph, node: Any) -> bool:
    return graph.op_name(node) not in ("alias", "detach", "lift_fresh_copy")


def _kind(namer: _Namer, op: str, kind: str, expr: Expr) -> Iterator[tuple[str, str]]:
    inside = list(walk(expr))
    read = {namer.roles[e.tensor] for e in inside if isinstance(e, Read) and e.tensor in namer.roles}
    reduces = any(isinstance(e, Reduce) for e in inside)
    has_score = Var("s") in inside
    if op == _FUSED:
        yield "product", "s = q . k"
        yield "normaliser", "softmax over the keys"
        yield "output", "sum over the keys of p * v"
    elif "v" in read and (reduces or has_score):
        yield "output", "sum over the keys of p * v"
    elif (has_score or read) and reduces:
        yield "normaliser", "softmax over the keys" if namer.softmax else "sum over the keys"
    elif expr == Var("s") and op in _PRODUCTS | {"sum", "view", "_unsafe_view"}:
        yield "product", "s = q . k"
    elif has_score:
        yield "score", f"score: {_text(expr)}"
    elif read:
        if isinstance(expr, Read):
            yield "layout", expr.tensor
        else:
            yield "product", f"factor of the scores: {_text(expr)}" if "v" not in read else f"values: {_text(expr)}"
    elif kind == "bool" and not isinstance(expr, Const):
        yield "mask", f"mask: {_text(expr)}"
    elif isinstance(expr, Const):
        return
    elif kind == "int" or not any(isinstance(e, (Read, Call)) for e in inside):
        yield "index", f"index: {_text(expr)}"
    else:
        yield "bias", f"term: {_text(expr)}"


def _text(expr: Expr) -> str:
    own = any(isinstance(e, (Reduce, Cat)) for e in walk(expr)) or any(
        v.startswith(("o", "t_")) for v in variables(expr)
    )
    try:
        text = show(expr) if own else print_expr(expr)
    except (AssertionError, KeyError):  # operators of the reader that the common language does not have
        text = show(expr)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 4]} ..."
