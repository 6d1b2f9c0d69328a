"""Which tiles of a mask are empty, partial or full: the mask evaluated, row of tiles by row of tiles."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .evaluate import evaluate
from .expr import Expr

Array = NDArray[Any]
Kept = Callable[[Array, Array], Any]
EMPTY, PARTIAL, FULL = 0, 1, 2
LETTERS = "EPF"
MAX_CELLS = 128  # in each direction: what a person can tell apart in a picture
MAX_PAIRS = 1 << 30  # (query, key) pairs: some tens of seconds of evaluation


@dataclass(frozen=True, slots=True)
class TileMap:
    """`tiles` [ceil(Sq / Br), ceil(Sk / Bc)] of EMPTY, PARTIAL or FULL; `attended` counts pairs that are kept.

    Keys and queries beyond the lengths belong to no tile: a last tile that is cut off can be full.
    """

    tiles: NDArray[np.uint8]
    attended: int
    Sq: int
    Sk: int
    Br: int
    Bc: int

    @property
    def density(self) -> float:
        """Share of all (query, key) pairs that are attended."""
        return self.attended / max(self.Sq * self.Sk, 1)

    def counts(self) -> dict[str, int]:
        """How many tiles are empty, partial, full."""
        names = ("empty", "partial", "full")
        return {name: int((self.tiles == kind).sum()) for kind, name in enumerate(names)}

    def cells(self, most: int) -> tuple[int, list[str]]:
        """(tiles per cell in each direction, rows of letters E, P, F) with at most `most` cells in each direction.

        A cell of several tiles is full or empty only when all of them are.
        """
        step = max(1, -(-max(self.tiles.shape) // most))
        rows = range(0, self.tiles.shape[0], step)
        columns = range(0, self.tiles.shape[1], step)
        return step, ["".join(_letter(self.tiles[r : r + step, c : c + step]) for c in columns) for r in rows]

    def picture(self, most: int = MAX_CELLS) -> dict[str, Any]:
        """As JSON: ``tiles_per_cell, cells, counts, density``."""
        step, cells = self.cells(most)
        return {"tiles_per_cell": step, "cells": cells, "counts": self.counts(), "density": self.density}


def _letter(block: NDArray[np.uint8]) -> str:
    low, high = int(block.min()), int(block.max())
    return LETTERS[low] if low == high else LETTERS[PARTIAL]


def kept_by(keep: Expr | None, env: Mapping[str, Any], tensors: Mapping[str, Array] | None = None) -> Kept:
    """A condition over ``i``, ``j`` and the names in `env` as a function of rows and columns; None keeps everything."""

    def kept(rows: Array, columns: Array) -> Any:
        return True if keep is None else evaluate(keep, {**env, "i": rows, "j": columns}, tensors or {})

    return kept


def tile_map(kept: Kept, *, Sq: int, Sk: int, Br: int, Bc: int) -> TileMap:
    """Classify the tiles of a mask: ``kept(rows, columns)`` with indices [n, 1] and [1, Sk] says what is attended.

    It is called once per row of tiles. Raises what it raises (UnboundName), and ValueError for sizes below 1 or more
    than MAX_PAIRS pairs.
    """
    if min(Sq, Sk, Br, Bc) < 1 or Sq * Sk > MAX_PAIRS:
        raise ValueError(f"Lengths and tiles are at least 1, and Sq times Sk at most {MAX_PAIRS}")
    q_tiles, kv_tiles = -(-Sq // Br), -(-Sk // Bc)
    tiles = np.empty((q_tiles, kv_tiles), dtype=np.uint8)
    starts = np.arange(0, Sk, Bc)
    widths = np.minimum(starts + Bc, Sk) - starts
    columns = np.arange(Sk).reshape(1, -1)
    attended = 0
    for tile in range(q_tiles):
        rows = np.arange(tile * Br, min((tile + 1) * Br, Sq)).reshape(-1, 1)
        true = np.broadcast_to(np.asarray(kept(rows, columns), dtype=bool), (rows.size, Sk))
        per_tile = np.add.reduceat(true.sum(axis=0, dtype=np.int64), starts)
        attended += int(per_tile.sum())
        tiles[tile] = np.where(per_tile == 0, EMPTY, np.where(per_tile == widths * rows.size, FULL, PARTIAL))
    return TileMap(tiles, attended, Sq, Sk, Br, Bc)
