"""Loops over a tile of keys that end where the keys do: ``for (j = 0; j < min(32, n - first); ++j)``.

All trips are executed, each under its condition. What a trip adds to a maximum or a sum is then a masked element: -inf
or 0 where the condition does not hold. An element that such a trip would have set, and nothing else has, is -inf there:
whoever reads it does so under the same condition.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from . import arithmetic, dispatch
from .machine import Machine, Scope, bare, tracked
from .syntax import Syn
from .values import UNDEFINED, Node, NotUnderstood, Value, is_uniform, same

LONGEST = 128  # trips

Body = Callable[[], object]


def most_trips(m: Machine, condition: Syn, holds: Value, scope: Scope) -> int | None:
    """The number of trips that the loop makes at most, when a constant says so and a symbol may end it earlier."""
    if not isinstance(holds, Node) or not is_uniform(holds):
        return None
    shortest = _shortest(holds)
    if shortest is not None:
        return shortest if shortest <= LONGEST else None
    while condition.type == "parenthesized_expression":
        condition = condition.kids[0]
    if condition.type != "binary_expression" or condition.op != "&&":
        return None
    for side in (condition.get("left"), condition.get("right")):
        if side is None or side.type != "binary_expression" or side.op not in ("<", "<="):
            continue
        bound = side.get("right")
        try:
            first, last = (dispatch.evaluate(m, x, scope) for x in (side.get("left"), bound) if x is not None)
        except (NotUnderstood, ValueError):
            continue
        if isinstance(first, int) and isinstance(last, int) and last - first + (side.op == "<=") <= LONGEST:
            return last - first + (side.op == "<=")
    return None


def _shortest(holds: Node) -> int | None:
    """C of ``0 < min(C, n)``."""
    if holds.op != "lt" or not isinstance(holds.args[0], int):
        return None
    bound = holds.args[1]
    if not isinstance(bound, Node) or bound.op != "min":
        return None
    numbers = [a for a in bound.args if isinstance(a, int)]
    return numbers[0] - holds.args[0] if len(numbers) == 1 else None


def normal(m: Machine, holds: Value) -> Value:
    """``j < min(C, n - first)`` for j below C as ``first + j < n``, the way a bounds test is written."""
    if not isinstance(holds, Node) or holds.op != "lt" or not isinstance(holds.args[0], int):
        return holds
    at, bound = holds.args
    if not isinstance(at, int) or not isinstance(bound, Node) or bound.op != "min":
        return holds
    number = next(a for a in bound.args if isinstance(a, int))
    if at >= number:
        return False
    rest = next(a for a in bound.args if not isinstance(a, int))
    terms = m.store.poly(rest).terms
    sizes = [k for k, c in terms.items() if len(k) == 1 and k[0].op == "param" and isinstance(c, int) and c == 1]
    if len(sizes) != 1:
        return arithmetic.compare(m, "lt", at, rest)
    limit = sizes[0][0]
    return arithmetic.compare(m, "lt", m.store.add(at, m.store.add(rest, limit, -1), -1), limit)


def trip(m: Machine, holds: Value, body: Body) -> object:
    """Execute one trip where `holds`; returns what the body's execution returned."""
    born, taking_part = m.oid, m.taking_part
    m.taking_part = born if m.silent == 0 else taking_part  # what the body declares is the trip's own
    m.logs.append({})
    m.path.append(holds)
    m.predicates.append(holds)
    m.silent += 1
    try:
        signal = body()
    finally:
        m.silent -= 1
        m.taking_part = taking_part
        m.predicates.pop()
        m.path.pop()
        log = {k: v for k, v in m.logs.pop().items() if v[0].oid <= born}
    for cells, index, old in log.values():
        new = cells.values[index]
        cells.values[index] = old
        m.write(cells, index, _kept(m, holds, new, old) if tracked(cells, new) else m.select(holds, new, old))
    return signal


def _kept(m: Machine, holds: Value, new: Value, old: Value) -> Value:
    """``holds ? new : old`` of a float."""
    if old is UNDEFINED or old is None:
        made = _masked(m, holds, new, -math.inf)
        if isinstance(inner := bare(made), Node):
            m.unset[inner.uid] = holds
        return made
    if old == -math.inf:
        return _masked(m, holds, new, -math.inf)
    if old == 0.0:
        return _masked(m, holds, new, 0.0)
    inner = bare(new)
    if isinstance(inner, Node) and inner.op in ("max", "add"):
        for x, y in (inner.args, inner.args[::-1]):
            if same(bare(x), bare(old)):
                return m.store.node(inner.op, (x, _masked(m, holds, y, -math.inf if inner.op == "max" else 0.0)))
    return m.select(holds, new, old)


def check_read(m: Machine, value: Value) -> None:
    """An element that only such a trip has set is read under the same condition. Raises NotUnderstood."""
    inner = bare(value)
    if isinstance(inner, Node) and inner.uid in m.unset and not any(p is m.unset[inner.uid] for p in m.predicates):
        raise NotUnderstood("an element that is read where it was not set: the loop that sets it ends with the keys")


def _masked(m: Machine, holds: Value, value: Value, fill: float) -> Value:
    """``holds ? value : fill``, where `value` is not that already."""
    inner = bare(value)
    if _is_masked(holds, inner, fill):
        return value
    if fill == 0.0 and isinstance(inner, Node) and inner.op == "mul" and any(_is_zero(holds, a) for a in inner.args):
        return value
    if fill == 0.0 and _is_zero(holds, inner):
        return value
    return m.store.node("select", (holds, value, fill))


def _is_masked(holds: Value, value: Value, fill: float) -> bool:
    value = bare(value)
    return isinstance(value, Node) and value.op == "select" and value.args[0] is holds and value.args[2] == fill


def _is_zero(holds: Value, value: Value) -> bool:
    """True for ``exp(s - m)`` of a score that is -inf where `holds` does not."""
    value = bare(value)
    if not isinstance(value, Node) or value.op not in ("exp", "exp2"):
        return False
    inner = bare(value.args[0])
    score = inner.args[0] if isinstance(inner, Node) and inner.op == "sub" else inner
    return _is_masked(holds, score, -math.inf)
