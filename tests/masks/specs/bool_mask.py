"""A mask that the caller made."""

import torch
import torch.nn.functional as F


def attention(q, k, v, mask):
    assert mask.dtype == torch.bool
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def example_inputs():
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 4, 128, 64, dtype=torch.float16) for _ in range(3))
    mask = torch.rand(2, 1, 128, 128) < 0.5
    mask[..., 0] = True
    return q, k, v, mask
