"""The decoding kernel on a device: every instance over splits, lengths, pages and packed heads against float32."""

from __future__ import annotations

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 0), reason="needs an sm_80 GPU"
    ),
]


def test_every_instance_on_the_grid() -> None:
    from bench.decode.check import check
    from bench.decode.ours import Ours

    ours = Ours()
    worst = check(ours)
    assert {one["instance"] for one in worst} == set(ours.contract.expressions)
    assert all(0 < one["worst_error"] < 6e-3 for one in worst)
