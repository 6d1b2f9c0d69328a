"""Which lines of the spec stand behind the parts of a template."""

from __future__ import annotations

import math
from typing import Any

from ..ir.expr import Read
from .elements import Elements
from .nodes import walk
from .recognise import Template
from .trace import Line


def _grows(el: Elements, node: Any) -> bool:
    """An expand that repeats elements, as sharing KV heads does; matmul also expands to the shape it already has."""
    return math.prod(el.shape(node)) > math.prod(el.shape(el.graph.arguments(node)["self"]))


def lines_of(el: Elements, t: Template) -> dict[str, Line]:
    """The user's lines behind score, mask, normaliser, head map and operands."""
    graph = el.graph
    order = {node: n for n, node in enumerate(graph.nodes)}
    scores = {t.roles[r] for r in "qk"}
    on_path = [n for n in sorted(el.visited, key=order.__getitem__) if graph.line(n)]
    hot = [n for n in on_path if scores <= graph.depends(n) and t.roles["v"] not in graph.depends(n) - scores]
    products = [n for n in hot if graph.op_name(n) in ("bmm", "mm", "baddbmm", "sum", "scaled_dot_product_attention")]
    fused = [n for n in on_path if graph.op_name(n) == "scaled_dot_product_attention"]
    norms = [n for n in hot if graph.op_name(n) in ("_softmax", "_safe_softmax", "exp", "logsumexp", "_log_softmax")]
    fills = [n for n in sorted(el.fills, key=order.__getitem__) if graph.line(n)]
    grown = [
        n
        for n in on_path
        if graph.op_name(n) == "expand" and graph.depends(n) == frozenset((t.roles["k"],)) and _grows(el, n)
    ]

    found: dict[str, Any] = {
        "score": (products or fused)[:1],
        "normaliser": (norms or fused)[-1:] if t.normaliser == "softmax" else hot[-1:],
        "head_map": (grown or fused)[:1],
    }
    if t.mask is not None:
        found["mask"] = ([n for n in fills if scores & graph.depends(n)] or fills or fused)[-1:]
    if graph.flex:
        # The call stands for the two products; what a modification does has lines of its own.
        call = {graph.line(n) for n in norms[-1:]}
        own = [n for n in on_path if t.roles["v"] not in graph.depends(n) and graph.line(n) not in call]
        conditions = [n for n in own if graph.kind_of(n) == "bool" and not scores & graph.depends(n)]
        found["score"] = [n for n in own if scores <= graph.depends(n)][-1:] or found["score"]
        if t.mask is not None:
            found["mask"] = conditions[-1:] or found["mask"]
    lines = {part: line for part, nodes in found.items() for n in nodes if (line := graph.line(n))}
    for name in graph.names:
        line = graph.use_line(name)
        if line:
            lines.setdefault(name, line)
    if t.sink is not None:
        reads = [e.tensor for e in walk(t.sink) if isinstance(e, Read)]
        line = lines.get(reads[0]) if reads else lines.get("normaliser")
        if line:
            lines["sink"] = line
    return lines
