"""Speculative decoding: the drafted tokens form a tree; each sees all of the past and its own ancestors."""

import torch
import torch.nn.functional as F


def attention(q, k, v, ancestors):
    past = k.shape[-2] - q.shape[-2]
    node = torch.arange(q.shape[-2])[:, None]
    key = torch.arange(k.shape[-2])[None, :]
    keep = (key < past) | ancestors[node, (key - past).clamp(min=0)]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=keep, enable_gqa=True)


def example_inputs():
    torch.manual_seed(13)
    q = torch.randn(1, 8, 24, 64, dtype=torch.float16)
    k, v = (torch.randn(1, 2, 200, 64, dtype=torch.float16) for _ in range(2))
    parent = [max(n - 1 - int(torch.randint(3, (1,))), 0) for n in range(24)]
    ancestors = torch.eye(24, dtype=torch.bool)
    for n in range(1, 24):
        ancestors[n] |= ancestors[parent[n]]
    return q, k, v, ancestors
