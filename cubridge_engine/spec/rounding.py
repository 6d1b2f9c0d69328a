"""Where a spec rounds on its way: values held in a narrower float than q has, and than a kernel computes in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .trace import Graph, Line

# They give back elements that were there before, or numbers that the text names: nothing is rounded by them.
_EXACT = frozenset(
    (
        "clone",
        "alias",
        "detach",
        "contiguous",
        "lift_fresh_copy",
        "lift_fresh",
        "lift",
        "view",
        "_unsafe_view",
        "reshape",
        "permute",
        "transpose",
        "t",
        "expand",
        "broadcast_to",
        "unsqueeze",
        "squeeze",
        "slice",
        "select",
        "getitem",
        "cat",
        "slice_scatter",
        "select_scatter",
        "constant_pad_nd",
        "flip",
        "roll",
        "repeat",
        "embedding",
        "index_select",
        "gather",
        "index",
        "full",
        "full_like",
        "new_full",
        "zeros",
        "zeros_like",
        "new_zeros",
        "empty",
        "empty_like",
        "new_empty",
        "ones",
        "ones_like",
        "new_ones",
        "scalar_tensor",
        "fill",
        "tril",
        "triu",
        "where",
        "masked_fill",
        "neg",
        "abs",
    )
)


def roundings(graph: Graph, q: Any) -> Iterator[tuple[Line | None, str]]:
    """The user's lines that round, each with the dtype rounded to, for outputs of `graph`; `q` is the dtype of q.

    Kernels compute in float32 whatever q has, so only what is coarser than both is told.
    """
    import torch

    finest = max(torch.finfo(q).eps, torch.finfo(torch.float32).eps)
    seen: set[tuple[Line | None, str]] = set()
    for node in _needed(graph):
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or not value.dtype.is_floating_point:
            continue
        name = graph.op_name(node)
        if torch.finfo(value.dtype).eps <= finest or name in _EXACT or _from_truth(graph, node, name):
            continue
        found = (graph.line(node), str(value.dtype).removeprefix("torch."))
        if found not in seen:
            seen.add(found)
            yield found


def _from_truth(graph: Graph, node: Any, name: str) -> bool:
    """A bool as 0 and 1 is exact in any dtype."""
    return name in ("_to_copy", "to") and graph.kind_of(node.all_input_nodes[0]) == "bool"


def _needed(graph: Graph) -> list[Any]:
    """Operations that the outputs depend on, in order, as far as the inputs of the graph."""
    needed: set[Any] = set()
    todo = [n for n in graph.outputs if graph.is_node(n)]
    while todo:
        node = todo.pop()
        if node in needed or node.op != "call_function" or graph.input_name(node) is not None:
            continue
        needed.add(node)
        todo += node.all_input_nodes
    return [n for n in graph.nodes if n in needed]
