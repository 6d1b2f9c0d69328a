"""The places of a kernel that a model may change, each with a name that stays the same from round to round.

What was not understood (opaque1, opaque2 ...), the statements that the steps of attention were read from (scores, mask,
row_max ...), and the anchors of lowering that are smaller than a statement (kv_range.lo, init.l ...) or are places to
insert at (setup, parameters).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from tree_sitter import Node

from ..ir.anchors import Anchors
from ..ir.nodes import Kernel, LaneReduce, Map, Mask, Op, RowMap, RowReduce, Score, StoreRow, StoreTile
from ..ir.validate import iterate
from ..source import SourceFile

STATEMENTS = frozenset(
    {"expression_statement", "declaration", "if_statement", "for_statement", "while_statement", "do_statement"}
)
MAX_GAP = 1  # statements that were understood between two that were not, in one region
MAX_SITES = 40


@dataclass(frozen=True, slots=True)
class Site:
    """Bytes ``[start, end)`` of the kernel's file; none to insert at `start`. `whole`: one or more whole statements."""

    name: str
    start: int
    end: int
    what: str
    whole: bool = True

    def text(self, source: SourceFile) -> str:
        """What stands there now."""
        return source.data[self.start : self.end].decode("utf-8", "replace")


def opaque_sites(source: SourceFile, lifted: Any) -> tuple[Site, ...]:
    """Regions of statements that lifting did not understand: neighbours in one block are one region."""
    wanted = [d.span for d in lifted.diagnostics if d.code == "CB123" and d.span is not None]
    whys = {(d.span.start, d.span.end): d.message for d in lifted.diagnostics if d.code == "CB123" and d.span}
    nodes = {(n.start_byte, n.end_byte): n for n in (_statement(source, s.start, s.end) for s in wanted) if n}
    small = sorted((n for n in nodes.values() if n.type in ("expression_statement", "declaration")), key=_start)
    regions: list[list[Node]] = []
    for node in small:
        if regions and _neighbours(regions[-1][-1], node):
            regions[-1].append(node)
        else:
            regions.append([node])
    # What makes others unreadable comes first: the largest region; then the order of the file.
    regions.sort(key=lambda region: (-len(region), region[0].start_byte))
    found: list[Site] = []
    for region in regions:
        start, end = region[0].start_byte, region[-1].end_byte
        inside = dict.fromkeys(why for (a, b), why in whys.items() if start <= a and b <= end)
        found.append(Site(f"opaque{len(found) + 1}", start, end, "; ".join(inside) or "not understood"))
    return tuple(found[:MAX_SITES])


def edit_sites(source: SourceFile, kernel: Kernel, anchors: Anchors) -> tuple[Site, ...]:
    """The statements of the steps, then what is smaller, then where to insert."""
    found = [*_step_sites(source, kernel), *_anchor_sites(anchors)]
    return tuple(_numbered(found))[:MAX_SITES]


# What a step's statement is called -> what it does. The first type that matches an operation names its statement.
def _step(op: Op) -> tuple[str, str] | None:
    match op:
        case Mask():
            return "mask", "masks the scores of a tile"
        case Score():
            return "scores", "changes the scores of a tile"
        case RowReduce(role="row_max") | LaneReduce(op="max"):
            return "row_max", "the maximum of each row"
        case Map(role="exp"):
            return "weights", "P = exp(S - m)"
        case RowReduce(role="row_sum") | LaneReduce(op="sum"):
            return "row_sum", "the sum of each row"
        case RowMap(role="init"):
            return f"init.{op.row}", "initial state of a row"
        case RowMap():
            return f"row.{op.role}", "state of a row"
        case Map():
            return "rescale", "rescales O"
        case StoreTile():
            return "store", "normalises and stores O"
        case StoreRow():
            return "store.lse", "stores the log-sum-exp"
        case _:
            return None


def _step_sites(source: SourceFile, kernel: Kernel) -> Iterator[Site]:
    seen: dict[tuple[int, int], None] = {}
    for op in iterate(kernel.body):
        named, span = _step(op), getattr(op, "origin").span  # noqa: B009 - every op has one, the base does not say so
        if named is None or span is None or span.path != source.path:
            continue
        node = _statement(source, span.start, span.end)
        if node is None or (node.start_byte, node.end_byte) in seen:
            continue
        seen[node.start_byte, node.end_byte] = None
        yield Site(named[0], node.start_byte, node.end_byte, named[1])


def _anchor_sites(anchors: Anchors) -> Iterator[Site]:
    for score in anchors.score:
        at = score.offset
        yield Site("after_scores", at, at, "insert statements where the scores of a tile are complete, before the mask")
    for mask in anchors.mask:
        yield Site("mask.condition", mask.condition.start, mask.condition.end, "which elements are masked", False)
        if mask.guard is not None:
            yield Site("mask.guard", mask.guard.start, mask.guard.end, "which tiles are tested", False)
    loop = anchors.kv_loop
    if loop is not None:
        yield Site("kv_range.lo", loop.lo.start, loop.lo.end, "where the loop over KV tiles begins", False)
        yield Site("kv_range.hi", loop.hi.start, loop.hi.end, "where the loop over KV tiles ends", False)
    for state in anchors.state:
        yield Site(f"init.{state.role}.value", state.value.start, state.value.end, "an initial value", False)
    if anchors.head is not None:
        yield Site("kv_head", anchors.head.value.start, anchors.head.value.end, "the KV head of a query head", False)
    if anchors.setup_offset is not None:
        at = anchors.setup_offset
        yield Site("setup", at, at, "insert statements before the loop over KV tiles")
    if anchors.signature is not None:
        at = anchors.signature.insert
        yield Site("parameters", at, at, "append parameters to the kernel (begin with a comma)", False)
    for call in anchors.calls:
        yield Site("launch", call.insert, call.insert, "append arguments to a launch (begin with a comma)", False)
    for one in anchors.launchers:
        yield Site("launcher", one.insert, one.insert, "append parameters to a launcher (begin with a comma)", False)


def _numbered(sites: list[Site]) -> Iterator[Site]:
    counts: dict[str, int] = {}
    for site in sites:
        counts[site.name] = counts.get(site.name, 0) + 1
        yield site if counts[site.name] == 1 else replace(site, name=f"{site.name}.{counts[site.name]}")


def _start(node: Node) -> int:
    return node.start_byte


def _statement(source: SourceFile, start: int, end: int) -> Node | None:
    """The innermost whole statement around a byte range."""
    node = source.root.descendant_for_byte_range(start, max(start, end - 1))
    while node is not None and node.type not in STATEMENTS:
        node = node.parent
    return node if node is not None and _in_function(node) else None


def _in_function(node: Node) -> bool:
    parent = node.parent
    while parent is not None:
        if parent.type == "function_definition":
            return True
        parent = parent.parent
    return False


def _neighbours(one: Node, other: Node) -> bool:
    """True in one block, with few statements and no loop or branch between."""
    node, gap = one.next_named_sibling, 0
    while node is not None and node.id != other.id:
        if node.type == "comment":
            node = node.next_named_sibling
            continue
        gap += 1
        if gap > MAX_GAP or node.type not in ("expression_statement", "declaration"):
            return False
        node = node.next_named_sibling
    return node is not None
