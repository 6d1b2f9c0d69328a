"""FlashMask 1: nothing is masked."""

import torch
import torch.nn.functional as F


def attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v)


def example_inputs():
    torch.manual_seed(0)
    return tuple(torch.randn(2, 4, 128, 64, dtype=torch.float16) for _ in range(3))
