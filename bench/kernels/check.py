"""Our kernels on a grid of shapes, before anything is timed."""

from __future__ import annotations

import math
from typing import Any

from .ours import Ours
from .problems import ERROR_LIMIT, LSE_LIMIT, draw, error, reference

# B, H, Hkv, Sq, Sk
CHECKS = [
    (1, 2, 2, 128, 128), (2, 4, 2, 70, 200), (1, 4, 1, 200, 70), (1, 1, 1, 1, 1), (1, 6, 2, 5, 333), (2, 2, 1, 65, 0),
    (1, 3, 3, 1, 513), (3, 8, 2, 517, 517), (2, 38, 38, 1000, 1000), (4, 32, 8, 1024, 2048),
]  # fmt: skip


def check(ours: Ours) -> list[dict[str, Any]]:
    """Every instance of a kernel on the grid of shapes, twice each. Raises where a result is wrong."""
    import torch

    worst: list[dict[str, Any]] = []
    for instance in ours.contract.instances:
        found = 0.0
        for causal in (False, True) if "causal_bottom_right" in ours.contract.masks else (False,):
            for number, (b, h, hkv, sq, sk) in enumerate(CHECKS):
                tensors = draw(b, h, hkv, sq, sk, *instance.widths, instance.dtype, number)
                start = ours.prepare(tensors, causal)
                assert start is not None
                wanted, lse = reference(tensors, causal)
                for _ in range(2):
                    start()
                    torch.cuda.synchronize()
                    off = error(tensors["o"], wanted)
                    seen = lse.isfinite()
                    far = float((tensors["lse"] - lse)[seen].abs().max()) if bool(seen.any()) else 0.0
                    same = bool((tensors["lse"].isneginf() == ~seen).all())
                    if not (off < ERROR_LIMIT[instance.dtype] and far < LSE_LIMIT and same):
                        where = f"{instance.expression} B={b} H={h}/{hkv} Sq={sq} Sk={sk} causal={causal}"
                        raise SystemExit(f"wrong: {where}: error of O {off:.2e}, of LSE {far:.2e}")
                    found = max(found, off)
                    tensors["o"].fill_(math.nan)
        worst.append({"instance": instance.expression, "worst_error": found})
    return worst
