"""Softcap, and a causal mask that beyond the last 40 keys attends to every fourth one."""

import torch


def attention(q, k, v):
    d = q.shape[-1]
    s = q @ k.transpose(-2, -1) / d**0.5
    s = 4.0 * torch.tanh(s / 4.0)
    i = torch.arange(q.shape[2])[:, None]
    j = torch.arange(k.shape[2])[None]
    keep = (j <= i) & ((i - j < 40) | ((i - j) % 4 == 0))
    p = torch.softmax(s.masked_fill(~keep, float("-inf")), dim=-1)
    return p @ v


def example_inputs():
    torch.manual_seed(3)
    return tuple(torch.randn(1, 2, 64, 32) for _ in range(3))
