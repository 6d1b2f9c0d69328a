"""What a kernel's text does not say of a tensor behind a tensor map: its strides and its row count, as symbols."""

from __future__ import annotations

from .values import Node, Store, Value

_MAPS = 1000  # unknowns of the map at position p are numbered from here: 1000 + 8 p
_UNKNOWNS = ("stride_row", "stride_h", "stride_b", "rows")


def unknown(store: Store, position: int, axis: int) -> Node:
    """A stride (in elements) or the row count of the tensor behind the map at `position`."""
    return store.node("param", (), _MAPS + 8 * position + axis, "int")


def is_map_unknown(value: Value) -> bool:
    """True for what `unknown` makes."""
    return isinstance(value, Node) and value.op == "param" and isinstance(value.data, int) and value.data >= _MAPS


def map_names(names: dict[int, str]) -> dict[int, str]:
    """Names of the unknowns of every parameter that may be a map, whatever its own name is."""
    return {
        _MAPS + 8 * position + axis: f"map{position}_{word}"
        for position in names
        for axis, word in enumerate(_UNKNOWNS)
    }
