"""Timing in turns, as the product times a user's kernel, and what the card's tensor cores sustain."""

from __future__ import annotations

from cubridge_engine.device.timing import Contender, time_calls


def gemm_ceiling(rounds: int, size: int = 8192) -> float:
    """TFLOP/s of a bfloat16 matrix product in the same process: what this card sustains on its tensor cores now."""
    import torch

    pairs = [[torch.randn(size, size, device="cuda").bfloat16() for _ in range(2)] for _ in range(2)]
    products = [lambda a=a, b=b: a @ b for a, b in pairs]
    timed = time_calls([Contender("gemm", products)], [p() for p in products], rounds)
    return round(2 * size**3 / timed.ms["gemm"] / 1e9, 1)
