"""Run a part of a traced graph on real tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .cut import FUSED
from .leaves import Leaf
from .trace import Graph


def run(graph: Graph, wanted: Sequence[Any], given: Mapping[Any, Any]) -> list[Any]:
    """Values of the nodes `wanted`, where the nodes of `given` have those values. Raises what the operators raise."""
    import torch

    values: dict[Any, Any] = dict(given)
    needed = _needed(wanted, given)

    def value(x: Any) -> Any:
        return values[x]

    for node in graph.nodes:
        if node not in needed or node in values:
            continue
        if node.op == "placeholder":
            values[node] = graph.constants[graph.input_name(node) or ""]
            continue
        args = torch.fx.map_arg(node.args, value)
        kwargs = torch.fx.map_arg(node.kwargs, value)
        values[node] = _call(graph, node, args, kwargs)
    return [values[n] if graph.is_node(n) else n for n in wanted]


def _call(graph: Graph, node: Any, args: Any, kwargs: Any) -> Any:
    import torch.nn.functional as functional

    if graph.op_name(node) in ("view", "_unsafe_view"):
        return args[0].reshape(*args[1:])  # values given for a node may lie otherwise in memory
    if graph.op_name(node) == FUSED:
        # By its usual name, so that a mode that watches for it sees it.
        names = [a.name for a in node.target._schema.arguments]
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        first = [given.pop(n) for n in ("query", "key", "value")]
        return functional.scaled_dot_product_attention(*first, **given)
    return node.target(*args, **kwargs)


def _needed(wanted: Sequence[Any], given: Mapping[Any, Any]) -> set[Any]:
    found: set[Any] = set()
    todo = [n for n in wanted if hasattr(n, "all_input_nodes")]
    while todo:
        node = todo.pop()
        if node in found or node in given:
            continue
        found.add(node)
        todo.extend(node.all_input_nodes)
    return found


def place(leaf: Leaf, value: Any) -> Any:
    """The value of a leaf's node, as the tensor that the core takes."""
    return value.permute(leaf.perm).reshape(leaf.shape)


def unplace(leaf: Leaf, tensor: Any) -> Any:
    """The inverse of `place`."""
    own = leaf.own_shape()
    back = [leaf.perm.index(d) for d in range(len(own))]
    return tensor.reshape([own[d] for d in leaf.perm]).permute(back)
