"""Random eviction: each key is kept or dropped for the whole sequence; causal besides. kept: bool [Sk]."""

import math

import torch


def attention(q, k, v, kept):
    i = torch.arange(q.shape[2], device=q.device)[:, None]
    j = torch.arange(k.shape[2], device=q.device)[None, :]
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    visible = kept[None, :] & (j <= i)
    return torch.softmax(scores.masked_fill(~visible, -math.inf), dim=-1).to(v.dtype) @ v


def example_inputs():
    torch.manual_seed(18)
    q, k, v = (torch.randn(2, 4, 256, 128, dtype=torch.bfloat16) for _ in range(3))
    return q, k, v, torch.rand(256) < 0.7
