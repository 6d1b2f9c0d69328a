"""Causal attention aligned to the last key (bottom-right), which is what a decoder with a KV cache needs.

The last query sees all keys. FlashAttention has used this alignment since version 2.1; `is_causal=True` in PyTorch has not.
"""

import math

import torch


def attention(query, key, value):
    L, S = query.size(-2), key.size(-2)
    causal = torch.ones(L, S, dtype=torch.bool).tril(diagonal=S - L)
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))
    scores = scores.masked_fill(causal.logical_not(), float("-inf"))
    return torch.softmax(scores, dim=-1) @ value


def example_inputs():
    g = torch.Generator().manual_seed(1)
    q = torch.randn(2, 4, 128, 64, generator=g).half()
    k = torch.randn(2, 4, 192, 64, generator=g).half()
    v = torch.randn(2, 4, 192, 64, generator=g).half()
    return q, k, v
