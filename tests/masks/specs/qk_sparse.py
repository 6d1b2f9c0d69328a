"""FlashMask 11: a segment whose keys its own rows do not see."""

import torch


def attention(q, k, v, first_row):
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / 8.0
    i = torch.arange(q.shape[-2])[:, None]
    allowed = i >= first_row[:, None, None, :]
    scores = scores.masked_fill(~allowed, float("-inf"))
    return torch.softmax(scores.float(), dim=-1).to(v.dtype) @ v


def example_inputs():
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 4, 128, 64, dtype=torch.float16) for _ in range(3))
    first_row = torch.arange(128, dtype=torch.int32)
    first_row[30:60] = 60
    return q, k, v, first_row.repeat(2, 1)
