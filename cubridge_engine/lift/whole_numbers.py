"""Floats that hold whole numbers: a distance kept as a float, to which each element adds its own constant offset.

``float(a) + float(b)`` is ``float(a + b)``: exactly so up to 2^24, which positions in a sequence do not reach. The
same holds for such sums with a factor in every term: ``float(a) * x + 8 * x``.
"""

from __future__ import annotations

from .values import Node, Store, Value, same

_EXACT = 1 << 24
_SIGNS = {"add": 1, "sub": -1}


def whole(store: Store, value: Value) -> Value | None:
    """The integer that a float value holds, when it is made of converted integers and whole constants by sums alone."""
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) <= _EXACT else None
    if not isinstance(value, Node):
        return None
    if value.op == "ver":
        return whole(store, value.args[0])
    if value.op == "float":
        return value.args[0]
    if value.op in _SIGNS and value.kind == "float":
        left, right = (whole(store, part) for part in value.args)
        return None if left is None or right is None else store.add(left, right, _SIGNS[value.op])
    return None


def whole_all(store: Store, values: list[Value]) -> list[Value] | None:
    """The integers of the elements of a tile; None where one is no whole number, or all are plain constants or plain
    conversions, which need no sum.
    """
    summed = any(isinstance(v, Node) and v.op in _SIGNS for v in values)
    differing = any(isinstance(v, float) for v in values) and any(v != values[0] for v in values)
    if not (summed or differing):
        return None
    found = [whole(store, v) for v in values]
    return None if any(v is None for v in found) else [v for v in found if v is not None]


def scaled_all(store: Store, values: list[Value]) -> tuple[list[Value], list[Value]] | None:
    """(integers, factors) of elements that are sums of such products; None where one is not, or none is a sum."""
    if not any(isinstance(v, Node) and v.op in _SIGNS for v in values):
        return None
    found = [_scaled(store, v) for v in values]
    integers = [x[0] for x in found if x is not None]
    factors: list[Value] = [x[1] for x in found if x is not None and x[1] is not None]
    return (integers, factors) if len(factors) == len(values) else None


def _scaled(store: Store, value: Value) -> tuple[Value, Value] | None:
    """(n, x) where a float value is ``float(n) * x``; x is None for 0."""
    if value == 0.0 and isinstance(value, float):
        return 0, None
    if not isinstance(value, Node):
        return None
    if value.op == "ver":
        return _scaled(store, value.args[0])
    if value.op == "mul" and value.kind == "float":
        for number, factor in (value.args, value.args[::-1]):
            integer = whole(store, number)
            if integer is not None and not isinstance(factor, float):
                return integer, factor
        return None
    if value.op in _SIGNS and value.kind == "float":
        left, right = (_scaled(store, part) for part in value.args)
        if left is None or right is None or not (None in (left[1], right[1]) or same(left[1], right[1])):
            return None
        return store.add(left[0], right[0], _SIGNS[value.op]), left[1] if left[1] is not None else right[1]
    return None
