"""A few small launches of a bundled kernel, every instance, for a tool that watches the device.

``compute-sanitizer --tool racecheck python -m bench.kernels.launches flash_fwd_sm90``
"""

from __future__ import annotations

import argparse

from .check import ERROR_LIMIT
from .ours import Ours
from .problems import draw, error, reference

SHAPES = [
    (1, 2, 1, 200, 333),
    (2, 2, 2, 130, 70),
    (1, 140, 140, 300, 300),
]  # B, H, Hkv, Sq, Sk; the last: two items a CTA


def main() -> int:
    """Launches every instance on every shape; an exit code of 1 says that a result was wrong."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kernel")
    ours = Ours(parser.parse_args().kernel)
    masks = (False, True) if "causal_bottom_right" in ours.contract.masks else (False,)
    wrong = 0
    for instance in ours.contract.instances:
        for causal in masks:
            for shape in SHAPES:
                tensors = draw(*shape, *instance.widths, instance.dtype, 1)
                start = ours.prepare(tensors, causal)
                assert start is not None
                start()
                torch.cuda.synchronize()
                off = error(tensors["o"], reference(tensors, causal)[0])
                wrong += not off < ERROR_LIMIT.get(instance.dtype, 1e-5)
                print(f"{instance.expression} causal={causal} {shape}: error of O {off:.2e}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
