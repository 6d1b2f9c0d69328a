"""Loops that take each score into the softmax as soon as it is there: m, l and O are updated once per key.

    m' = max(m, s);  l = l * exp(m - m') + exp(s - m');  O = O * exp(m - m') + exp(s - m') * v

Many such steps leave what one step with all their scores leaves, up to rounding: that is the step of a tile. Here the
keys of a trip are gathered into a tile, and their steps replaced by that of the tile. Which step that is (its unit,
whether it survives a row without keys, whether O is divided by l each time) is found by trying: its numbers must be
those of the kernel's own steps, on random scores, with keys and whole rows masked (`per_key_numbers.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..ir.expr import Call, Expr, Var, free_vars
from ..ir.nodes import For, If, Mask, Op
from .addresses import events_of
from .machine import Machine, bare, value_kind
from .per_key_numbers import Key, Row, fitting
from .per_key_tile import Writer
from .shape_types import Tile
from .shapes import Shapes
from .trace import Assign, Branch, Carried, Loop, MemoryStore
from .values import Node, Poly, Store, Value
from .walking import walk

_MOST = 512  # keys of a trip


@dataclass(frozen=True, slots=True)
class Folded:
    """Steps of keys were replaced. `open_start`: a row that has seen no key becomes NaN at the first that is masked,
    also where a later key of the tile is not; the step of a tile does not show that. `ascending`: keys are
    taken in their order.
    """

    open_start: bool
    ascending: bool


def fold(m: Machine, shapes: Shapes, loop: Loop | None) -> Folded | None:
    """Put the step of a tile in place of the steps of its keys; None for a loop that has none."""
    if loop is None or m.rotation is not None:
        return None
    rows = [row for c in loop.carried if (row := _row(m.store, c)) is not None]
    own = Reach({row.maximum.node for row in rows})
    if not rows or not all(_whole(shapes, row) for row in rows):
        return None
    alone = all(len(row.keys) == 1 for row in rows)  # a tile of one key
    if not (alone or _early(loop, own, rows)) or not _members(shapes, loop, rows):
        return None
    scores = {bare(key.score).uid for row in rows for key in row.keys if isinstance(bare(key.score), Node)}  # type: ignore[union-attr]
    items = _opened(loop.items, own, scores)
    dropped = [] if items is None else [x for x in items if isinstance(x, Assign) and own.reaches(x.version)]
    if items is None or not dropped or any(_elsewhere(own, x) for x in items):
        return None
    steps = [fitting(m, row, [x.version for x in dropped]) for row in rows]
    if any(step is None for step in steps):
        return None
    writer = Writer(m, shapes, loop, items, dropped)
    writer.write([(row, step) for row, step in zip(rows, steps, strict=True) if step is not None])
    tiles = [shapes.info(key.score) for row in rows for key in row.keys[:1]]
    ascending = loop.step > 0 and all(isinstance(t, Tile) and int(t.c.max()) == 0 for t in tiles)
    return Folded(any(step is not None and step.open_start for step in steps), ascending)


def lost_start(folded: Folded | None, body: tuple[Op, ...]) -> str | None:
    """Why the program does not show what a masked key does to a row that has seen none; None where none is masked
    before a key that is not.
    """
    masks = [op.keep for op in _operations(body) if isinstance(op, Mask)]
    if folded is None or not folded.open_start or (folded.ascending and all(map(_only_ends, masks))):
        return None
    return (
        "keys that are taken one by one from a maximum of -inf: where the first key of a row is masked, "
        "exp(-inf - -inf) makes it NaN. Start from a finite maximum, or skip keys that are masked"
    )


def _operations(body: tuple[Op, ...]) -> list[Op]:
    return [x for op in body for x in (op, *(_operations(op.body) if isinstance(op, For | If) else ()))]


def _only_ends(keep: Expr) -> bool:
    """True when a key is kept wherever a later one of the row is."""
    if "j" not in free_vars(keep) and "kv0" not in free_vars(keep):
        return True
    if not isinstance(keep, Call):
        return False
    if keep.op in ("and", "or"):
        return all(map(_only_ends, keep.args))
    if keep.op not in ("lt", "le", "gt", "ge"):
        return False
    low, high = keep.args if keep.op in ("lt", "le") else keep.args[::-1]
    return _grows(low) and not free_vars(high) & {"j", "kv0"}


def _grows(expr: Expr) -> bool:
    """True for the key's index, with something added that does not depend on it."""
    if isinstance(expr, Call) and expr.op in ("add", "sub"):
        first, second = expr.args
        fixed = not free_vars(second) & {"j", "kv0"}
        return (fixed and _grows(first)) or (expr.op == "add" and not free_vars(first) & {"j"} and _grows(second))
    return expr == Var("j")


