"""The score site of kernels that compute, mask and fold a score in one element loop.

    for (y..) { sum = q . k; sum *= scale; if (..) sum = -INF; S[y] = sum; if (sum > m) m = sum; }

There is no point after the loop where raw scores are complete and nothing has read them: the place is inside, after
the statement that finished the score and before the one that masks it or folds it into the row's maximum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..ir.anchors import ElementNest, MaskSite, ScoreSite
from . import addresses, tree
from .scope_names import names_at
from .shape_types import Tile, look, same_tile
from .syntax import Syn
from .trace import Assign
from .values import Node, Value


def score_site(f: Any, statement: Syn, *, untested: bool = False) -> ScoreSite | None:
    """The site inside `statement` (a statement of the KV loop's body, as `f`, the anchors' Finder, found it); None
    when the score is masked in the statement that computes it. `untested`: the text masks no score itself.
    """
    event = _last_of_first(f.e, statement) if untested else _finished(f.e, statement)
    at = event.place.site if event is not None else None
    if event is None and untested:
        event, at = _ending_with_keys(f, statement)
    if event is None or at is None or event.place.callee is not None:
        return None
    block, inner = _block_of(statement, at)
    following = tree.after(block, inner) if block is not None and inner is not None else None
    assignment = next(iter(tree.find(f.body, frozenset({"assignment_expression"}), *at)), None)
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
    indent = tree.indent_at(f.source, inner.start)
    return ScoreSite(offset, indent, nest, names, f.unit_text(), f.span(inner))


def before_mask(f: Any, mask: MaskSite) -> ScoreSite | None:
    """The site directly before a test that every element goes through. Where the statement also computes what it masks,
    ``s = cond ? acc * scale : fill;``, that value is taken out of it (`ScoreSite.raw`). None where no statement can
    stand before it, or the test is made on some tiles only.
    """
    at = (mask.assignment.start, mask.assignment.end)
    path = tree.path_to(f.body, at)
    block = next((n for n in reversed(path) if n.type == "compound_statement" and (n.start, n.end) != at), None)
    inner = tree.statement_in(block, at) if block is not None else None
    if mask.guard is not None or inner is None or (inner.start, inner.end) != at:
        return None
    if f.source.data[tree.line_start(f.source, at[0]) : at[0]].strip():
        return None  # something else begins on that line
    raw = _raw(f, inner, mask)
    if inner.type != "if_statement" and raw is None:
        return None
    before = [k.end for k in block.kids if k.end <= inner.start] if block is not None else []
    start = tree.leading_offset(f.source, before[-1], inner.start) if before else tree.line_start(f.source, inner.start)
    nest = ElementNest((), (), mask.nest.element, mask.nest.row, mask.nest.col)
    kept = None if raw is None or f.text(raw) == mask.nest.element else f.span(raw)
    indent = tree.indent_at(f.source, inner.start)
    return ScoreSite(start, indent, nest, mask.names, f.unit_text(), f.span(inner), raw=kept)


def _raw(f: Any, statement: Syn, mask: MaskSite) -> Syn | None:
    """The value that ``element = cond ? value : fill`` keeps where it does not mask."""
    assignment = next(
        iter(tree.find(statement, frozenset({"assignment_expression"}), statement.start, statement.end)), None
    )
    right = assignment.get("right") if assignment is not None else None
    value = tree.bare(right) if right is not None else None
    if assignment is None or value is None or value.type != "conditional_expression" or assignment.op not in ("", "="):
        return None
    branches = [value.get("consequence"), value.get("alternative")]
    return next((b for b in branches if b is not None and not b.start <= mask.fill.start < b.end), None)


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
    # A score that only a store to shared memory keeps: its value leads to the local that holds it.
    value: Value = first.version if isinstance(first, Assign) else getattr(first, "value", None)
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


_FILL = -1e3


@dataclass(frozen=True)
class MaskedLocal:
    """The assignment that masks a score in a local, and one that says which score it is."""

    event: Assign
    score: Assign


def _is_fill(value: Any) -> bool:
    number = look(value)
    return isinstance(number, float) and number < _FILL


def masked_local(e: Any, statement: Syn) -> MaskedLocal | None:
    """The assignment in `statement` that masks the first score, where a local without subscripts holds it."""
    score: Assign | None = None
    for event in addresses.events_of(e.machine.trace.items):
        inside = statement.start <= event.place.site[0] and event.place.site[1] <= statement.end
        if not isinstance(event, Assign) or not inside or event.place.callee is not None or event.cells.dims:
            continue
        value, tile = _bare(event.value), e.shapes.info(event.version)
        known = isinstance(tile, Tile) and tile.axis == "j"
        if isinstance(value, Node) and value.op == "select" and any(isinstance(look(x), float) for x in value.args):
            if known:
                return MaskedLocal(event, event)
        elif _is_fill(value) and score is not None and score.cells is event.cells:
            return MaskedLocal(event, score)  # under a condition that all threads agree on
        elif known:
            score = event
    return None


def _last_of_first(e: Any, statement: Syn) -> Assign | None:
    """The last assignment to the first score that the statement works on, where that takes no part in a test."""
    found: Assign | None = None
    first: Tile | None = None
    for event in addresses.events_of(e.machine.trace.items):
        if not isinstance(event, Assign) or not (
            statement.start <= event.place.site[0] and event.place.site[1] <= statement.end
        ):
            continue
        tile = e.shapes.info(event.version)
        value = _bare(event.value)
        filled = (
            isinstance(value, Node) and value.op == "select" and any(isinstance(look(x), float) for x in value.args)
        )
        if not isinstance(tile, Tile) or tile.axis != "j":
            continue
        if filled and first is not None and same_tile(first, tile):
            return None  # it goes on under a condition of the loop, where no statement of its own stands
        if first is None or same_tile(first, tile):
            found, first = event, tile
    return found


def _ending_with_keys(f: Any, statement: Syn) -> tuple[Assign | None, tuple[int, int] | None]:
    """The first score that a loop which ends with the keys sets, and the last statement that sets it: what a trip of
    such a loop writes is known at its end (`tails.py`), so that the place is looked for in the text.
    """
    for event in addresses.events_of(f.e.machine.trace.items):
        inside = statement.start <= event.place.site[0] and event.place.site[1] <= statement.end
        if not isinstance(event, Assign) or not inside or not event.cells.dims or event.place.callee is not None:
            continue
        value, tile = _bare(event.value), f.e.shapes.info(event.version)
        if not isinstance(tile, Tile) or tile.axis != "j" or not isinstance(value, Node):
            continue
        if value.uid not in f.e.machine.unset:
            continue
        named = [n for n in statement.walk() if n.type == "assignment_expression" and _base(n) == event.cells.name]
        return (event, (named[-1].start, named[-1].end)) if named else (None, None)
    return None, None


def _base(assignment: Syn) -> str:
    """The name of what is assigned to: ``s`` of ``s[j] = x``."""
    left = assignment.get("left")
    while left is not None and left.type == "subscript_expression":
        left = left.get("argument")
    return left.text if left is not None and left.type == "identifier" else ""


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
