"""Persistent CTAs, as they ran: which work items each did one after the other, and the KV tiles of each in order.

A producer may fetch the first tile of the next item before this one's last, so items are told apart by the sequence of
tiles itself: it starts again where the direction turns or the head changes. The walk is stated only where Q, K and V
give the same number of items and every key that counts was read.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from .model import Array, KvWalk, Problem, WarpRole
from .record import Recorded

Tile = tuple[int, int, int]  # b, head, tile


def item_walks(recorded: Recorded, problem: Problem, mask: Array, br: int, bc: int) -> tuple[KvWalk, ...]:
    """One walk for each item, in the order in which its CTA did them; () where the accesses do not tell. `mask`
    ``[B, H, Sq, Sk]`` says which keys count.
    """
    if br < 1 or bc < 1:
        return ()
    found: list[KvWalk] = []
    x, y, _ = recorded.grid
    for cta in range(int(np.prod(recorded.grid))):
        rows = _tiles(recorded.timeline.get("q", ()), cta, br)
        keys, values = (_runs(_tiles(recorded.timeline.get(t, ()), cta, bc)) for t in ("k", "v"))
        items = list(dict.fromkeys(rows))
        if len(items) != len(keys) or keys != values:
            return ()
        place = (cta % x, cta // x % y, cta // (x * y))
        for (b, h, tile), run in zip(items, keys, strict=True):
            first = tile * br
            last = min(first + br, problem.Sq) - 1
            starts = tuple(t * bc for _, _, t in run)
            if not run or run[0][0] != b or not _covers(starts, bc, mask[b, h, first : last + 1]):
                return ()
            end = min(max(starts) + bc, problem.Sk) - 1
            found.append(KvWalk(place, b, h, run[0][1], (first, last), starts, (min(starts), end)))
    return tuple(found)


def _tiles(accesses: Sequence[Array], cta: int, width: int) -> list[Tile]:
    """Tiles of a tensor in the order of the accesses of a CTA, neighbours that are the same once."""
    found: list[Tile] = []
    for rows in accesses:
        mine = rows[rows[:, 0] == cta]
        for b, h, row in np.unique(mine[:, 1:] // np.array([1, 1, width]), axis=0).tolist():
            if not found or found[-1] != (b, h, row):
                found.append((b, h, row))
    return found


def _runs(tiles: list[Tile]) -> list[list[Tile]]:
    """The sequence cut where the head changes, or where it goes against the direction of most steps."""
    steps = [b[2] - a[2] for a, b in pairwise(tiles) if a[:2] == b[:2]]
    downwards = sum(s == -1 for s in steps) >= sum(s == 1 for s in steps)
    found: list[list[Tile]] = []
    for tile in tiles:
        before = found[-1][-1] if found else None
        if before is not None and before[:2] == tile[:2] and (tile[2] < before[2]) is downwards:
            found[-1].append(tile)
        else:
            found.append([tile])
    return found


def _covers(starts: Sequence[int], bc: int, mask: Array) -> bool:
    """Whether every key that counts for these rows lies in one of the tiles."""
    needed = set((np.flatnonzero(mask.any(0)) // bc * bc).tolist())
    return needed <= set(starts)


def warp_roles(recorded: Recorded, held: Sequence[tuple[str, Array]]) -> tuple[WarpRole, ...]:
    """What the warps of a CTA do: which of them read and store which tensor, and which of them hold which values.

    `held` has, for each role, numbers of sampled lanes that were seen to hold it. Warps of which nothing is known are
    left out.
    """
    does: dict[int, set[str]] = {}
    for (tensor, kind), touched in recorded.touched.items():
        for warp in touched.warps:
            does.setdefault(warp, set()).add(f"{'stores' if kind == 'store' else 'loads'} {tensor.upper()}")
    for role, lanes in held:
        for warp in np.unique(recorded.sample.thread[lanes] // 32).tolist():
            does.setdefault(warp, set()).add(f"holds {role}")
    groups: dict[tuple[str, ...], list[int]] = {}
    for warp, what in sorted(does.items()):
        groups.setdefault(tuple(sorted(what)), []).append(warp)
    return tuple(WarpRole(tuple(warps), what) for what, warps in groups.items())
