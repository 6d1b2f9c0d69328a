"""The Hopper kernel on a device: every instance over the benchmark's grid of shapes against float32."""

from __future__ import annotations

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs a Hopper GPU"
    ),
]


def test_every_instance_on_the_grid() -> None:
    from bench.kernels.check import check
    from bench.kernels.ours import Ours

    worst = check(Ours("flash_fwd_sm90"))
    assert len(worst) == 8
    assert all(0 < one["worst_error"] < 6e-3 for one in worst)
