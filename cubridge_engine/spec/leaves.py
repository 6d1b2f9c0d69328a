"""The inputs of a core: nodes computed before the attention, taken as tensors the kernel reads.

For q, k and v: from the product back through views, to the node nearest to where the values are made at which batch,
head, row and feature are still axes of their own. For what else the scores read: the smallest node that cannot be
written as a formula of indices and arguments.

A leaf is *placed*: permuted and reshaped so that the kernel sees [B, H, S, D], whatever the node's own axes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..ir.expr import Call, Expr, Read, Var
from .elements import Elements, Index
from .nodes import ZERO, Algebra, variables, walk
from .ops_index import reindex
from .rules import RULES
from .trace import Graph

_SCALINGS = frozenset(("mul", "div"))


@dataclass
class Leaf:
    """A node as an input of the core. `perm` and `groups` place it: ``node.permute(perm).reshape(shape)``.

    `groups` says what each axis of the placed tensor is made of, and is None until the first read decides it.
    `what` says where the node comes from, for messages.
    """

    node: Any
    name: str
    perm: tuple[int, ...]
    role: str = "operand"  # 'q' | 'k' | 'v' as far as the products say, or 'operand'
    groups: tuple[Group, ...] | None = None
    what: str = ""

    def own_shape(self) -> list[int]:
        """The node's own sizes."""
        return [int(n) for n in self.node.meta["val"].shape]

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the placed tensor."""
        assert self.groups is not None
        sizes = [self.own_shape()[d] for d in self.perm]
        return tuple(g.extent(sizes) for g in self.groups)

    def resized(self, inner: Callable[[str, int], int]) -> tuple[Group, ...]:
        """The groups in a trace of other sizes; `inner` gives the extents of inner parts."""
        assert self.groups is not None
        return tuple(
            g if g.part == "whole" else replace(g, inner=inner(self.name, n)) for n, g in enumerate(self.groups)
        )

    def read(self, algebra: Algebra, index: Sequence[Expr]) -> Read:
        """The element at `index` of the node, as an element of the placed tensor."""
        sizes = [self.own_shape()[d] for d in self.perm]
        moved = [index[d] for d in self.perm]
        if self.groups is None:
            self.groups = tuple(_groups(algebra, sizes, moved))
        shape = self.shape
        at = reindex(algebra, moved, sizes, list(shape)) if list(shape) != sizes else moved
        return Read(self.name, tuple(ZERO if n == 1 else e for n, e in zip(shape, at, strict=True)))


@dataclass(frozen=True)
class Group:
    """An axis of a placed tensor: whole axes joined (usually one), or the outer or inner part of one."""

    axes: tuple[int, ...]
    part: str = "whole"  # 'whole' | 'outer' | 'inner'
    inner: int = 1  # extent of the inner part

    def extent(self, sizes: Sequence[int]) -> int:
        """Its size, from those of the axes."""
        size = math.prod(sizes[a] for a in self.axes)
        return self.inner if self.part == "inner" else size // self.inner


def _groups(algebra: Algebra, sizes: list[int], index: Sequence[Expr]) -> list[Group]:
    """Axes under which merged indices are apart (``b*H + h``) and cut ones together (``i // 14``, ``i % 14``)."""
    found: list[Group] = []
    last: Expr = ZERO
    for axis, (size, at) in enumerate(zip(sizes, index, strict=True)):
        inner = _inner_extent(algebra, at, size)
        if inner:
            found += [Group((axis,), "outer", inner), Group((axis,), "inner", inner)]
            last = ZERO
            continue
        if found and found[-1].part == "whole" and size > 1 and not isinstance(at, Var):
            before = found[-1].extent(sizes)
            both = reindex(algebra, [last, at], [before, size], [before * size])[0]
            if before > 1 and isinstance(both, Var):
                found[-1] = Group((*found[-1].axes, axis))
                last = both
                continue
        found.append(Group((axis,)))
        last = at
    return found


def _inner_extent(algebra: Algebra, at: Expr, size: int) -> int:
    """The extent of the inner index where `at` merges two (``b*H + h`` gives H); 0 where it does not."""
    atoms, const = algebra.affine(at)
    if len(atoms) < 2 or const:
        return 0
    inner = max(atoms.values())
    rest = algebra.bounds(algebra.build({a: c for a, c in atoms.items() if c != inner}, 0))
    fits = rest is not None and rest[0] >= 0 and rest[1] < inner and size % inner == 0
    return inner if fits and sum(c == inner for c in atoms.values()) == 1 else 0


# q, k and v ----------------------------------------------------------------------------------------------------------
class _Probe(Elements):
    """Reads one view of one node, to see which element of its source an element of it is."""

    def __init__(self, graph: Graph, source: Any) -> None:
        super().__init__(graph, RULES)
        self.source = source

    def at(self, node: Any, index: Sequence[Expr]) -> Expr:
        return Read("source", tuple(index)) if node is self.source else super().at(node, index)


def through(graph: Graph, node: Any, index: Index, algebra: Algebra) -> tuple[Any, Index] | None:
    """The source of a view and the index there; None where `node` is no view (or rounds to a narrower type)."""
    source = view_source(graph, node)
    if source is None:
        return None
    probe = _Probe(graph, source)
    probe.algebra = algebra
    reads = [e for e in walk(probe.at(node, index)) if isinstance(e, Read) and e.tensor == "source"]
    return (source, list(reads[0].index)) if len(reads) == 1 else None


def view_source(graph: Graph, node: Any) -> Any:
    """What `node` is a view, a copy, a wider copy or a multiple of; None where it is none of these."""
    from .cut import VIEWS

    if node.op != "call_function":
        return None
    op = graph.op_name(node)
    arguments = graph.arguments(node)
    if op == "getitem":
        split = node.args[0]
        op = graph.op_name(split) if split.op == "call_function" else ""
        return graph.arguments(split)["self"] if op in ("split", "split_with_sizes", "chunk", "unbind") else None
    if op in VIEWS:
        return arguments.get("self")
    if op == "_to_copy":
        source = arguments["self"]
        wide = graph.kind_of(source) == "float" and _bits(source) <= _bits(node)
        return source if wide else None
    if op in _SCALINGS and graph.is_node(arguments["self"]) and not graph.is_node(arguments["other"]):
        return arguments["self"]
    return None


def _bits(node: Any) -> int:
    return int(node.meta["val"].dtype.itemsize)


def leaves_of(graph: Graph, operand: Any, row_axis: int, feature_axis: int, role: str) -> list[Leaf]:
    """The possible leaves behind one operand of a product, from the operand back to where its values are made.

    `row_axis` and `feature_axis` are axes of the operand.
    """
    algebra = Algebra(types=dict(graph.types))
    shape = [int(n) for n in operand.meta["val"].shape]
    names = {row_axis % len(shape): "row", feature_axis % len(shape): "feature"}
    index: Index = []
    for axis, extent in enumerate(shape):
        name = names.get(axis, f"batch{axis}")
        algebra.extent[name] = extent
        index.append(Var(name) if extent > 1 else ZERO)
    found = [Leaf(operand, role, _order(list(index), names, own=True), role)]
    node, at = operand, index
    while (step := through(graph, node, at, algebra)) is not None:
        node, at = step
        # Heads and batches may share keys; queries that all batches share are only read as such before they are spread.
        if role == "q" and elements_in(node) < elements_in(operand):
            break
        if _is_apart(algebra, [int(n) for n in node.meta["val"].shape], at):
            found.append(Leaf(node, role, _order(list(at), names, own=False), role))
    return found


def alike(choices: Sequence[Sequence[Leaf]]) -> list[Leaf]:
    """Of each list the last leaf that has as many axes as one of all the others; simply the last where none has.

    The most axes win that are longer than 1; of equally many the arguments as they are.
    """
    common = set[int]().union(*({len(leaf.perm) for leaf in some} for some in choices))
    found: list[list[Leaf]] = []
    for axes in sorted(common, reverse=True):
        chosen = [[leaf for leaf in some if len(leaf.perm) == axes] for some in choices]
        if all(chosen):
            found.append([some[-1] for some in chosen])

    def rank(leaves: list[Leaf]) -> tuple[int, bool]:
        long = sum(n > 1 for leaf in leaves for n in leaf.own_shape())
        return long, all(leaf.node.op == "placeholder" for leaf in leaves)

    return max(found, key=rank, default=[some[-1] for some in choices])


def _is_apart(algebra: Algebra, shape: list[int], index: Index) -> bool:
    """Row and feature are axes of their own, and every other axis belongs whole to batch and heads: every second head
    of an axis is not cut out of it here.
    """
    if len(shape) > 4:
        return False
    mentioned = [variables(e) for e in index]
    for name in ("row", "feature"):
        owners = [d for d, found in enumerate(mentioned) if name in found]
        whole = len(owners) == 1 and index[owners[0]] == Var(name) and shape[owners[0]] == algebra.extent[name]
        if not whole:
            return False
    spans = [algebra.bounds(e) for e in index]
    return all(
        span == (0, n - 1) or (span is None and bool(found))
        for found, span, n in zip(mentioned, spans, shape, strict=True)
    )


def _order(index: Index, names: dict[int, str], own: bool) -> tuple[int, ...]:
    """Batch and heads first, then rows, then features."""
    row = next((d for d, e in enumerate(index) if e == Var("row")), None)
    feature = next((d for d, e in enumerate(index) if e == Var("feature")), None)
    if own:  # an extent of 1 has no variable, but on the operand itself the axes are known
        by_name = {name: d for d, name in names.items()}
        row, feature = by_name["row"], by_name["feature"]
    assert row is not None
    assert feature is not None
    return (*(d for d in range(len(index)) if d not in (row, feature)), row, feature)


# everything else the scores read -------------------------------------------------------------------------------------
def complexity(index: Sequence[Expr]) -> int:
    """How much arithmetic it takes to address an element."""
    return sum(1 for e in index for _ in walk(e))


def elements_in(node: Any) -> int:
    """How many elements a node has."""
    return math.prod(int(n) for n in node.meta["val"].shape)


def is_nested(expr: Expr) -> bool:
    """True when an element is looked up at a place that is itself looked up."""
    return any(isinstance(e, Read) and any(isinstance(x, Read) for i in e.index for x in walk(i)) for e in walk(expr))


def is_formula_of_reads(expr: Expr) -> bool:
    """Arithmetic on elements of tensors."""
    return isinstance(expr, Call) and any(isinstance(e, Read) for e in walk(expr))
