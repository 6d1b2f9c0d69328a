"""Reward models: several answers follow one question; each answer sees the question and itself, not the others.

`last_row[b, j]` is the row behind the last one that sees key j, as FlashMask describes it.
"""

import torch


def attention(q, k, v, last_row):
    rows = torch.arange(q.size(1))[:, None]
    columns = torch.arange(k.size(1))[None, :]
    visible = (columns <= rows) & (rows < last_row[:, None, None, :])
    scores = torch.einsum("bihd,bjhd->bhij", q.float(), k.float()) * q.size(-1) ** -0.5
    scores = scores.masked_fill(~visible, float("-inf"))
    return torch.einsum("bhij,bjhd->bihd", scores.softmax(-1).type_as(v), v)


def example_inputs():
    torch.manual_seed(14)
    q, k, v = (torch.randn(2, 200, 2, 64, dtype=torch.bfloat16) for _ in range(3))
    ends = torch.tensor([200] * 50 + [90] * 40 + [150] * 60 + [200] * 50, dtype=torch.int32)
    return q, k, v, ends.repeat(2, 1)
