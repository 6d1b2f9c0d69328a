"""ALiBi: causal attention with a linear penalty on distance, one slope for each head."""

import math

import torch


def attention(q, k, v, slopes):
    i = torch.arange(q.shape[2], device=q.device)[:, None]
    j = torch.arange(k.shape[2], device=q.device)[None, :]
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    scores = scores + slopes.view(1, -1, 1, 1) * (j - i)
    return torch.softmax(scores.masked_fill(j > i, -math.inf), dim=-1).to(v.dtype) @ v


def example_inputs():
    torch.manual_seed(2)
    q, k, v = (torch.randn(2, 4, 256, 128, dtype=torch.bfloat16) for _ in range(3))
    return q, k, v, torch.tensor([2.0 ** (-2 * (h + 1)) for h in range(4)])
