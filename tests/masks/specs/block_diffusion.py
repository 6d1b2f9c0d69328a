"""Block diffusion: noised tokens, then clean ones, in blocks."""

import torch
import torch.nn.functional as F


def attention(q, k, v):
    i = torch.arange(q.shape[-2])[:, None]
    j = torch.arange(k.shape[-2])[None, :]
    half = q.shape[-2] // 2
    clean_q, clean_k = i >= half, j >= half
    block_q = torch.where(clean_q, i - half, i) // 16
    block_k = torch.where(clean_k, j - half, j) // 16
    own = (block_q == block_k) & (clean_q == clean_k)
    earlier = (block_q > block_k) & clean_k & ~clean_q
    mask = own | earlier | ((block_q >= block_k) & clean_k & clean_q)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def example_inputs():
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 4, 128, 64, dtype=torch.float16) for _ in range(3))
    return q, k, v
