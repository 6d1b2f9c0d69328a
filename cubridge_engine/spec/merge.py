"""Products and weights brought into the one form that a cut reads, by exact rewriting of the traced graph.

- ``q1 k1^T + q2 k2^T`` is one product over more features: ``[q1, q2] [k1, k2]^T`` (latent attention with a rope part).
- ``[q k1^T, q k2^T]`` along the keys is one product with more keys: ``q [k1, k2]^T`` (memory keys, a zero key).
- ``(P1 - c P2) V`` is two attentions over one V, put together afterwards: ``P1 V - c (P2 V)`` (differential attention).
- A fused attention with three or more axes before the rows (windows of images) has all but the last of them as batch.

What is made stands before or after the attention, so a drop-in writes it. Readings are checked against the function
itself, never against this graph. What to rewrite is decided in one trace, where no length is 1, and done the same way
in all others (`Merges`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..ir.expr import Expr, Read, Var
from .cut import FUSED, PRODUCTS, VIEWS
from .elements import Elements, Refused
from .merge_make import Axes, Flat, Piece, Places, Products, Rewriting, Side, Weights, make
from .nodes import ZERO, walk
from .rules import RULES
from .trace import Graph
from .unify import NotUnified

_RESHAPES = frozenset(("view", "_unsafe_view", "reshape", "expand", "squeeze", "unsqueeze", "clone", "contiguous"))
# What tells weights from scores.
_ACTIVATIONS = frozenset(
    ("_softmax", "softmax", "_safe_softmax", "exp", "exp2", "sigmoid", "relu", "tanh", "elu", "gelu", "silu", "pow")
)


class Merges:
    """The rewritings of one function, in the order in which they are done."""

    def __init__(self) -> None:
        self.operators: list[str] | None = None  # of the trace in which they were found
        self.found: list[Rewriting] = []

    def apply(self, graph: Graph) -> None:
        """Rewrite the graph in place. Raises NotUnified where other operators ran than in the first trace."""
        if self.operators is None:
            self.operators = Places(graph).operators
            self._find(graph)
            return
        if self.found and Places(graph).operators != self.operators:
            raise NotUnified("other operators run at other sizes")
        for rewriting in self.found:
            make(graph, rewriting)

    def _find(self, graph: Graph) -> None:
        for node in list(graph.nodes):
            finder = _FINDERS.get(graph.op_name(node)) if node.op == "call_function" and node.users else None
            if finder is None:
                continue
            try:
                found = finder(graph, Places(graph), node)
            except Refused:  # an operator that is not understood is no view of a product
                continue
            if found is not None:
                self.found.append(found)
                make(graph, found)


# what a node is, in terms of products ---------------------------------------------------------------------------------
class _OfProduct(Elements):
    """Elements of views and multiples of one product."""

    def __init__(self, graph: Graph, product: Any) -> None:
        super().__init__(graph, RULES)
        self.product = product

    def at(self, node: Any, index: Sequence[Expr]) -> Expr:
        return Read("product", tuple(index)) if node is self.product else super().at(node, index)


class _Through(Elements):
    """Elements down to the first node that is no view."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph, RULES)
        self.sources: dict[str, Any] = {}

    def at(self, node: Any, index: Sequence[Expr]) -> Expr:
        if node.op == "call_function" and self.graph.op_name(node) in VIEWS:
            return super().at(node, index)
        self.sources[node.name] = node
        return Read(node.name, tuple(index))


def _piece(graph: Graph, places: Places, node: Any) -> Piece | None:
    """The node as a number times a product of two tensors; None where it is none."""
    factor = 1.0
    product = node
    while product.op == "call_function" and graph.op_name(product) not in ("bmm", "mm"):
        op, a = graph.op_name(product), graph.arguments(product)
        if op in ("mul", "div") and isinstance(a["other"], (int, float)) and not a.get("rounding_mode"):
            factor = factor * a["other"] if op == "mul" else factor / a["other"]
        elif op == "neg":
            factor = -factor
        elif op not in VIEWS or "self" not in a:
            return None
        product = a["self"]
    if product.op != "call_function" or not factor or not math.isfinite(factor):
        return None
    elements = _OfProduct(graph, product)
    index: list[Expr] = []
    for axis, extent in enumerate(elements.shape(node)):
        elements.algebra.extent[f"o{axis}"] = extent
        index.append(Var(f"o{axis}") if extent > 1 else ZERO)
    reads = [e for e in walk(elements.at(node, index)) if isinstance(e, Read)]
    if len(reads) != 1:
        return None
    *batch, row, column = reads[0].index
    left, right = (graph.arguments(product)[name] for name in PRODUCTS[graph.op_name(product)])
    sides = _side(elements, places, left, [*batch, row], False), _side(elements, places, right, [*batch, column], True)
    return Piece(factor, sides[0], sides[1]) if sides[0] is not None and sides[1] is not None else None


