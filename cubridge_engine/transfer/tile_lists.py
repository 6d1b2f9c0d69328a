"""Which KV tiles a Q tile has to visit, where no interval says it: masks with holes, and masks that data decide.

A tile list is one int32 tensor that the caller computes from the mask before the launch. A row belongs to one Q tile::

    [count, partial, t_0, t_1, ..., t_{count-1}, 0, ...]

`count` tiles hold an attended key; the first `partial` of them (ascending) also hold an element that is masked, or
columns beyond Sk, and are tested element by element; the others (ascending again) are attended whole. Tiles without an
attended key are not named. Rows have room for three entries at least, so that a prologue may load ``t_0`` unasked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..ir.evaluate import evaluate
from ..ir.expr import Expr, free_vars

Array = NDArray[Any]

COUNT, PARTIAL, FIRST = 0, 1, 2  # places in a row
Q_TILES, ENTRIES = "Q tiles", "entries"  # extents of the last two axes
_BAND = 1 << 22  # scores whose mask is evaluated at a time: never all of Sq x Sk
_COLUMNS = 1 << 15


@dataclass(frozen=True, slots=True)
class TileList:
    """How a tile list follows from the inputs: where `mask` holds (over b h hk i j, sizes and operands) on tiles of
    ``br x bc``. `axes` are the extents of the tensor, ``("B", "H", "Q tiles", "entries")``, without "B" or "H" where
    the mask is the same for all batches or heads.
    """

    mask: Expr
    br: int
    bc: int
    axes: tuple[str, ...]

    @property
    def index(self) -> tuple[str, ...]:
        """The names of the indices before the entry: b, h and the Q tile."""
        return tuple({"B": "b", "H": "h", Q_TILES: "qt"}[axis] for axis in self.axes[:-1])

    def extents(self) -> tuple[str, ...]:
        """The extents at most, as formulas of the lengths."""
        formulas = {Q_TILES: f"ceil(Sq / {self.br})", ENTRIES: f"2 + ceil(Sk / {self.bc})"}
        return tuple(formulas.get(axis, axis) for axis in self.axes)

    def shape_text(self) -> str:
        """``[B, ceil(Sq / 64), 2 + ceil(Sk / 64)]``: the shape at most."""
        return f"[{', '.join(self.extents())}]"

    def bytes_text(self) -> str:
        """The size of the tensor at most, as a formula of the lengths."""
        return f"4 * {' * '.join(f'({e})' if '+' in e else e for e in self.extents())} bytes"

    def most_bytes(self, sizes: Mapping[str, int]) -> int:
        """The size of the tensor at most, at these lengths."""
        extents = {Q_TILES: -(-sizes["Sq"] // self.br), ENTRIES: FIRST + max(-(-sizes["Sk"] // self.bc), 1)}
        return 4 * math.prod(extents[axis] if axis in extents else sizes[axis] for axis in self.axes)


def tile_list_of(mask: Expr, br: int, bc: int) -> TileList:
    """The list for a mask. Its axes follow from the indices the mask depends on."""
    used = free_vars(mask)
    axes = (*(("B",) if "b" in used else ()), *(("H",) if used & {"h", "hk"} else ()), Q_TILES, ENTRIES)
    return TileList(mask, br, bc, axes)


@dataclass(frozen=True, slots=True)
class TileClasses:
    """For each batch, head (one where they do not matter), Q tile and KV tile: attended somewhere, attended whole."""

    live: Array  # bool [B or 1, H or 1, Q tiles, KV tiles]
    whole: Array


def classify(tiles: TileList, sizes: Mapping[str, int], operands: Mapping[str, Array]) -> TileClasses:
    """Evaluate the mask in bands and reduce it to tiles. `operands` by their names in the spec, with all their axes."""
    sq, sk = sizes["Sq"], sizes["Sk"]
    batches = sizes["B"] if "B" in tiles.axes else 1
    heads = sizes["H"] if "H" in tiles.axes else 1
    shape = (batches, heads, -(-sq // tiles.br), -(-sk // tiles.bc))
    live, whole = np.zeros(shape, dtype=bool), np.ones(shape, dtype=bool)
    if not sq or not sk:
        return TileClasses(live, whole)
    columns = max(_COLUMNS // tiles.bc, 1) * tiles.bc
    rows = max(_BAND // min(sk, columns) // tiles.br, 1) * tiles.br
    for b in range(batches):
        for h in range(heads):
            env = {**sizes, "b": b, "h": h, "hk": h // max(sizes["H"] // sizes["Hkv"], 1)}
            for i in range(0, sq, rows):
                for j in range(0, sk, columns):
                    keep = _band(tiles.mask, env, operands, (i, min(i + rows, sq)), (j, min(j + columns, sk)))
                    q, k = (i // tiles.br, (i + rows) // tiles.br), (j // tiles.bc, (j + columns) // tiles.bc)
                    place = (b, h, slice(*q), slice(*k))
                    live[place] = _by_tile(np.logical_or, keep, tiles)
                    whole[place] = _by_tile(np.logical_and, keep, tiles)
    whole[..., -1] &= sk % tiles.bc == 0  # columns beyond Sk are masked
    return TileClasses(live, whole & live)


def _band(
    mask: Expr, env: Mapping[str, Any], operands: Mapping[str, Array], rows: tuple[int, int], columns: tuple[int, int]
) -> Array:
    i, j = np.arange(*rows).reshape(-1, 1), np.arange(*columns).reshape(1, -1)
    keep = np.asarray(evaluate(mask, {**env, "i": i, "j": j}, operands), dtype=bool)
    return np.broadcast_to(keep, (i.size, j.size))


def _by_tile(join: np.ufunc, keep: Array, tiles: TileList) -> Array:
    part = join.reduceat(keep, np.arange(0, keep.shape[1], tiles.bc), axis=1)
    return join.reduceat(part, np.arange(0, keep.shape[0], tiles.br), axis=0)


def build_tile_list(tiles: TileList, sizes: Mapping[str, int], operands: Mapping[str, Array]) -> Array:
    """The tensor itself: int32, contiguous, with the axes of `tiles`.

    `sizes` holds B, H, Hkv, Sq, Sk; `operands` the arrays that the mask reads, by their names in the spec.
    """
    classes = classify(tiles, sizes, operands)
    count = classes.live.sum(axis=-1)
    out = np.zeros((*count.shape, FIRST + max(int(count.max(initial=0)), 1)), dtype=np.int32)
    out[..., COUNT] = count
    out[..., PARTIAL] = (classes.live & ~classes.whole).sum(axis=-1)
    # Partial tiles first, each kind ascending; stable sorting keeps the order of the tiles.
    kind = np.where(~classes.live, 2, np.where(classes.whole, 1, 0))
    order = np.argsort(kind, axis=-1, kind="stable")[..., : out.shape[-1] - FIRST]
    named = np.arange(order.shape[-1]) < count[..., None]
    out[..., FIRST : FIRST + order.shape[-1]] = np.where(named, order, 0)
    extents = zip(out.shape, ("B", "H", Q_TILES, ENTRIES), strict=True)
    return out.reshape([n for n, axis in extents if axis in tiles.axes])
