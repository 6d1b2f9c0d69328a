"""Weights that are the ReLU of the scaled scores: no softmax."""

import torch
from torch import Tensor


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.relu(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5) @ v


def example_inputs():
    torch.manual_seed(3)
    return tuple(torch.randn(2, 4, 96, 64) for _ in range(3))
