"""Soft cap of 20, a causal window of 96 keys, and a sink of each head: one more column of the softmax, no value."""

import torch


def attention(q, k, v, sinks):
    s = torch.einsum("bhid,bhjd->bhij", q.float(), k.float()) / q.shape[-1] ** 0.5
    s = 20.0 * torch.tanh(s / 20.0)
    i = torch.arange(q.shape[2])[:, None]
    j = torch.arange(k.shape[2])[None]
    s = s.masked_fill(~((j <= i) & (i - j < 96)), float("-inf"))
    column = sinks[None, :, None, None].expand(*s.shape[:3], 1)
    p = torch.softmax(torch.cat([s, column], dim=-1), dim=-1)[..., :-1]
    return torch.einsum("bhij,bhjd->bhid", p, v.float()).to(q.dtype)


def example_inputs():
    torch.manual_seed(7)
    return *(torch.randn(1, 2, 256, 64).half() for _ in range(3)), torch.randn(2)