class Reach:
    """Which values depend on some nodes."""

    def __init__(self, nodes: set[Node]) -> None:
        self._known: dict[int, bool] = {n.uid: True for n in nodes}

    def reaches(self, value: Value) -> bool:
        """True when one of the nodes is below `value`."""
        stack = _nodes(value)
        wanted = list(stack)
        while stack:
            node = stack[-1]
            if node.uid in self._known:
                stack.pop()
                continue
            below = [x for a in node.args for x in _nodes(a)]
            waiting = [x for x in below if x.uid not in self._known]
            if waiting:
                stack.extend(waiting)
            else:
                self._known[node.uid] = any(self._known[x.uid] for x in below)
                stack.pop()
        return any(self._known[n.uid] for n in wanted)


def _nodes(value: Value) -> list[Node]:
    return [value] if isinstance(value, Node) else list(value.atoms()) if isinstance(value, Poly) else []


# ---- the keys of a trip


def _row(store: Store, carried: Carried) -> Row | None:
    """The row whose running maximum a state is; None for other states."""
    if carried.shared or value_kind(carried.after) != "float" or not _may_be_maximum(carried.after):
        return None
    keys = _keys(store, carried.after, carried.node, ())
    return Row(carried, keys) if keys and len(keys) <= _MOST else None


def _may_be_maximum(value: Value) -> bool:
    node = bare(value)
    while isinstance(node, Node) and node.op in ("select", "join"):
        a, b = (bare(x) for x in node.args[1:])
        node = a if isinstance(a, Node) and a.op in ("max", "select", "join") else b
    return isinstance(node, Node) and node.op == "max"


def _keys(store: Store, value: Value, stop: Node, conditions: tuple[Value, ...]) -> list[Key] | None:
    """The scores that ``max(max(stop, s0), s1)`` takes, in order; None for another value."""
    found: list[Key] = []
    reach = Reach({stop})
    node = bare(value)
    while node is not stop:
        if not isinstance(node, Node) or node.op not in ("max", "select", "join"):
            return None
        if node.op == "max":
            score, before = node.args if reach.reaches(node.args[1]) else node.args[::-1]
            if reach.reaches(score) or not reach.reaches(before):
                return None
            found.extend(_unmasked(x, conditions) for x in _largest_of(score)[::-1])
            node = bare(before)
            continue
        parts = _taken(store, node, conditions)
        if parts is None or reach.reaches(node.args[0]):
            return None
        found.extend(reversed(parts[0]))
        node = parts[1]
    return found[::-1]


def _largest_of(score: Value) -> list[Value]:
    """The scores of ``max(s, t)``: keys that are taken together."""
    node = bare(score)
    return [x for a in node.args for x in _largest_of(a)] if isinstance(node, Node) and node.op == "max" else [score]


def _taken(store: Store, node: Node, conditions: tuple[Value, ...]) -> tuple[list[Key], Node] | None:
    """(keys, what was before) of ``condition ? max(before, s) : before``."""
    condition, a, b = node.args
    for holds, new, old in ((condition, a, b), (negated(store, condition), b, a)):
        before, after = bare(old), bare(new)
        if not isinstance(before, Node) or not isinstance(after, Node) or before.uid >= after.uid:
            continue  # what was before is older
        if keys := _keys(store, new, before, (*conditions, holds)):
            return keys, before
    return None


def negated(store: Store, condition: Value) -> Value:
    """``not condition``."""
    if isinstance(condition, Node) and condition.op == "not":
        return condition.args[0]
    return store.node("not", (condition,), kind="bool")


def _unmasked(score: Value, conditions: tuple[Value, ...]) -> Key:
    """``holds ? s : -inf`` is a key with a condition more."""
    while isinstance(score, Node) and score.op == "select" and bare(score.args[2]) == float("-inf"):
        conditions, score = (*conditions, score.args[0]), score.args[1]
    return Key(score, conditions)


