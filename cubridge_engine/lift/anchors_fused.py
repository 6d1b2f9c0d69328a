"""The score site of kernels that compute, mask and fold a score in one element loop.

    for (y..) { sum = q . k; sum *= scale; if (..) sum = -INF; S[y] = sum; if (sum > m) m = sum; }

There is no point after the loop where raw scores are complete and nothing has read them: the place is inside, after
the statement that finished the score and before the one that masks it or folds it into the row's maximum.
"""

from __future__ import annotations

from typing import Any

from ..ir.anchors import ElementNest, ScoreSite
from . import addresses, tree
from .scope_names import names_at
from .shape_types import Tile
from .syntax import Syn
from .trace import Assign
from .values import Node, Value


def score_site(f: Any, statement: Syn) -> ScoreSite | None:
    """The site inside `statement` (a statement of the KV loop's body, as `f`, the anchors' Finder, found it); None
    when the score is masked in the statement that computes it.
    """
    event = _finished(f.e, statement)
    if event is None or event.place.callee is not None:
        return None
    block, inner = _block_of(statement, event.place.site)
    following = tree.after(block, inner) if block is not None and inner is not None else None
    assignment = next(iter(tree.find(f.body, frozenset({"assignment_expression"}), *event.place.site)), None)
    left = assignment.get("left") if assignment is not None else None
    tile = f.e.shapes.info(event.version)
    if inner is None or following is None or not isinstance(tile, Tile):
        return None
    element = f.text(left) if left is not None else event.cells.name if not event.cells.dims else None
    key = (following.start, following.end)
    row, col = f.coordinate_texts(key, f.elements_at(event, None), statement)
    if element is None or row is None or col is None:
        return None
    offset = tree.leading_offset(f.source, inner.end, following.start)
    nest = ElementNest((), (), element, row, col)
    names = names_at(f.e, f.kernel, key, tile.i)
    return ScoreSite(offset, tree.indent_at(f.source, inner.start), nest, names, f.unit_text(), f.span(inner))


def is_fused(e: Any, statement: Syn) -> bool:
    """True when the scores that `statement` computes are also masked or folded in it."""
    for kind, data in e.sites:
        events = data[1] if kind == "reduce" else [data[1]] if kind in ("mask", "map") else []
        for event in events if isinstance(events, list) else [events]:
            site = getattr(getattr(event, "place", None), "site", None)
            if site is not None and statement.start <= site[0] and site[1] <= statement.end:
                return True
    return False


def _finished(e: Any, statement: Syn) -> Assign | None:
    """The assignment after which the first element's score is complete and not yet masked."""
    by_version = {
        event.version.uid: event
        for event in addresses.events_of(e.machine.trace.items)
        if isinstance(event, Assign) and statement.start <= event.place.site[0] and event.place.site[1] <= statement.end
    }
    first = next((ev for kind, ev in _tile_events(e) if kind in ("score", "mask", "qk") and ev is not None), None)
    value: Value = first.version if isinstance(first, Assign) else None
    found: Assign | None = None
    while isinstance(value, Node):
        if value.op == "ver":
            found = by_version.get(value.uid)
            value = value.args[0]
            if isinstance(value, Node) and value.op in ("ver", "select", "join"):
                continue
            return found
        if value.op not in ("select", "join"):
            return None
        branches = [x for x in value.args[1:] if not isinstance(_bare(x), float)]
        if len(branches) != 1:
            return None
        found, value = None, branches[0]
    return found


def _bare(value: Value) -> Value:
    while isinstance(value, Node) and value.op == "ver":
        value = value.args[0]
    return value


def _tile_events(e: Any) -> list[tuple[str, Any]]:
    return [(kind, data[1]) for kind, data in e.sites if kind in ("score", "mask")]


def _block_of(root: Syn, site: tuple[int, int]) -> tuple[Syn | None, Syn | None]:
    """The innermost block around `site`, and its statement that covers it."""
    blocks = [n for n in tree.path_to(root, site) if n.type == "compound_statement"]
    if not blocks:
        return None, None
    return blocks[-1], tree.statement_in(blocks[-1], site)
