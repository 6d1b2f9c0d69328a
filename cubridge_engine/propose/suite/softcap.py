"""Logits capped at 20, no mask."""

import torch
from torch import Tensor


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = 20.0 * torch.tanh(q @ k.transpose(-1, -2) / 32**0.5 / 20.0)
    return torch.softmax(s, dim=-1) @ v


def example_inputs() -> list[Tensor]:
    torch.manual_seed(1)
    return [torch.randn(1, 2, 48, 32) for _ in range(3)]
