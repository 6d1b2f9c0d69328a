"""FlashMask 6: several answers to one question; an answer does not see the others."""

import torch


def attention(q, k, v, last_row):
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / 8.0
    i = torch.arange(q.shape[-2])[:, None]
    j = torch.arange(k.shape[-2])[None, :]
    allowed = (i >= j) & (i < last_row[:, None, None, :])
    scores = scores.masked_fill(~allowed, float("-inf"))
    return torch.softmax(scores.float(), dim=-1).to(v.dtype) @ v


def example_inputs():
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 4, 128, 64, dtype=torch.float16) for _ in range(3))
    ends = torch.tensor([128] * 40 + [80] * 40 + [128] * 48, dtype=torch.int32)
    return q, k, v, ends.repeat(2, 1)
