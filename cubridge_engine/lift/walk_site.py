"""Where the text takes the tile of a trip from its loop variable: what must change to make it walk a list of tiles.

Every use of the loop variable is looked at. One that chooses rows of K and V takes the tile from the list instead; one
that chooses a pipeline slot, or asks whether there is another trip, stays. A use of any other kind, and the loop has no
such site.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..ir.anchors import TileIndexUse, WalkSite, WalkUse
from ..ir.expr import Var
from ..ir.nodes import Copy, For
from . import tree, units
from .machine import Definition
from .syntax import Syn

if TYPE_CHECKING:
    from .anchors_find import Finder

_COMPARISONS = frozenset({"<", "<=", ">", ">=", "!=", "=="})
_SLOT = frozenset({"&", "%"})


class _Unclear(Exception):
    """A use of the tile's index whose meaning is not known."""


@dataclass
class _Helper:
    """A device function that is given the tile's index: its products with Bc, and whether the index is used else."""

    definition: Definition
    rows: list[Syn]
    keeps_index: bool


@dataclass
class _Uses:
    found: list[WalkUse] = field(default_factory=list[WalkUse])
    helpers: dict[str, _Helper] = field(default_factory=dict[str, _Helper])
    calls: dict[str, int] = field(default_factory=dict[str, int])


def walk_site(f: Finder, prologue: tuple[TileIndexUse, ...]) -> WalkSite | None:
    """What to change, or None when the text has a use that a list would leave wrong."""
    loop = f.e.kv_loop
    if loop is None or f.loop is None or f.loop.type != "for_statement" or loop.lo != 0 or f.loop_body is None:
        return None
    if f.loop_body.type != "compound_statement" or loop.step not in (1, f.e.problem.Bc):
        return None
    kinds = {use.what for use in prologue}
    if loop.step != 1:
        return _column_site(f) if loop.partner is None and kinds <= {"row0", "slot"} else None
    uses = _Uses()
    try:
        _in_body(f, uses, f.loop_body, loop.name)
        if loop.partner is not None:  # a producer's loop over the same tiles
            _in_body(f, uses, loop.partner.syntax.get("body"), loop.partner.name)
        for use in prologue:
            _in_prologue(f, uses, use)
        _helpers_are_ours(f, uses)
    except _Unclear:
        return None
    for name in uses.helpers:
        _in_helper(f, uses, name)
    return WalkSite(tuple(uses.found), None, f.loop_body.start + 1, tree.indent_at(f.source, f.loop_body.kids[0].start))


def _column_site(f: Finder) -> WalkSite | None:
    """A loop over first columns: its header counts trips instead, and its body begins by looking the column up."""
    assert f.loop is not None
    assert f.loop_body is not None
    start, update = f.loop.get("initializer"), f.loop.get("update")
    loops = [op for op in units.operations(f.kernel.body) if isinstance(op, For) and op.role == "kv_loop"]
    if start is None or start.type != "declaration" or update is None or not loops or not f.loop_body.kids:
        return None
    own = (Var("kv0"), Var(loops[0].iv))
    if any(isinstance(op, Copy) and op.row0 not in own for op in units.operations(loops[0].body)):
        return None
    indent = tree.indent_at(f.source, f.loop_body.kids[0].start)
    return WalkSite((), f.span((start.start, update.end)), f.loop_body.start + 1, indent)


# ---- one use --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Position:
    """An expression ``variable + ahead`` and the nodes around it, innermost last."""

    syn: Syn
    base: str
    ahead: int
    around: list[Syn]


def _position(f: Finder, root: Syn, node: Syn) -> _Position:
    """The largest ``variable + number`` around an identifier, parentheses included."""
    path = tree.path_to(root, (node.start, node.end))
    while path and path[-1].start == node.start and path[-1].end == node.end:
        path.pop()
    here, ahead = node, 0
    while path:
        parent = path[-1]
        if parent.type == "parenthesized_expression":
            here = path.pop()
            continue
        other = _other(parent, here) if parent.type == "binary_expression" and parent.op == "+" else None
        number = f.constant(other) if other is not None else None
        if not isinstance(number, int):
            break
        ahead += number
        here = path.pop()
    return _Position(here, node.text, ahead, path)


def _other(binary: Syn, side: Syn) -> Syn | None:
    left, right = binary.get("left"), binary.get("right")
    if left is None or right is None:
        return None
    return right if left.start <= side.start and side.end <= left.end else left


def _is_row(f: Finder, parent: Syn | None, side: Syn) -> bool:
    """``position * Bc``."""
    if parent is None or parent.type != "binary_expression" or parent.op != "*":
        return False
    other = _other(parent, side)
    return other is not None and f.constant(other) == f.e.problem.Bc


def _is_slot(f: Finder, parent: Syn | None, side: Syn) -> bool:
    if parent is None or parent.type != "binary_expression" or parent.op not in _SLOT:
        return False
    other = _other(parent, side)
    return other is not None and isinstance(f.constant(other), int)


