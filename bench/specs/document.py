"""Packed documents: a token sees its own document. ids: int32 [Sq], one for each position."""

import math

import torch


def attention(q, k, v, ids):
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    other = ids[:, None] != ids[None, :]
    return torch.softmax(scores.masked_fill(other, -math.inf), dim=-1).to(v.dtype) @ v


def example_inputs():
    torch.manual_seed(11)
    q, k, v = (torch.randn(2, 4, 512, 128, dtype=torch.bfloat16) for _ in range(3))
    return q, k, v, torch.randint(0, 3, (512,), dtype=torch.int32).sort().values
