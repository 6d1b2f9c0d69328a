"""Where the attention stands in a larger computation: its two products, what comes before and what comes after.

A module computes q, k and v from its arguments and goes on with the result. The *core* runs from the product of q and k
to the weighted sum of v. The nodes before it are its inputs (`leaves.py` chooses which ones), the nodes after it stay
in torch. Rules that keep other pairs of products from being taken for attention:

- q, k and v each depend on an argument; queries may come from weights alone (a learned latent, a class token) where the
  function has no other attention,
- between the two products there is no third one that consumes a score, and something that is not linear,
- nothing outside the core uses its scores or weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from .elements import Refused
from .second_products import of_queries_with_keys
from .trace import Graph

FUSED = "scaled_dot_product_attention"
# Operand names of the two sides of a product, by operator.
PRODUCTS: dict[str, tuple[str, str]] = {
    "bmm": ("self", "mat2"),
    "mm": ("self", "mat2"),
    "addmm": ("mat1", "mat2"),
    "baddbmm": ("batch1", "batch2"),
    "linear": ("input", "weight"),
    FUSED: ("query", "key"),
}
# Operators that only move elements: the layout of q, k, v and the sharing of heads show in them.
VIEWS = frozenset(
    [
        "view",
        "_unsafe_view",
        "reshape",
        "permute",
        "transpose",
        "t",
        "expand",
        "unsqueeze",
        "squeeze",
        "clone",
        "alias",
        "detach",
        "contiguous",
        "select",
        "slice",
        "getitem",
        "split",
        "split_with_sizes",
        "chunk",
        "unbind",
        "lift_fresh_copy",
    ]
)
# What may stand between the weighted sum and the output of the core: views, and arithmetic with values of the core
# (a denominator that is applied late, a guard of rows without keys).
_AFTER = frozenset(["div", "mul", "where", "masked_fill", "nan_to_num", "_to_copy"])
_NOT_LINEAR = frozenset(
    [
        "_softmax",
        "softmax",
        "_safe_softmax",
        "_log_softmax",
        "exp",
        "exp2",
        "sigmoid",
        "relu",
        "tanh",
        "pow",
        "where",
        "masked_fill",
        "elu",
        "gelu",
        "silu",
        "mul",
        "clamp",
        "abs",
        "softplus",
        "log_sigmoid",
    ]
)
_MOST_CORES = 8  # more calls than that are a loop that should be one call


@dataclass(frozen=True)
class Core:
    """One attention in a graph. `scores` is the product of q and k, `sum` the product with v (the same node where both
    are one operator). `q_like` and `k_like` are the operands of `scores` in the order of the graph. `outputs` are the
    nodes that may be taken for the result, nearest to the sum first. `inside`: all nodes that depend on the scores.
    """

    scores: Any
    sum: Any
    q_like: Any
    k_like: Any
    value: Any
    value_is_left: bool
    outputs: tuple[Any, ...]
    inside: frozenset[Any]

    def moved(self, there: Mapping[Any, Any]) -> Core:
        """The same core in another graph; `there` maps the nodes."""
        inside = frozenset(there[n] for n in self.inside if n in there)
        return replace(
            self,
            scores=there.get(self.scores),
            sum=there.get(self.sum),
            q_like=there.get(self.q_like),
            k_like=there.get(self.k_like),
            value=there.get(self.value),
            outputs=tuple(there.get(n) for n in self.outputs),
            inside=inside,
        )


def find_cores(graph: Graph) -> list[Core]:
    """The attentions of a traced graph, in order. Raises Refused where there is none, or one that cannot be cut out."""
    products = {n: _operands(graph, n) for n in graph.nodes if n.op == "call_function" and _is_product(graph, n)}
    own = frozenset(graph.names)
    varying = {n for n, pair in products.items() if all(graph.depends(x) & own for x in pair)}
    cores = _cores(graph, products, varying, set())
    if not cores:
        # Before learned queries are thought of: a product of scores with weights over the heads would pass for theirs.
        mixed = _mixing(graph, products, varying)
        if mixed is not None:
            raise Refused("CB224", graph.line(mixed))
        with suppress(Refused):  # then what the function lacks as it stands is said
            cores = _cores(graph, products, varying, _learned(graph, products))
    if not cores:
        raise Refused("CB228", None, reason=_why_none(graph, products, varying))
    return _distinct(graph, cores)


def _learned(graph: Graph, products: dict[Any, tuple[Any, Any]]) -> set[Any]:
    """Products of weights with something that depends on arguments, as scores of learned queries are; no layers."""
    own = frozenset(graph.names)
    one = {n for n, pair in products.items() if sum(bool(graph.depends(x) & own) for x in pair) == 1}
    return {n for n in one if graph.op_name(n) != "linear"}


def _cores(graph: Graph, products: dict[Any, tuple[Any, Any]], varying: set[Any], learned: set[Any]) -> list[Core]:
    """The attentions whose scores are among `varying` or `learned` (then their values are no weights of a layer)."""
    own = frozenset(graph.names)
    cores: list[Core] = []
    for node in graph.nodes:
        if node not in varying and node not in learned:
            continue
        if graph.op_name(node) == FUSED:
            query, key = products[node]
            cores.append(_core(graph, node, node, (query, key), graph.arguments(node)["value"], False))
            continue
        for side, weights in enumerate(products[node]):
            between, met = _before(graph, weights, products)
            scores = [p for p in met if p in varying or p in learned]
            if len(scores) > 1:
                scores = of_queries_with_keys(graph, weights, scores)
            linear = not any(graph.op_name(n) in _NOT_LINEAR for n in between if n.op == "call_function")
            if len(scores) != 1 or linear or graph.op_name(scores[0]) == FUSED:
                continue
            value = products[node][1 - side]
            layer = scores[0] in learned and not graph.depends(value) & own
            if layer or scores[0] in ancestors([value]):
                continue
            cores.append(_core(graph, scores[0], node, products[scores[0]], value, side == 1))
    return cores


def _is_product(graph: Graph, node: Any) -> bool:
    return graph.op_name(node) in PRODUCTS


def _operands(graph: Graph, node: Any) -> tuple[Any, Any]:
    arguments = graph.arguments(node)
    left, right = PRODUCTS[graph.op_name(node)]
    return arguments[left], arguments[right]


def _before(graph: Graph, start: Any, products: dict[Any, Any]) -> tuple[list[Any], list[Any]]:
    """Nodes from `start` back to the nearest products, and those products."""
    between: list[Any] = []
    met: list[Any] = []
    seen: set[Any] = set()
    todo = [start]
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        if node in products:
            met.append(node)
            continue
        between.append(node)
        todo.extend(node.all_input_nodes)
    return between, met


def ancestors(nodes: Iterable[Any]) -> set[Any]:
    """The nodes, and all that they are computed from."""
    found: set[Any] = set()
    todo = list(nodes)
    while todo:
        one = todo.pop()
        if one not in found:
            found.add(one)
            todo.extend(one.all_input_nodes)
    return found


def descendants(node: Any) -> frozenset[Any]:
    """The node, and all that is computed from it."""
    found: set[Any] = set()
    todo = [node]
    while todo:
        one = todo.pop()
        if one not in found and one.op != "output":
            found.add(one)
            todo.extend(one.users)
    return frozenset(found)


def _core(graph: Graph, scores: Any, total: Any, pair: tuple[Any, Any], value: Any, value_is_left: bool) -> Core:
    if not graph.depends(value) & frozenset(graph.names):
        raise Refused("CB244", graph.line(total), name="v")
    inside = descendants(scores)
    outputs = tuple(_after(graph, total, inside))
    return Core(scores, total, pair[0], pair[1], value, value_is_left, outputs, inside)


def _after(graph: Graph, total: Any, inside: frozenset[Any]) -> Iterator[Any]:
    """The weighted sum, and what follows it as long as it is still the attention's own result."""
    own = inside - descendants(total)
    node = total
    while True:
        yield node
        users = [u for u in node.users if u.op == "call_function"]
        if len(users) != 1 or len(node.users) != 1:
            return
        following = users[0]
        others = [n for n in following.all_input_nodes if n is not node]
        op = graph.op_name(following)
        late = op in _AFTER and all(n in own or not graph.depends(n) for n in others)
        if not late and (op not in VIEWS or others):
            return
        node = following


