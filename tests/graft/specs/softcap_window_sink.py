"""Softcap, a causal window of 40 keys, and a sink per head: one more column in the softmax, without a value."""

import torch


def attention(q, k, v, sinks):
    s = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    s = 4.0 * torch.tanh(s / 4.0)
    i = torch.arange(q.shape[2])[:, None]
    j = torch.arange(k.shape[2])[None]
    s = s.masked_fill(~((j <= i) & (i - j < 40)), float("-inf"))
    column = sinks[None, :, None, None].expand(*s.shape[:3], 1)
    return torch.softmax(torch.cat([s, column], dim=-1), dim=-1)[..., :-1] @ v


def example_inputs():
    torch.manual_seed(3)
    return *(torch.randn(1, 2, 64, 32) for _ in range(3)), torch.randn(2)