def _asks_for_more(f: Finder, parent: Syn | None, side: Syn) -> bool:
    """A comparison with the loop's bound, or with a number."""
    if parent is None or parent.type != "binary_expression" or parent.op not in _COMPARISONS:
        return False
    other = _other(parent, side)
    bound = f.e.kv_loop.hi_range if f.e.kv_loop is not None else None
    if other is None or bound is None:
        return False
    return other.text == f.source.data[bound[0] : bound[1]].decode() or isinstance(f.constant(other), int)


def _classify(f: Finder, uses: _Uses, root: Syn, node: Syn) -> None:
    at = _position(f, root, node)
    parent = at.around[-1] if at.around else None
    if _is_row(f, parent, at.syn):
        uses.found.append(WalkUse(f.span(at.syn), "tile", at.base, at.ahead))
    elif parent is not None and parent.type == "argument_list":
        _argument(f, uses, at.around, at)
    elif not _is_slot(f, parent, at.syn) and not _asks_for_more(f, parent, at.syn):
        raise _Unclear


def _argument(f: Finder, uses: _Uses, around: list[Syn], at: _Position) -> None:
    """A call that is given the tile's index: rows and slots are told apart in the function."""
    call, arguments = around[-2] if len(around) > 1 else None, around[-1]
    name = _called(call)
    place = next((n for n, kid in enumerate(arguments.kids) if kid.start <= at.syn.start < kid.end), None)
    if name is None or place is None:
        raise _Unclear
    helper = _helper(f, uses, name, place)
    uses.calls[name] = uses.calls.get(name, 0) + 1
    if not helper.rows:
        return
    if not helper.keeps_index:
        uses.found.append(WalkUse(f.span(at.syn), "tile", at.base, at.ahead))
        return
    end = arguments.kids[-1].end
    uses.found.append(WalkUse(f.span((end, end)), "argument", at.base, at.ahead))


def _called(call: Syn | None) -> str | None:
    callee = call.get("function") if call is not None and call.type == "call_expression" else None
    if callee is not None and callee.type == "template_function":
        callee = callee.get("name")
    return callee.text if callee is not None and callee.type == "identifier" else None


def _helper(f: Finder, uses: _Uses, name: str, place: int) -> _Helper:
    from .kernel_run import parameter_name

    if name in uses.helpers:
        return uses.helpers[name]
    known = f.e.machine.functions.get(name, [])
    if len(known) != 1 or place >= len(known[0].params) or known[0].at is not None:
        raise _Unclear
    definition = known[0]
    own = parameter_name(definition.params[place])
    helper = _Helper(definition, [], False)
    for node in definition.body.walk():
        if node.type != "identifier" or node.text != own:
            continue
        at = _position(f, definition.body, node)
        parent = at.around[-1] if at.around else None
        if _is_row(f, parent, at.syn) and at.ahead == 0 and parent is not None:
            helper.rows.append(parent)
        elif _is_slot(f, parent, at.syn):
            helper.keeps_index = True
        else:
            raise _Unclear
    if helper.rows and helper.keeps_index:
        uses.helpers[name] = helper
    return helper


def _in_helper(f: Finder, uses: _Uses, name: str) -> None:
    """A new parameter for the first key row, in place of the products."""
    helper = uses.helpers[name]
    end = helper.definition.params[-1].end
    uses.found.append(WalkUse(f.span((end, end)), "parameter", name, 0))
    uses.found += [WalkUse(f.span(row), "name", name, 0) for row in helper.rows]


def _in_body(f: Finder, uses: _Uses, body: Syn, name: str) -> None:
    for node in body.walk():
        if node.type == "identifier" and node.text == name:
            _classify(f, uses, body, node)


def _in_prologue(f: Finder, uses: _Uses, use: TileIndexUse) -> None:
    producer = f.e.kv_loop.partner if f.e.kv_loop is not None else None
    if use.what == "slot" or (producer is not None and producer.lo_range == (use.span.start, use.span.end)):
        return  # where a walk starts is the same in a list
    if use.what == "row0":
        uses.found.append(WalkUse(use.span, "row0", "", 0))
        return
    path = tree.path_to(f.body, (use.span.start, use.span.end))
    literal = path[-1]
    around = path[:-1]
    if around and around[-1].type == "argument_list":
        _argument(f, uses, around, _Position(literal, "", 0, around))
    elif around and _is_row(f, around[-1], literal):
        uses.found.append(WalkUse(use.span, "tile", "", 0))
    else:
        raise _Unclear


def _helpers_are_ours(f: Finder, uses: _Uses) -> None:
    """A function that gets a new parameter is called nowhere else."""
    counts = dict.fromkeys(uses.helpers, 0)
    stack = [f.source.root]
    while stack:
        node = stack.pop()
        stack.extend(node.named_children)
        if node.type != "call_expression":
            continue
        callee = node.child_by_field_name("function")
        if callee is not None and callee.type == "template_function":
            callee = callee.child_by_field_name("name")
        name = f.source.clean_text(callee) if callee is not None else ""
        if name in counts:
            counts[name] += 1
    if any(counts[name] != uses.calls.get(name) for name in counts):
        raise _Unclear
