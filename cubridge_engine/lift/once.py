"""What a producer's loop does in all trips but the last, or in one of them only.

``if (tile > last) load_k(tile - 1);`` runs ahead by a tile, so there is one less of it than of trips: counters that
move there have moved in every earlier trip. ``if (tile == look_up) next = ...;`` happens once, in a trip that exists
because `look_up` lies between the first tile and the last: what it sets is set behind the loop.
"""

from __future__ import annotations

from .machine import Machine
from .values import Node, Value, same


def more_to_come(condition: Value, counter: Value, last: Value, step: int) -> bool:
    """True for the condition that the trip is not the last."""
    wanted = "gt" if step < 0 else "lt"
    return (
        isinstance(condition, Node)
        and condition.op == wanted
        and same(condition.args[0], counter)
        and same(condition.args[1], last)
    )


def in_one_trip(m: Machine, condition: Value, counter: Value, first: Value, last: Value, step: int) -> bool:
    """True for ``counter == max(first - n, last)`` in a loop from the first tile down to the last (min on the way up):
    the condition holds in exactly one trip.
    """
    if not isinstance(condition, Node) or condition.op != "eq" or not same(condition.args[0], counter):
        return False
    chosen = condition.args[1]
    if not isinstance(chosen, Node) or chosen.op != ("max" if step < 0 else "min"):
        return False
    for limit, other in (chosen.args, chosen.args[::-1]):
        distance = m.store.add(first, other, -1)
        if same(limit, last) and isinstance(distance, int) and distance * step <= 0:
            return True
    return False


def sides(value: Value, before: Value) -> tuple[Value, Value] | None:
    """(condition, new value) of ``condition ? new : before``."""
    if isinstance(value, Node) and value.op == "select" and same(value.args[2], before):
        return value.args[0], value.args[1]
    return None
