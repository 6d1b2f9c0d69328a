"""KV tiles that a program visits without need: those in which no row of the Q tile attends to a key."""

from __future__ import annotations

from ..ir.expr import NEG_INF
from ..ir.nodes import Kernel
from ..spec.attention import Attention
from ..transfer.tile_lists import classify, tile_list_of
from .prepare import Prepared


def empty_tiles(kernel: Kernel, attention: Attention, prepared: Prepared, visited: int) -> int:
    """How many of the `visited` tiles (of all CTAs) of a case hold no attended key.

    A Q tile that attends to nothing at all may visit one, where the two ends of its range cross inside a tile: that one
    does not count. Where masked keys have a finite score, no tile is empty: a row without keys is their average.
    """
    if attention.mask is None or (attention.normaliser == "softmax" and attention.fill != NEG_INF):
        return 0
    sizes = prepared.case.sizes
    live = classify(tile_list_of(attention.mask, kernel.Br, kernel.Bc), sizes, prepared.roles).live
    alike = (sizes["B"] // live.shape[0]) * (sizes["H"] // live.shape[1])
    needed = alike * int(live.sum())
    idle = alike * int((~live.any(axis=-1)).sum())
    return max(visited - needed - idle, 0)
