"""Softcap of 20 and the fixed pattern of sparse transformers: the last 64 keys, and before them four of each 64."""

import torch


def attention(q, k, v):
    s = torch.einsum("bhid,bhjd->bhij", q.float(), k.float()) / q.shape[-1] ** 0.5
    s = 20.0 * torch.tanh(s / 20.0)
    i = torch.arange(q.shape[2])[:, None]
    j = torch.arange(k.shape[2])[None]
    keep = (j <= i) & ((i - j < 64) | (j % 64 >= 60))
    p = torch.softmax(s.masked_fill(~keep, float("-inf")), dim=-1)
    return torch.einsum("bhij,bhjd->bhid", p, v.float()).to(q.dtype)


def example_inputs():
    torch.manual_seed(5)
    return tuple(torch.randn(1, 2, 256, 64).half() for _ in range(3))