def _side(elements: Elements, places: Places, operand: Any, index: list[Expr], transposed: bool) -> Side | None:
    """The operand with an axis for each variable of its index; None where the index is no join of whole axes."""
    sizes = elements.shape(operand)
    features, rows = (sizes[-2], sizes[-1]) if transposed else (sizes[-1], sizes[-2])
    axes: list[int] = []
    for at, extent in zip(index, [*sizes[:-2], rows], strict=True):
        atoms, const = elements.algebra.affine(at)
        inner = extent
        for atom, step in sorted(atoms.items(), key=lambda item: -item[1]):
            if not isinstance(atom, Var) or step * elements.algebra.extent[atom.name] != inner:
                return None
            inner = step
            axes.append(int(atom.name.removeprefix("o")))
        if const or inner != 1:
            return None
    if len(set(axes)) != len(axes):
        return None
    through = _Through(elements.graph)
    through.algebra.extent.update({**elements.algebra.extent, "d": features})
    *batch, last = index
    feature = Var("d") if features > 1 else ZERO
    read = through.at(operand, [*batch, feature, last] if transposed else [*batch, last, feature])
    if not isinstance(read, Read):
        return None
    source = through.sources[read.tensor]
    return Side(
        places.of(operand), transposed, tuple(axes), places.of(source), read.index, _plain(through, read, source)
    )


def _plain(elements: Elements, read: Read, source: Any) -> bool:
    """True where every axis of the source is read whole, by a variable of its own, or has one element."""
    names = [e.name for e in read.index if isinstance(e, Var)]
    whole = all(
        elements.algebra.extent[e.name] == n if isinstance(e, Var) else e == ZERO and n == 1
        for e, n in zip(read.index, elements.shape(source), strict=True)
    )
    return whole and len(set(names)) == len(names)


def _meet(graph: Graph, places: Places, pieces: Sequence[Piece]) -> bool:
    """True where the products are of queries with keys: one is of two tensors that depend on arguments, so it is no
    projection, and none has weights as its operand, so it is no result of an attention.
    """
    own = frozenset(graph.names)
    pairs = [(places.nodes[p.left.node], places.nodes[p.right.node]) for p in pieces]
    if any(_is_weights(graph, node) for pair in pairs for node in pair):
        return False
    return any(all(graph.depends(node) & own for node in pair) for pair in pairs)


def _alike(first: Piece, other: Piece) -> Piece | None:
    """`other`, its sides in the order of `first`: by the axes that only one side has."""
    rows, columns = (set(a.axes) - set(b.axes) for a, b in ((first.left, first.right), (first.right, first.left)))
    for piece in (other, other.swapped()):
        left, right = set(piece.left.axes), set(piece.right.axes)
        if rows & left and columns & right and not rows & right and not columns & left:
            return piece
    return None


def _axes_of(piece: Piece, rank: int) -> Axes | None:
    """The one axis that only the left side has, and the one that only the right side has."""
    rows = set(piece.left.axes) - set(piece.right.axes)
    columns = set(piece.right.axes) - set(piece.left.axes)
    if len(columns) == 1:  # heads that share their keys stand before the rows
        rows = set(sorted(rows)[-1:])
    elif len(rows) == 1:
        columns = set(sorted(columns)[-1:])
    if len(rows) != 1 or len(columns) != 1:
        return None
    row, column = rows.pop(), columns.pop()
    return Axes(row, column, tuple(a for a in range(rank) if a not in (row, column)))


# the finders ----------------------------------------------------------------------------------------------------------
def _sum_of_products(graph: Graph, places: Places, node: Any) -> Rewriting | None:
    a = graph.arguments(node)
    parts = (a["self"], a["other"])
    if not all(graph.is_node(x) for x in parts) or a.get("alpha", 1) != 1:
        return None
    shape = node.meta["val"].shape
    if any(x.meta["val"].shape != shape for x in parts):
        return None
    first, other = (_piece(graph, places, x) for x in parts)
    second = _alike(first, other) if first is not None and other is not None else None
    if first is None or second is None or not _meet(graph, places, (first, second)):
        return None
    axes = _axes_of(first, len(shape))
    if graph.op_name(node) == "sub":
        second = Piece(-second.factor, second.left, second.right)
    return None if axes is None else Products(places.of(node), axes, (first, second), features=True)


