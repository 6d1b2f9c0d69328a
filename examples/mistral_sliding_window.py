"""Mistral's sliding window: a query sees itself and the WINDOW - 1 keys before it. KV heads are shared (GQA)."""

import torch
import torch.nn.functional as F

WINDOW = 96


def attention(xq, xk, xv):
    seqlen, kv_len = xq.shape[2], xk.shape[2]
    mask = torch.full((seqlen, kv_len), fill_value=1.0)
    mask = torch.tril(mask, diagonal=kv_len - seqlen)
    mask = torch.triu(mask, diagonal=kv_len - seqlen - WINDOW + 1)
    return F.scaled_dot_product_attention(xq, xk, xv, attn_mask=mask.bool(), enable_gqa=True)


def example_inputs():
    rng = torch.Generator().manual_seed(3)
    make = lambda heads: torch.randn(2, heads, 160, 128, generator=rng).to(torch.bfloat16)
    return make(8), make(2), make(2)
