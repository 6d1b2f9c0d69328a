"""Pixels of a picture see those at most two rows and two columns away."""

import torch
import torch.nn.functional as F

WIDTH = 16


def attention(q, k, v):
    i = torch.arange(q.shape[-2])[:, None]
    j = torch.arange(k.shape[-2])[None, :]
    rows = (i // WIDTH - j // WIDTH).abs() <= 2
    columns = (i % WIDTH - j % WIDTH).abs() <= 2
    mask = rows & columns
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def example_inputs():
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 4, 128, 64, dtype=torch.float16) for _ in range(3))
    return q, k, v
