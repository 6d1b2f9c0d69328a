"""ALiBi: a slope per head times the distance of key and query."""

import torch
from torch import Tensor


def attention(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor) -> Tensor:
    s = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    i = torch.arange(q.shape[2])[:, None] + (k.shape[2] - q.shape[2])
    j = torch.arange(k.shape[2])[None, :]
    return torch.softmax(s - slopes[None, :, None, None] * (i - j).abs(), dim=-1) @ v


def example_inputs():
    torch.manual_seed(3)
    return (*(torch.randn(2, 4, 96, 64) for _ in range(3)), torch.tensor([0.5, 0.25, 0.125, 0.0625]))