def _keys_joined(graph: Graph, places: Places, node: Any) -> Rewriting | None:
    a = graph.arguments(node)
    rank = len(node.meta["val"].shape)
    axis = int(a["dim"] or 0) % rank
    pieces: list[Piece] = []
    for part in a["tensors"]:
        found = _piece(graph, places, part)
        if found is None:
            return None
        pieces.append(found if axis in found.right.axes else found.swapped())
    if len(pieces) < 2 or not _meet(graph, places, pieces):
        return None
    axes = _axes_of(pieces[0], rank)
    first = pieces[0].left
    same = all((p.left.source, p.left.element) == (first.source, first.element) for p in pieces)
    if axes is None or axes.columns != axis or not same or any(axis not in p.right.axes for p in pieces):
        return None
    return Products(places.of(node), axes, tuple(pieces), features=False)


def _weights_combined(graph: Graph, places: Places, node: Any) -> Rewriting | None:
    weights, values = (graph.arguments(node)[name] for name in PRODUCTS[graph.op_name(node)])
    total = weights
    while total.op == "call_function" and graph.op_name(total) in _RESHAPES:
        total = graph.arguments(total)["self"]
    if total.op != "call_function" or graph.op_name(total) not in ("add", "sub"):
        return None
    a = graph.arguments(total)
    parts = (a["self"], a["other"])
    shape, flat = total.meta["val"].shape, weights.meta["val"].shape
    if a.get("alpha", 1) != 1 or any(not graph.is_node(p) or p.meta["val"].shape != shape for p in parts):
        return None
    if shape[-2:] != flat[-2:] or math.prod(shape) != math.prod(flat):
        return None
    taken = [_factored(graph, p) for p in parts]
    if not all(_is_weights(graph, p) for p, _ in taken):
        return None
    terms = tuple(
        (places.of(p), tuple((target, places.of(f) if graph.is_node(f) else f, graph.is_node(f)) for target, f in c))
        for p, c in taken
    )
    return Weights(places.of(node), places.of(values), total.target, terms)


def _many_batches(graph: Graph, places: Places, node: Any) -> Rewriting | None:
    a = graph.arguments(node)
    operands = [a[name] for name in ("query", "key", "value")]
    lead = [list(x.meta["val"].shape)[:-2] for x in operands]
    if len(lead[0]) < 3 or any(x[:-1] != lead[0][:-1] for x in lead):
        return None
    mask = a["attn_mask"]
    if mask is not None and math.prod(mask.meta["val"].shape[:-3]) > 1:
        return None  # which window a batch is would depend on how many there are
    return Flat(places.of(node))


def _factored(graph: Graph, node: Any) -> tuple[Any, list[tuple[Any, Any]]]:
    """A node without factors that do not depend on the last axis; the factors with their operator, the last first."""
    found: list[tuple[Any, Any]] = []
    while node.op == "call_function" and graph.op_name(node) in ("mul", "div"):
        a = graph.arguments(node)
        sides = [(a["self"], a["other"])]
        if graph.op_name(node) == "mul" and graph.is_node(a["other"]):
            sides.append((a["other"], a["self"]))
        shape = node.meta["val"].shape
        taken = next((pair for pair in sides if _constant_in_row(graph, *pair, shape)), None)
        if taken is None:
            break
        found.append((node.target, taken[1]))
        node = taken[0]
    return node, found


def _constant_in_row(graph: Graph, kept: Any, factor: Any, shape: Sequence[int]) -> bool:
    own = list(factor.meta["val"].shape) if graph.is_node(factor) else []
    return graph.is_node(kept) and kept.meta["val"].shape == shape and (not own or own[-1] == 1)


def _is_weights(graph: Graph, node: Any) -> bool:
    """True where the node is an activation over a product of two tensors that depend on arguments."""
    own = frozenset(graph.names)
    todo, seen, active = [node], set[Any](), False
    while todo:
        one = todo.pop()
        if one in seen or one.op != "call_function":
            continue
        seen.add(one)
        op = graph.op_name(one)
        active = active or op in _ACTIVATIONS
        if op not in PRODUCTS or op == FUSED:
            todo.extend(one.all_input_nodes)
        elif active and all(graph.depends(graph.arguments(one)[side]) & own for side in PRODUCTS[op]):
            return True
    return False


_FINDERS = {
    "add": _sum_of_products,
    "sub": _sum_of_products,
    "cat": _keys_joined,
    "bmm": _weights_combined,
    "mm": _weights_combined,
    FUSED: _many_batches,
}
