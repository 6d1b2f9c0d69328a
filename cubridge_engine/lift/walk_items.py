"""Where methods take the tile of a trip from the loop variable, on items that a producer has published.

Such a loop walks down the positions of an item. For a list these become places in its tensor, the first behind the two
numbers of the item's row, and only where a position becomes a key is the list looked up: what asks whether a tile is
the first or the last, or counts stages, stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..ir.anchors import WalkSite, WalkUse
from . import tree
from .bodies import all_bodies
from .syntax import Syn
from .values import Node, Poly, Value, same

if TYPE_CHECKING:
    from .anchors_methods import MethodFinder


def item_walk(f: MethodFinder, first: str, prefix: str) -> WalkSite | None:
    """What to change, or None where a key comes from a position in a way that is not known, or sizes are out of reach.
    `first` is the member of an item that holds its first position, `prefix` stands before the sizes.
    """
    bodies = {body.start: body for body in all_bodies(f.e)}
    products = {n.start: n for body in bodies.values() for n in body.walk() if _is_product(n)}
    found: list[WalkUse] = []
    trip = ""
    for node in products.values():
        if not _makes_key(f, node):
            continue
        name = _position(f, node)
        scope = _scope(f, node)
        if name is None or not any(known.startswith(prefix) for known in scope):
            return None
        found.append(WalkUse(f.span((name.start, name.end)), "tile", name.text, 0))
        if f.body.start <= node.start < f.body.end:
            trip = name.text
    items = [known for known in _names(f) if known.endswith(f".{first}")]
    if not trip or len(items) != 1 or not f.body.kids:
        return None
    return WalkSite(
        tuple(sorted(found, key=lambda use: use.span.start)),
        None,
        f.body.start + 1,
        tree.indent_at(f.source, f.body.kids[0].start),
        trip,
        items[0],
    )


def _is_product(node: Syn) -> bool:
    return node.type == "binary_expression" and node.op == "*"


def _values(f: MethodFinder, node: Syn) -> list[Value]:
    """What an expression was when it was executed the first two times."""
    key = (node.start, node.end)
    return [known[key] for known in (f.e.machine.noted, f.e.machine.noted_again) if key in known]


def _makes_key(f: MethodFinder, node: Syn) -> bool:
    """True for a product of the position of a trip; that of a stage holds a remainder of it."""
    loop = f.e.kv_loop
    assert loop is not None
    own = [x.iv for x in (loop, loop.partner) if x is not None]
    atoms = {
        a for value in _values(f, node) if isinstance(value, Poly | Node) for a in f.e.machine.store.poly(value).atoms()
    }
    return not atoms.isdisjoint(own)


def _position(f: MethodFinder, node: Syn) -> Syn | None:
    """The variable of ``position * Bc``."""
    store, width = f.e.machine.store, f.e.problem.Bc
    sides = [side for side in (node.get("left"), node.get("right")) if side is not None and side.type == "identifier"]
    for side in sides:
        held = [scope[side.text] for scope in _scopes(f, node) if side.text in scope]
        if held and all(any(same(v, store.mul(x, width)) for x in held) for v in _values(f, node)):
            return side
    return None


def _scopes(f: MethodFinder, node: Syn) -> list[dict[str, Value]]:
    """What was visible at the statement around, the first two times."""
    m = f.e.machine
    around = [k for k in m.snapshots if k[0] <= node.start and node.end <= k[1]]
    key = min(around, key=lambda k: k[1] - k[0], default=None)
    return [known[key] for known in (m.snapshots, m.snapshots_again) if key is not None and key in known]


def _scope(f: MethodFinder, node: Syn) -> dict[str, Value]:
    return next(iter(_scopes(f, node)), {})


def _names(f: MethodFinder) -> dict[str, Value]:
    """What is visible where the method that masks begins."""
    return _scope(f, f.body.kids[0]) if f.body.kids else {}
