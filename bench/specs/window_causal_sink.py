"""Causal sliding window with a learned sink logit for each head beside the keys (gpt-oss, local layers)."""

import math

import torch

WINDOW = 1024


def attention(q, k, v, sinks):
    i = torch.arange(q.shape[2], device=q.device)[:, None]
    j = torch.arange(k.shape[2], device=q.device)[None, :]
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    scores = scores.masked_fill((j > i) | (i - j > WINDOW), -math.inf)
    sink = sinks.view(1, -1, 1, 1).expand(q.shape[0], -1, q.shape[2], 1)
    weights = torch.softmax(torch.cat([scores, sink], dim=-1), dim=-1)[..., :-1]
    return weights.to(v.dtype) @ v


def example_inputs():
    torch.manual_seed(5)
    q, k, v = (torch.randn(1, 2, 1500, 128, dtype=torch.bfloat16) for _ in range(3))
    return q, k, v, torch.randn(2)
