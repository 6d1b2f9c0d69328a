"""What CTAs read and write: which axis of the grid is which index, and in which order each walks over its keys."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .model import GridMap, KvWalk
from .record import Recorded, Touched


def walks_of(recorded: Recorded, bc: int) -> tuple[KvWalk, ...]:
    """One per CTA and query head. Tiles are `bc` keys wide; 0: as they are read."""
    rows = recorded.touched.get(("o", "store")) or recorded.touched.get(("q", "read"))
    keys = recorded.touched.get(("k", "read"))
    if rows is None or keys is None:
        return ()
    width = bc or read_width(keys)
    order = np.concatenate(keys.order)
    heads, kv_heads = rows.seen.shape[2], keys.seen.shape[2]
    found: list[KvWalk] = []
    x, y, _ = recorded.grid
    for cta in range(len(rows.seen)):
        mine = order[order[:, 0] == cta]
        for b, h in zip(*np.nonzero(rows.seen[cta].any(-1)), strict=True):
            here = np.flatnonzero(rows.seen[cta, b, h])
            read = mine[mine[:, 1] == b]
            own = h * kv_heads // heads
            kv_head = own if (read[:, 2] == own).any() or not len(read) else int(read[0, 2])
            read = read[read[:, 2] == kv_head]
            if not len(read):
                continue
            tiles = list(dict.fromkeys((read[:, 3] // width * width).tolist()))
            place = (cta % x, cta // x % y, cta // (x * y))
            found.append(
                KvWalk(
                    place,
                    int(b),
                    int(h),
                    int(kv_head),
                    (int(here[0]), int(here[-1])),
                    tuple(tiles),
                    (int(read[:, 3].min()), int(read[:, 3].max())),
                )
            )
    return tuple(found)


def read_width(keys: Touched) -> int:
    """Rows of K between the starts of two reads of one instruction: the most that one reads at once."""
    widths = [len(np.unique(rows[rows[:, 0] == rows[0, 0]][:, 3])) for rows in keys.order]
    return max(widths, default=1)


def grid_map(recorded: Recorded, walks: Sequence[KvWalk], bc: int) -> GridMap | None:
    """Which index moves along each axis of the grid; None where CTAs write nothing that was seen."""
    if not walks:
        return None
    by_cta: dict[tuple[int, int, int], set[tuple[int, int, int]]] = {}
    for walk in walks:
        by_cta.setdefault(walk.cta, set()).add((walk.b, walk.h, walk.rows[0]))
    axes: dict[str, str] = {}
    for number, axis in enumerate("xyz"):
        moved: list[str] = []
        for cta, here in by_cta.items():
            there = tuple(c + (i == number) for i, c in enumerate(cta))
            other = by_cta.get((there[0], there[1], there[2]))
            if other is None:
                continue
            for position, name in enumerate(("b", "h", "q tile")):
                if {e[position] for e in here} != {e[position] for e in other} and name not in moved:
                    moved.append(name)
        axes[axis] = ", ".join(sorted(moved, key=("b", "h", "q tile").index))
    rows = max(w.rows[1] - w.rows[0] + 1 for w in walks)
    return GridMap(axes, rows, bc or 0)
