"""Soft-capped logits, a causal sliding window and a learned sink per head: what gpt-oss and Gemma 2 ask for,
together.
"""

import torch
from torch import Tensor

CAP = 20.0
WINDOW = 40


def attention(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor) -> Tensor:
    s = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
    s = CAP * torch.tanh(s / CAP)
    i = torch.arange(q.shape[2])[:, None] + (k.shape[2] - q.shape[2])
    j = torch.arange(k.shape[2])[None, :]
    s = s.masked_fill((j > i) | (i - j >= WINDOW), float("-inf"))
    sink = sinks[None, :, None, None].expand(s.shape[0], -1, s.shape[2], 1)
    p = torch.softmax(torch.cat([s, sink], dim=-1), dim=-1)[..., :-1]
    return p @ v


def example_inputs():
    torch.manual_seed(3)
    return (*(torch.randn(2, 4, 96, 64) for _ in range(3)), torch.randn(4))
