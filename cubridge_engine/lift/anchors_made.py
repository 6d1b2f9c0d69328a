"""Loops of our own over the scores of a thread, for a text that has none which names each of them by its subscripts:
elements that are masked two at a time, or by numbers.
"""

from __future__ import annotations

import re
from math import prod
from typing import Any

from ..ir.anchors import ElementNest, Names
from . import addresses
from .scope_names import names_at
from .shape_types import Tile
from .syntax import Syn
from .trace import Assign

_NAMES = ("nb", "e", "x", "y")


def made_nest(f: Any, statement: Syn, following: Syn) -> tuple[ElementNest, Names] | None:
    """Loops over the local array that holds the scores behind `statement`, to stand before `following`; None where
    there is no such array, or its elements' rows and columns are no sums over the subscripts. `f`: the anchors' Finder.
    """
    found = _scores(f, statement)
    key = (following.start, following.end)
    if found is None or key not in f.e.machine.snapshots:
        return None
    cells, tiles = found
    if len(tiles) != prod(cells.dims) or not cells.name.isidentifier() or len(cells.dims) > len(_NAMES):
        return None
    taken = set(re.findall(r"\w+", f.source.data.decode("utf-8", "replace")))
    names = [next(n for n in (name, *(f"{name}{k}" for k in range(9))) if n not in taken) for name in _NAMES]
    names = names[: len(cells.dims)]
    every = [(tile, _subscripts(names, cells.dims, index)) for index, tile in sorted(tiles.items())]
    row, col = f.texts_over(key, every)
    if row is None or col is None:
        return None
    headers = tuple(
        f"#pragma unroll\nfor (int {name} = 0; {name} < {extent}; ++{name})"
        for name, extent in zip(names, cells.dims, strict=True)
    )
    element = cells.name + "".join(f"[{name}]" for name in names)
    return ElementNest(headers, (), element, row, col), names_at(f.e, f.kernel, key, every[0][0].i)


def _scores(f: Any, statement: Syn) -> tuple[Any, dict[int, Tile]] | None:
    """The array whose elements `statement` leaves as scores, and which element each is."""
    arrays: dict[int, tuple[Any, dict[int, Tile]]] = {}
    for event in addresses.events_of(f.e.machine.trace.items):
        inside = statement.start <= event.place.site[0] and event.place.site[1] <= statement.end
        if not isinstance(event, Assign) or not inside or not event.cells.dims:
            continue
        tile = f.e.shapes.info(event.version)
        if isinstance(tile, Tile) and tile.axis == "j":
            arrays.setdefault(event.cells.oid, (event.cells, {}))[1][event.index] = tile
    return next(iter(arrays.values())) if len(arrays) == 1 else None


def _subscripts(names: list[str], dims: tuple[int, ...], index: int) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, extent in zip(reversed(names), reversed(dims), strict=True):
        index, found[name] = divmod(index, extent)
    return dict(reversed(found.items()))
