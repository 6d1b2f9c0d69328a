"""The rewritings of `merge.py`, done: new nodes in the place of old ones.

They hold in every trace of the function, so nodes are named by their place among the operators, and whether a view is
made never depends on the sizes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..ir.expr import Expr, Var
from .trace import Graph

# Copies that depend on strides: where an extent is 1, fewer are needed.
COPIES = frozenset(("clone", "contiguous", "alias", "_assert_tensor_metadata"))


def plain_name(graph: Graph, node: Any) -> str:
    """The operator of a node, the same for variants that depend on strides."""
    if node.op != "call_function":
        return str(node.op)
    return graph.op_name(node).removeprefix("_unsafe_")


class Places:
    """The nodes of a graph by their place, copies left out."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes = [n for n in graph.nodes if plain_name(graph, n) not in COPIES]
        self._place = {n: p for p, n in enumerate(self.nodes)}

    @property
    def operators(self) -> list[str]:
        """What runs, in order."""
        return [plain_name(self.graph, n) for n in self.nodes]

    def of(self, node: Any) -> int:
        """The place of a node, or of what it is a copy of."""
        while node not in self._place:
            node = node.all_input_nodes[0]
        return self._place[node]


@dataclass(frozen=True)
class Side:
    """One operand of a product, by the axes of a later node. ``node`` (its ``mT`` where `transposed`) joins `axes` of
    that node, in this order, before its features. Behind its views it is the node at `source`, read at `element`;
    `plain` where each of its axes is one of those, the features ("d"), or has one element.
    """

    node: int
    transposed: bool
    axes: tuple[int, ...]
    source: int
    element: tuple[Expr, ...]
    plain: bool

    @property
    def kept(self) -> frozenset[int]:
        """Axes of the later node that the tensor has, as `side` makes it; on all others it has one element."""
        read = {e.name for e in self.element if isinstance(e, Var)}
        return frozenset(a for a in self.axes if not self.plain or f"o{a}" in read)


@dataclass(frozen=True)
class Piece:
    """``factor`` times the product of two sides."""

    factor: float
    left: Side
    right: Side

    def swapped(self) -> Piece:
        """The sides the other way round."""
        return Piece(self.factor, self.right, self.left)


@dataclass(frozen=True)
class Axes:
    """Which axes of the later node are rows (of the left sides) and columns (of the right ones), and all others."""

    rows: int
    columns: int
    batch: tuple[int, ...]


@dataclass(frozen=True)
class Products:
    """The node is a sum of the pieces (`features`), or has their columns one after another."""

    node: int
    axes: Axes
    pieces: tuple[Piece, ...]
    features: bool


@dataclass(frozen=True)
class Weights:
    """The node is (weights + weights) @ values. Of each weights: the place, and factors: operator, place or number."""

    node: int
    values: int
    total: Any  # the operator that combines them
    terms: tuple[tuple[int, tuple[tuple[Any, Any, bool], ...]], ...]


@dataclass(frozen=True)
class Flat:
    """The node is a fused attention of more than four axes: all before the heads become one."""

    node: int


Rewriting = Products | Weights | Flat


def make(graph: Graph, rewriting: Rewriting) -> None:
    """Rewrite the graph in place."""
    maker = _Maker(graph, rewriting.node)
    if isinstance(rewriting, Flat):
        made = maker.flat(graph.arguments(maker.place))
    else:
        made = maker.products(rewriting) if isinstance(rewriting, Products) else maker.weighted(rewriting)
    maker.place.replace_all_uses_with(made)
    _erase(maker.place)
    graph.refresh()


def _erase(node: Any) -> None:
    """Remove a node that nothing uses, and what only it used."""
    if node.users or node.op != "call_function":
        return
    sources = list(node.all_input_nodes)
    node.graph.erase_node(node)
    for source in sources:
        _erase(source)


