"""The variants of the benchmark: the mods that peers get mean what the spec says that our kernel is adapted to."""

from __future__ import annotations

import math

import pytest
import torch

from bench.kernels.picture import picture
from bench.kernels.variants import VARIANTS, Variant, spec_function

LENGTH, HEADS, WIDTH = 1200, 2, 8  # longer than every window


def by_mods(variant: Variant, q, k, v, operands):
    """Attention as FlexAttention computes it from the mods."""
    i, j = torch.arange(LENGTH)[:, None], torch.arange(LENGTH)[None, :]
    outputs = []
    for h in range(HEADS):
        s = q[0, h] @ k[0, h].T * (WIDTH**-0.5 if variant.scale is None else variant.scale)
        if variant.score is not None:
            s = variant.score(operands)(s, 0, h, i, j)
        if variant.keep is not None:
            s = s.masked_fill(~variant.keep(operands)(0, h, i, j), -math.inf)
        if "sinks" in operands:
            left = torch.sigmoid(torch.logsumexp(s, -1) - operands["sinks"][h])
            outputs.append(torch.softmax(s, -1) @ v[0, h] * left[:, None])
        else:
            outputs.append(torch.softmax(s, -1) @ v[0, h])
    return torch.stack(outputs)[None]


SOFTMAX = [v for v in VARIANTS if v.softmax]


@pytest.mark.parametrize("variant", SOFTMAX, ids=[v.spec for v in SOFTMAX])
def test_mods_and_spec_agree(variant):
    made = variant.operands(HEADS, LENGTH, "float32", "cpu") if variant.operands is not None else {}
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, HEADS, LENGTH, WIDTH) for _ in range(3))
    want = spec_function(variant.spec)(q, k, v, *made.values())
    got = by_mods(variant, q, k, v, made)
    # A row without a key is NaN for the spec; the kernel and its peers give 0 there.
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5, equal_nan=True)


def test_every_variant_has_a_spec_and_one_name():
    assert len({v.name for v in VARIANTS}) == len({v.spec for v in VARIANTS}) == len(VARIANTS)
    assert all(callable(spec_function(v.spec)) for v in VARIANTS)


def test_the_picture_says_who_is_ahead():
    rows = [
        {"variant": "ahead", "ratio": 1.5, "best_peer_name": "fa3", "of_ceiling": 0.7, "ours": 500.0},
        {"variant": "behind", "ratio": 0.8, "best_peer_name": "flex", "of_ceiling": 0.4, "ours": 300.0},
        {"variant": "alone & well", "ratio": None, "best_peer_name": None, "of_ceiling": 0.6, "ours": 400.0},
    ]
    worst = {"variant": "behind", "ratio": 0.8}
    text = picture({"device": "H200", "geometric_mean": 1.1, "worst": worst, "gemm_8192": 700.0, "rows": rows})
    assert text.count("<rect") == 1 + 2 + 3  # the ground, a bar per ratio, a bar per share of the ceiling
    assert "1.50 fa3" in text
    assert "alone &amp; well" in text
