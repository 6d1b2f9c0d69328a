"""StreamingLLM (Xiao et al. 2023): the first tokens stay visible as attention sinks, beside a window of recent ones."""

import math

import torch

START_SIZE, RECENT_SIZE = 4, 96


def attention(q, k, v):
    offset = k.size(-2) - q.size(-2)
    q_pos = torch.arange(q.size(-2)).unsqueeze(-1) + offset
    k_pos = torch.arange(k.size(-2)).unsqueeze(0)
    recent = q_pos - k_pos < RECENT_SIZE
    keep = (k_pos <= q_pos) & (recent | (k_pos < START_SIZE))
    weights = (q @ k.transpose(-1, -2)) / math.sqrt(q.size(-1))
    weights = weights.masked_fill(keep.logical_not(), -torch.inf).softmax(dim=-1, dtype=torch.float32)
    return weights.to(v.dtype) @ v


def example_inputs():
    torch.manual_seed(12)
    q, k, v = (torch.randn(1, 4, 256, 64, dtype=torch.float16) for _ in range(3))
    return q, k, v