class _Maker:
    """Makes nodes before `place`, on its line."""

    def __init__(self, graph: Graph, place: int) -> None:
        import torch

        self.nodes = Places(graph).nodes
        self.place = self.nodes[place]
        self.out = [int(n) for n in self.place.meta["val"].shape]
        self.aten = torch.ops.aten

    def call(self, target: Any, *args: Any, **options: Any) -> Any:
        """A new node; `options` are plain values."""
        import torch

        graph = self.place.graph
        with graph.inserting_before(self.place):
            node = graph.call_function(target, args, options)

        def value(x: Any) -> Any:
            return x.meta["val"]

        node.meta = {"custom": self.place.meta.get("custom"), "val": target(*torch.fx.map_arg(args, value), **options)}
        return node

    def permuted(self, node: Any, order: Sequence[int]) -> Any:
        """The node's axes in another order; itself where that is its own."""
        if list(order) == list(range(len(order))):
            return node
        return self.call(self.aten.permute.default, node, list(order))

    def scaled(self, node: Any, factor: float) -> Any:
        """The node times a number."""
        return node if factor == 1 else self.call(self.aten.mul.Tensor, node, factor)

    def side(self, side: Side, order: Sequence[int], free: int) -> Any:
        """``[.., extent or 1 for each axis of the later node in `order` .., features]``. The extent of the axis `free`
        may be another than there.
        """
        extents = {axis: -1 if axis == free else self.out[axis] for axis in side.axes}
        kept = {axis: n for axis, n in extents.items() if axis in side.kept}
        names = [*(f"o{axis}" for axis in order), "d"]
        node = self.nodes[side.source if side.plain else side.node]
        features = int(self.nodes[side.node].meta["val"].shape[-2 if side.transposed else -1])
        if side.plain:
            at = {e.name: d for d, e in enumerate(side.element) if isinstance(e, Var)}
            whole = [at[n] for n in names if n in at]
            node = self.permuted(node, whole + [d for d in range(len(side.element)) if d not in whole])
            same = len(whole) == len(side.element) == len(names)
        else:
            node = self.call(self.aten.transpose.int, node, -1, -2) if side.transposed else node
            node = self.call(self.aten.reshape.default, node, [*(extents[a] for a in side.axes), features])
            left = [side.axes.index(a) for a in order if a in side.axes]
            node = self.permuted(node, [*left, len(left)])
            same = len(left) == len(order)
        if same:
            return node
        return self.call(self.aten.reshape.default, node, [*(kept.get(a, 1) for a in order), features])

    def joined(self, parts: Sequence[tuple[Any, Side]], axis: int) -> Any:
        """The parts one after another along `axis`; on all other axes they are expanded to each other."""
        found = [node for node, _ in parts]
        if len({side.kept for _, side in parts}) > 1:
            shapes = [list(node.meta["val"].shape) for node in found]
            axis = axis % len(shapes[0])
            common = [max(sizes) for sizes in zip(*shapes, strict=True)]
            wanted = [[n if d != axis else own[d] for d, n in enumerate(common)] for own in shapes]
            found = [self.call(self.aten.expand.default, n, w) for n, w in zip(found, wanted, strict=True)]
        return self.call(self.aten.cat.default, found, axis)

    def products(self, r: Products) -> Any:
        """One product in the place of several."""
        axes, first = r.axes, r.pieces[0]
        rows, columns = [*axes.batch, axes.rows], [*axes.batch, axes.columns]
        free = -1 if r.features else axes.columns
        ratios = [p.factor / first.factor for p in r.pieces]
        left = [self.side(p.left, rows, -1) for p in (r.pieces if r.features else r.pieces[:1])]
        right = [self.side(p.right, columns, free) for p in r.pieces]
        if r.features:
            scaled = [self.scaled(n, x) for n, x in zip(left, ratios, strict=True)]
            one = self.joined(list(zip(scaled, [p.left for p in r.pieces], strict=True)), -1)
        else:
            one = left[0]
            right = [self.scaled(n, x) for n, x in zip(right, ratios, strict=True)]
        other = self.joined(list(zip(right, [p.right for p in r.pieces], strict=True)), -1 if r.features else -2)
        return self.scaled(self.product(one, other, axes), first.factor)

    def product(self, left: Any, right: Any, axes: Axes) -> Any:
        """``sum_d left[.., rows, d] * right[.., columns, d]``, in the shape of the later node."""
        batch = [self.out[a] for a in axes.batch]
        flat: list[Any] = []
        for node, own in ((left, axes.rows), (right, axes.columns)):
            whole = [*batch, self.out[own], int(node.meta["val"].shape[-1])]
            node = self.call(self.aten.expand.default, node, whole)
            flat.append(self.call(self.aten.reshape.default, node, [math.prod(batch), *whole[-2:]]))
        turned = self.call(self.aten.transpose.int, flat[1], -1, -2)
        order = [*axes.batch, axes.rows, axes.columns]
        product = self.call(self.aten.bmm.default, flat[0], turned)
        product = self.call(self.aten.reshape.default, product, [self.out[a] for a in order])
        return self.permuted(product, [order.index(a) for a in range(len(self.out))])

    def weighted(self, r: Weights) -> Any:
        """Each weights times the values in the weights' own axes, times what was taken out of them; then combined."""
        values = self.nodes[r.values]
        results: list[Any] = []
        for place, factors in r.terms:
            weights = self.nodes[place]
            own = [int(n) for n in weights.meta["val"].shape]
            flat = self.call(self.aten.reshape.default, weights, [*self.out[:-1], own[-1]])
            result = self.call(self.place.target, flat, values)
            result = self.call(self.aten.reshape.default, result, [*own[:-1], self.out[-1]])
            for target, factor, is_node in reversed(factors):
                result = self.call(target, result, self.nodes[factor] if is_node else factor)
            results.append(result)
        return self.call(self.aten.reshape.default, self.call(r.total, *results), self.out)

    def flat(self, a: dict[str, Any]) -> Any:
        """The fused attention with one axis of batches, and its result in the shape of the node."""
        batch = self.out[:-3]

        def joined(node: Any) -> Any:
            own = [int(n) for n in node.meta["val"].shape]
            return self.call(self.aten.reshape.default, node, [math.prod(batch), *own[-3:]])

        mask = a["attn_mask"]
        if mask is not None and len(mask.meta["val"].shape) > 3:  # the same for all batches
            mask = self.call(self.aten.reshape.default, mask, [int(n) for n in mask.meta["val"].shape[-3:]])
        given = [joined(a[name]) for name in ("query", "key", "value")]
        options = {"scale": a["scale"], "enable_gqa": a["enable_gqa"]}
        options = {name: value for name, value in options.items() if value}
        made = self.call(self.place.target, *given, mask, a["dropout_p"], a["is_causal"], **options)
        return self.call(self.aten.reshape.default, made, self.out)
