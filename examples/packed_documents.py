"""Packed sequences as FlashAttention's varlen functions take them: [T, H, D], cumulative lengths, grouped KV heads."""

import torch
import torch.nn.functional as F


def attention(q, k, v, cu_seqlens):
    token = torch.arange(q.shape[0], device=q.device)
    sequence = torch.bucketize(token, cu_seqlens, right=True)
    mask = (sequence[:, None] == sequence[None, :]) & (token[:, None] >= token[None, :])
    q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True).transpose(0, 1)


def example_inputs():
    torch.manual_seed(18)
    q = torch.randn(230, 4, 64, dtype=torch.float16)
    k, v = (torch.randn(230, 2, 64, dtype=torch.float16) for _ in range(2))
    return q, k, v, torch.tensor([0, 70, 75, 160, 230], dtype=torch.int32)
