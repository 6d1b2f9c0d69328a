"""Decoding from a paged KV cache, as vLLM keeps it: `block_table` names the pages of each sequence, of 16 keys each."""

import torch
import torch.nn.functional as F


def attention(q, k_cache, v_cache, block_table, lengths):
    # q [B, H, 1, D]; caches [pages, 16, Hkv, D]; block_table [B, pages of the longest sequence]; lengths [B]
    k = k_cache[block_table].flatten(1, 2).transpose(1, 2)
    v = v_cache[block_table].flatten(1, 2).transpose(1, 2)
    key = torch.arange(k.shape[2], device=q.device)
    filled = key[None, None, None, :] < lengths[:, None, None, None]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=filled, enable_gqa=True)


def example_inputs():
    torch.manual_seed(19)
    q = torch.randn(3, 8, 1, 64, dtype=torch.float16)
    k_cache, v_cache = (torch.randn(40, 16, 2, 64, dtype=torch.float16) for _ in range(2))
    block_table = torch.randperm(40)[:36].reshape(3, 12).to(torch.int32)
    return q, k_cache, v_cache, block_table, torch.tensor([100, 192, 64], dtype=torch.int32)
