"""flash_decode on a grid of shapes against float32, before anything is timed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..kernels.problems import ERROR_LIMIT, LSE_LIMIT, error
from .ours import Ours
from .problems import Inputs, reference


@dataclass(frozen=True)
class Case:
    """Sizes of a problem; see Inputs."""

    B: int
    H: int
    Hkv: int
    Sq: int
    Sk: int
    page: int = 0
    lengths: tuple[int, ...] = ()
    causal: bool = True


CASES = [
    Case(1, 1, 1, 1, 1), Case(2, 4, 4, 1, 0), Case(1, 8, 1, 1, 5000), Case(3, 8, 2, 1, 777), Case(1, 1, 1, 1, 40000),
    Case(2, 16, 2, 3, 2049), Case(2, 8, 2, 16, 513), Case(1, 16, 2, 16, 3000), Case(2, 8, 8, 16, 7),
    Case(2, 8, 2, 5, 600, causal=False),
    Case(4, 8, 2, 1, 1000, lengths=(0, 1, 64, 1000)), Case(3, 8, 1, 4, 2000, lengths=(3, 2000, 129)),
    Case(40, 4, 2, 2, 700, lengths=(*range(0, 700, 18), 700)),
    Case(2, 8, 2, 1, 1000, page=16), Case(3, 8, 2, 3, 2000, page=64, lengths=(0, 1985, 64)),
    Case(2, 4, 4, 1, 999, page=256), Case(2, 16, 2, 16, 1500, page=16, lengths=(17, 1500)),
]  # fmt: skip


def check(ours: Ours) -> list[dict[str, Any]]:
    """Every compiled instance on the grid, twice each: a launch must leave its counters zero. Raises where wrong."""
    import torch

    worst: dict[str, float] = {k.expression: 0.0 for k in ours.compiled.kernels}
    kinds = dict.fromkeys((i.dtype, i.widths) for i in ours.contract.instances if i.expression in worst)
    for dtype, widths in kinds:
        for number, c in enumerate(CASES):
            x = Inputs(c.B, c.H, c.Hkv, c.Sq, c.Sk, *widths, dtype, number, c.page, c.lengths, c.causal)
            instance, start = ours.instance(x), ours.prepare(x)
            wanted, lse = reference(x)
            for _ in range(2):
                x.poison()
                start()
                torch.cuda.synchronize()
                off = error(x.o, wanted)
                seen = lse.isfinite()
                far = float((x.lse - lse)[seen].abs().max()) if bool(seen.any()) else 0.0
                same = bool((x.lse.isneginf() == ~seen).all())
                if not (off < ERROR_LIMIT[dtype] and far < LSE_LIMIT and same):
                    raise SystemExit(f"wrong: {instance.expression} {c}: error of O {off:.2e}, of LSE {far:.2e}")
                worst[instance.expression] = max(worst[instance.expression], off)
    return [{"instance": name, "worst_error": off} for name, off in worst.items()]
