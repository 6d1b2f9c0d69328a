"""Which of several products in one score is the one of queries with keys.

In ``q k^T + gather(q R^T, i - j)`` the second product is a table with one row for each query: an operand that is
computed before the attention. The product of queries with keys is the one that the weights read at row and column, as
they are; of a table they read shifted, clamped, divided or gathered columns.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from ..ir.expr import Expr, Read, Var
from .elements import Elements, Refused
from .nodes import ZERO, walk
from .rules import RULES
from .trace import Graph


class _OfProducts(Elements):
    """Elements in terms of those of some products."""

    def __init__(self, graph: Graph, products: Collection[Any]) -> None:
        super().__init__(graph, RULES)
        self.products = {node: f"product {n}" for n, node in enumerate(products)}

    def at(self, node: Any, index: Sequence[Expr]) -> Expr:
        name = self.products.get(node)
        return super().at(node, index) if name is None else Read(name, tuple(index))


def of_queries_with_keys(graph: Graph, weights: Any, products: Sequence[Any]) -> list[Any]:
    """Those of the products that `weights` reads at columns as they are; all of them where that is not known."""
    elements = _OfProducts(graph, products)
    index: list[Expr] = []
    for axis, extent in enumerate(elements.shape(weights)):
        elements.algebra.extent[f"w{axis}"] = extent
        index.append(Var(f"w{axis}") if extent > 1 else ZERO)
    try:
        reads = [e for e in walk(elements.at(weights, index)) if isinstance(e, Read)]
    except Refused:
        return list(products)
    shifted = {e.tensor for e in reads if not all(isinstance(x, Var) or x == ZERO for x in e.index[-1:])}
    return [node for node, name in elements.products.items() if name not in shifted]
