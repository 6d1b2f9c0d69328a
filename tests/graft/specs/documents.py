"""Packed documents under ALiBi: a token sees the earlier ones of its own document, the nearer the better."""

import torch


def attention(q, k, v, slopes, document_ids):
    i = torch.arange(q.shape[2])[:, None]
    j = torch.arange(k.shape[2])[None]
    s = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    s = s - slopes[None, :, None, None] * (i - j)
    keep = (document_ids[:, None, :, None] == document_ids[:, None, None, :]) & (j <= i)
    return torch.softmax(s.masked_fill(~keep, float("-inf")), dim=-1) @ v


def example_inputs():
    torch.manual_seed(4)
    q, k, v = (torch.randn(2, 2, 64, 32) for _ in range(3))
    return q, k, v, torch.tensor([0.5, 0.125]), torch.randint(0, 3, (2, 64), dtype=torch.int32).sort(dim=-1).values