def _distinct(graph: Graph, cores: list[Core]) -> list[Core]:
    by_scores: dict[Any, Core] = {}
    for core in cores:
        first = by_scores.setdefault(core.scores, core)
        if first is not core:
            lines = [place[0] for c in (first, core) if (place := graph.line(c.sum))]
            at = f" at lines {lines[0]} and {lines[1]}" if len(lines) == 2 else ""
            raise Refused("CB233", graph.line(core.sum), reason=f"the same weights are used twice{at}")
    found = list(by_scores.values())
    if len(found) > _MOST_CORES:
        raise Refused("CB233", graph.line(found[0].scores), reason=f"{len(found)} attentions run one after another")
    return found


def _mixing(graph: Graph, products: dict[Any, tuple[Any, Any]], varying: set[Any]) -> Any:
    """The product with weights that scores go through on their way to a softmax; None where there is none."""
    for node in varying:
        for weights in () if graph.op_name(node) == FUSED else products[node]:
            between, met = _before(graph, weights, products)
            if not any("softmax" in graph.op_name(n) for n in between if n.op == "call_function"):
                continue
            for mix in met:
                if mix not in varying and any(
                    p in varying for x in products[mix] for p in _before(graph, x, products)[1]
                ):
                    return mix
    return None


def _why_none(graph: Graph, products: dict[Any, tuple[Any, Any]], varying: set[Any]) -> str:
    """What is missing, in a few words."""
    if any(graph.op_name(n) == FUSED for n in products):
        return "the queries or keys come from weights alone"
    if not varying:
        return "no product pairs two tensors that depend on the arguments"
    return "no product of scores with values follows a product of queries with keys"


def check_complete(graph: Graph, core: Core, outputs: Sequence[Any]) -> None:
    """Nothing but the core itself may use its scores: the rest of the function must do with its outputs.

    Raises Refused with the line of the first use outside.
    """
    needed: set[Any] = set()
    todo = [n for n in graph.outputs if graph.is_node(n)]
    while todo:
        node = todo.pop()
        if node in needed or node in outputs:
            continue
        needed.add(node)
        todo.extend(node.all_input_nodes)
    leaking = [n for n in graph.nodes if n in needed and n in core.inside and n not in _all_descendants(outputs)]
    if leaking:
        last = leaking[-1]
        raise Refused("CB238", graph.line(last), op=graph.op_name(last))


def _all_descendants(nodes: Sequence[Any]) -> frozenset[Any]:
    return frozenset[Any]().union(*(descendants(n) for n in nodes))
