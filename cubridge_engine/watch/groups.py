"""Which rows a sampled lane may hold: those of Q that its CTA reads, and, once some are known, its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from .lookup import Groups, everything
from .match import Match
from .record import Recorded

_CHOICES = 8
ROW_ROLES = ("S", "P", "m", "l")


def cta_groups(recorded: Recorded, shape: tuple[int, int, int]) -> Groups:
    """Rows ``[B, H, Sq]`` by the CTAs that read them; one group for all where every CTA reads most of them."""
    seen = next((recorded.touched[k].seen for k in (("q", "read"), ("o", "store")) if k in recorded.touched), None)
    lanes = len(recorded.sample)
    if seen is None or seen.shape[1:] != shape:
        return everything(lanes, shape)
    flat = seen.reshape(len(seen), -1)
    signature, of_row = np.unique(flat.T, axis=0, return_inverse=True)
    held = signature.T[recorded.sample.cta]  # (lanes, groups)
    most = int(held.sum(1).max(initial=0))
    if not 0 < most <= _CHOICES:
        return everything(lanes, shape)
    order = np.argsort(~held, axis=1, kind="stable")[:, :most]
    chosen = np.where(np.take_along_axis(held, order, 1), order, -1)
    return Groups(chosen, of_row.reshape(shape))


def row_groups(matches: Sequence[Match], lanes: int, shape: tuple[int, int, int]) -> Groups | None:
    """Every row a group of its own, and the rows that each lane was seen to hold; None where that is not known."""
    count: Counter[tuple[int, int]] = Counter()
    for match in matches:
        if match.role in ROW_ROLES:
            _, lane, index = match.places()
            rows = index // max(match.table.values.size // int(np.prod(shape)), 1)
            count.update(zip(lane.tolist(), rows.tolist(), strict=True))
    of_lane = np.full((lanes, _CHOICES), -1, np.int64)
    by_lane: dict[int, list[tuple[int, int]]] = {}
    for (lane, row), n in count.items():
        by_lane.setdefault(lane, []).append((n, row))
    crowded = 0
    for lane, found in by_lane.items():
        found.sort(reverse=True)
        kept = [row for n, row in found if n >= max(2, 0.15 * found[0][0])]
        crowded += len(kept) > _CHOICES
        of_lane[lane, : len(kept[:_CHOICES])] = kept[:_CHOICES]
    if not by_lane or crowded > 0.3 * len(by_lane):
        return None
    return Groups(of_lane, np.arange(int(np.prod(shape))).reshape(shape))
