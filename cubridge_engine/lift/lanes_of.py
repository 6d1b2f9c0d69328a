"""Coordinates of values that a thread has from other lanes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .exchanges import Origin
from .shape_types import Info, Row, Tile, unrounded
from .values import Node, Store, Value


def gathered(store: Store, info_of: Callable[[Value], Info], moved: list[Origin]) -> Tile | None:
    """The coordinates of elements of S or P that threads have exchanged."""
    i, c = np.zeros(store.threads, dtype=np.int64), np.zeros(store.threads, dtype=np.int64)
    for origin in moved:
        info = info_of(unrounded(origin.value))
        if not isinstance(info, Tile) or info.axis != "j":
            return None
        from_ = origin.source[origin.holders]
        i[origin.holders], c[origin.holders] = info.i[from_], info.c[from_]
    return Tile("j", i, c)


def other_lane(store: Store, info_of: Callable[[Value], Info], node: Node) -> Info:
    """A value of another lane of the warp: the coordinates that it has there."""
    info = info_of(node.args[0])
    threads = np.arange(store.threads)
    source = threads - threads % 32 + np.asarray(node.data[1])
    if int(source.max()) >= store.threads:
        return None
    if isinstance(info, Tile):
        return Tile(info.axis, info.i[source], info.c[source])
    return Row(info.i[source], info.partial) if isinstance(info, Row) else None
