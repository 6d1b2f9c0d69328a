"""Packed sequences by their cumulated lengths."""

import torch
import torch.nn.functional as F


def attention(q, k, v, cu_seqlens):
    i = torch.arange(q.shape[-2])[:, None]
    j = torch.arange(k.shape[-2])[None, :]
    tokens = torch.arange(q.shape[-2], dtype=torch.int32)
    sequence = torch.searchsorted(cu_seqlens, tokens, right=True)
    mask = (sequence[:, None] == sequence[None, :]) & (i >= j)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def example_inputs():
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 4, 128, 64, dtype=torch.float16) for _ in range(3))
    return q, k, v, torch.tensor([0, 40, 90, 128], dtype=torch.int32)
