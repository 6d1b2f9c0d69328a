"""Speculative decoding: all of the past, and a tree over the new tokens."""

import torch
import torch.nn.functional as F


def attention(q, k, v, tree):
    i = torch.arange(q.shape[-2])[:, None]
    j = torch.arange(k.shape[-2])[None, :]
    past = k.shape[-2] - q.shape[-2]
    mask = (j < past) | tree[i, (j - past).clamp(min=0)]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def example_inputs():
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 4, 128, 64, dtype=torch.float16) for _ in range(3))
    tree = torch.eye(16, dtype=torch.bool) | (torch.rand(16, 16) < 0.3).tril()
    return q[:, :, :16], k, v, tree
