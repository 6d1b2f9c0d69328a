"""Speculative decoding: the drafted tokens are the last of each sequence's `lengths` keys; [B, S, H, D]."""

import torch


def attention(q, k_cache, v_cache, lengths):
    drafted, capacity = q.shape[1], k_cache.shape[1]
    query = torch.arange(drafted, device=q.device)[:, None]
    key = torch.arange(capacity, device=q.device)[None, :]
    position = lengths[:, None, None] - drafted + query
    seen = key <= position
    k = k_cache.repeat_interleave(q.shape[2] // k_cache.shape[2], dim=2)
    v = v_cache.repeat_interleave(q.shape[2] // v_cache.shape[2], dim=2)
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
    scores = torch.where(seen[:, None], scores, float("-inf"))
    return torch.einsum("bhqk,bkhd->bqhd", torch.softmax(scores, dim=-1), v)


def example_inputs():
    torch.manual_seed(17)
    q = torch.randn(3, 4, 8, 64)
    k_cache, v_cache = (torch.randn(3, 200, 2, 64) for _ in range(2))
    return q, k_cache, v_cache, torch.tensor([100, 200, 32], dtype=torch.int32)
