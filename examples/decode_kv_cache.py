"""One step of decoding: a query for each sequence against its KV cache, of which `lengths` keys are filled."""

import math

import torch


def attention(q, k_cache, v_cache, lengths):
    groups = q.shape[1] // k_cache.shape[1]
    k = k_cache.repeat_interleave(groups, dim=1)
    v = v_cache.repeat_interleave(groups, dim=1)
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    keys = torch.arange(k.shape[2], device=q.device)
    unfilled = keys[None, None, None, :] >= lengths[:, None, None, None]
    scores = scores.masked_fill(unfilled, float("-inf"))
    return torch.softmax(scores.float(), dim=-1).to(q.dtype) @ v


def example_inputs():
    torch.manual_seed(16)
    q = torch.randn(3, 8, 1, 64, dtype=torch.float16)
    k_cache, v_cache = (torch.randn(3, 2, 320, 64, dtype=torch.float16) for _ in range(2))
    return q, k_cache, v_cache, torch.tensor([100, 320, 64], dtype=torch.int32)
