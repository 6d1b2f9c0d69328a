"""Queries see the earlier keys of their own bucket, per head."""

import torch
import torch.nn.functional as F


def attention(q, k, v, q_bucket, k_bucket):
    i = torch.arange(q.shape[-2])[:, None]
    j = torch.arange(k.shape[-2])[None, :]
    mask = (q_bucket[:, :, :, None] == k_bucket[:, :, None, :]) & (i >= j)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def example_inputs():
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 4, 128, 64, dtype=torch.float16) for _ in range(3))
    bucket = torch.randint(0, 4, (2, 4, 128), dtype=torch.int32)
    return q, k, v, bucket, bucket.clone()
