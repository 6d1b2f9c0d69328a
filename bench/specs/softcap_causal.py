"""Causal attention with logits softly capped at CAP (Gemma 2, Grok)."""

import math

import torch

CAP = 50.0


def attention(q, k, v):
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    scores = CAP * torch.tanh(scores / CAP)
    i = torch.arange(q.shape[2], device=q.device)[:, None]
    j = torch.arange(k.shape[2], device=q.device)[None, :]
    return torch.softmax(scores.masked_fill(j > i, -math.inf), dim=-1).to(v.dtype) @ v


def example_inputs():
    torch.manual_seed(1)
    return tuple(torch.randn(2, 4, 256, 128, dtype=torch.bfloat16) for _ in range(3))
