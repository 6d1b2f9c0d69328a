"""Retention (RetNet, parallel form): scores decay by gamma_h for each step back, divided by max(|row sum|, 1)."""

import torch


def decay_mask(n_heads, length):
    gamma = 1 - 2.0 ** (-5 - torch.arange(n_heads, dtype=torch.float32))
    n, m = torch.arange(length)[:, None], torch.arange(length)[None, :]
    decay = gamma[:, None, None] ** (n - m).clamp(min=0)
    return torch.where(n >= m, decay, torch.zeros(()))


def attention(q, k, v):
    _, n_heads, length, d = q.shape
    qk = (q @ k.transpose(-1, -2)) * d**-0.5
    qk = qk * decay_mask(n_heads, length)
    qk = qk / qk.detach().sum(dim=-1, keepdim=True).abs().clamp(min=1)
    return qk @ v


def example_inputs():
    torch.manual_seed(23)
    return tuple(torch.randn(2, 8, 128, 64) for _ in range(3))
