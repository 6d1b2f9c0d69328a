"""Padded sequences of different lengths, causal."""

import torch
import torch.nn.functional as F


def attention(q, k, v, lengths):
    i = torch.arange(q.shape[-2])[:, None]
    j = torch.arange(k.shape[-2])[None, :]
    inside = (i < lengths[:, None, None, None]) & (j < lengths[:, None, None, None])
    mask = inside & (i >= j)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def example_inputs():
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 4, 128, 64, dtype=torch.float16) for _ in range(3))
    return q, k, v, torch.tensor([128, 70], dtype=torch.int32)
