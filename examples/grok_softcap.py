"""Grok-1: logits are capped at 30 by a scaled tanh, then masked causally with -1e30 in float32."""

import torch


def attention(q, k, v):
    attn_output_multiplier = 0.08838834764831845
    max_attn_val = 30.0
    attn_logits = torch.einsum("bhtd,bhTd->bhtT", q, k).to(torch.float32)
    attn_logits = attn_logits * attn_output_multiplier
    attn_logits = max_attn_val * torch.tanh(attn_logits / max_attn_val)
    t, T = attn_logits.shape[-2:]
    mask = torch.tril(torch.ones(1, 1, t, T))
    attn_logits = torch.where(mask == 1, attn_logits, -1e30)
    attn_weights = torch.softmax(attn_logits, -1).to(v.dtype)
    return torch.einsum("bhtT,bhTd->bhtd", attn_weights, v)


def example_inputs():
    torch.manual_seed(9)
    return tuple(torch.randn(1, 4, 128, 128).bfloat16() for _ in range(3))