def _early(loop: Loop, own: Reach, rows: list[Row]) -> bool:
    """True when some weight is computed before the maximum of the trip is known."""
    complete = Reach({n for row in rows if isinstance(n := bare(row.maximum.after), Node)})
    weights = [n for n in walk([c.after for c in loop.carried]) if n.op in ("exp", "exp2") and own.reaches(n)]
    return any(not complete.reaches(n) for n in weights)


def _whole(shapes: Shapes, row: Row) -> bool:
    """True when a thread takes all keys of the tile of K, each once."""
    product = next((c for n in walk([row.keys[0].score]) if (c := shapes.contraction(n)) is not None), None)
    if product is None or product.role != "qk":
        return False
    tiles = [t for key in row.keys if isinstance(t := shapes.info(key.score), Tile) and t.axis == "j"]
    if len(tiles) != len(row.keys):
        return False
    count = product.right.buffer.rows if product.right.buffer is not None else len(tiles)
    columns = np.sort(np.stack([t.c for t in tiles]), axis=0)
    return len(tiles) == count and bool((columns == np.arange(count)[:, None]).all())


def _members(shapes: Shapes, loop: Loop, rows: list[Row]) -> bool:
    """Give each row the other states that depend on its maximum, and the elements of V in them."""
    reaches = [Reach({row.maximum.node}) for row in rows]
    states = Reach({c.node for c in loop.carried})
    for carried in loop.carried:
        if any(carried is row.maximum for row in rows):
            continue
        mine = [row for row, reach in zip(rows, reaches, strict=True) if reach.reaches(carried.after)]
        if not mine:
            continue
        columns = _columns(shapes, mine[0], carried, states)
        if len(mine) > 1 or carried.shared or columns is None:
            return False
        mine[0].states.append((carried, columns))
    return all(row.states for row in rows)


def _columns(shapes: Shapes, row: Row, carried: Carried, states: Reach) -> dict[int, Node] | None:
    """Of V, the element that each key's weight is multiplied with: {} for none; None when something else is met."""
    tiles = [shapes.info(key.score) for key in row.keys]
    seen = {n.uid for key in row.keys for n in (key.score, bare(key.score)) if isinstance(n, Node)}
    found: dict[int, Node] = {}
    stack = _nodes(carried.after)
    while stack:
        node = stack.pop()
        if node.uid in seen or node.kind == "bool":
            seen.add(node.uid)
            continue
        seen.add(node.uid)
        if node.op != "phi" and not states.reaches(node) and (element := shapes.element(node)) is not None:
            key = next((k for k, t in enumerate(tiles) if isinstance(t, Tile) and (t.c == element.row).all()), None)
            if key is None or key in found:
                return None
            found[key] = node
        elif node.op in ("sload", "gload", "mma", "frag", "fp16", "bf16", "pack", "shfl"):
            return None  # rounded on the way, or not an element of V
        elif node.op != "phi":
            stack.extend(x for a in node.args for x in _nodes(a))
    return found if not found or len(found) == len(row.keys) else None


# ---- events


def _opened(items: list[Any], own: Reach, scores: set[int]) -> list[Any] | None:
    """Events without the uniform conditions around those of the softmax; None when such a condition holds more."""
    result: list[Any] = []
    for item in items:
        inner = list(events_of([*item.then, *item.orelse])) if isinstance(item, Branch) else []
        if not any(isinstance(x, Assign) and (own.reaches(x.version) or _of_score(x, scores)) for x in inner):
            result.append(item)
            continue
        if any(not isinstance(x, Assign | Branch) for x in inner):
            return None
        result.extend(x for x in inner if isinstance(x, Assign))
    return result


def _of_score(event: Assign, scores: set[int]) -> bool:
    value = bare(event.value)
    return isinstance(value, Node) and value.uid in scores


def _elsewhere(own: Reach, item: Any) -> bool:
    """True when something else than an assignment uses the states."""
    inner = list(events_of([item])) if isinstance(item, Branch | Loop) else [item]
    for event in inner:
        if isinstance(event, MemoryStore) and (own.reaches(event.value) or any(map(own.reaches, event.predicates))):
            return True
        if isinstance(event, Branch) and own.reaches(event.condition):
            return True
        if isinstance(event, Assign) and event is not item and own.reaches(event.version):
            return True
    return False
