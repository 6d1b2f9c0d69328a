"""Retention (RetNet, parallel form): scores decay by gamma_h for each step back, divided by max(|row sum|, 1)."""

import torch


def attention(q, k, v):
    heads, length = q.shape[1], q.shape[2]
    gamma = 1 - 2.0 ** (-5 - torch.arange(heads, dtype=torch.float32, device=q.device))
    i, j = torch.arange(length, device=q.device)[:, None], torch.arange(length, device=q.device)[None, :]
    decay = torch.where(i >= j, gamma[:, None, None] ** (i - j).clamp(min=0), 0.0)
    scores = (q @ k.transpose(-1, -2)).float() * q.shape[-1] ** -0.5 * decay
    scores = scores / scores.sum(dim=-1, keepdim=True).abs().clamp(min=1)
    return scores.to(v.dtype) @ v


def example_inputs():
    torch.manual_seed(16)
    return tuple(torch.randn(2, 4, 256, 128, dtype=torch.bfloat16) for _ in range(3))
