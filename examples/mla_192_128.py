"""Multi-head latent attention as DeepSeek computes it in prefill: queries and keys have 128 columns without and 64 with
rotary positions, 192 in all; values have 128."""

import torch


def attention(q, k, v):
    # q, k: [batch, heads, length, 192], v: [batch, heads, length, 128]
    scores = torch.matmul(q, k.transpose(-2, -1)) * q.shape[-1] ** -0.5
    i = torch.arange(q.shape[2], device=q.device)[:, None]
    j = torch.arange(k.shape[2], device=q.device)[None, :]
    scores = scores.masked_fill(j > i + k.shape[2] - q.shape[2], float("-inf"))
    return torch.matmul(torch.softmax(scores.float(), dim=-1).to(v.dtype), v)


def example_inputs():
    g = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 4, 256, 192, generator=g, dtype=torch.bfloat16) for _ in range(2))
    return q, k, torch.randn(1, 4, 256, 128, generator=g, dtype=torch.bfloat16)
