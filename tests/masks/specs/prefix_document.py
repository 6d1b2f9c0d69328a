"""FlashMask 9: prefix language model within each document."""

import torch
import torch.nn.functional as F


def attention(q, k, v, document, in_prefix):
    i = torch.arange(q.shape[-2])[:, None]
    j = torch.arange(k.shape[-2])[None, :]
    same = document[:, None, :, None] == document[:, None, None, :]
    mask = same & (in_prefix[:, None, None, :] | (i >= j))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def example_inputs():
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 4, 128, 64, dtype=torch.float16) for _ in range(3))
    document = torch.randint(0, 4, (2, 128), dtype=torch.int32).sort(-1).values
    return q, k, v, document, torch.rand(2, 128) < 0.4
