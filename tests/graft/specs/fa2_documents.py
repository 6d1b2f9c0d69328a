"""Packed documents: a token sees the earlier tokens of its own document."""

import torch


def attention(q, k, v, document_ids):
    i = torch.arange(q.shape[2])[:, None]
    j = torch.arange(k.shape[2])[None]
    keep = (document_ids[:, None, :, None] == document_ids[:, None, None, :]) & (j <= i)
    s = q.float() @ k.float().transpose(-2, -1) / q.shape[-1] ** 0.5
    return (torch.softmax(s.masked_fill(~keep, float("-inf")), dim=-1) @ v.float()).to(q.dtype)


def example_inputs():
    torch.manual_seed(6)
    q, k, v = (torch.randn(2, 2, 256, 64).half() for _ in range(3))
    return q, k, v, torch.randint(0, 4, (2, 256), dtype=torch.int32).sort(dim=-1).values
