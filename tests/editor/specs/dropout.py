"""Attention with dropout on: a spec that no kernel can equal, since it is not a function of its arguments."""

import math

import torch
import torch.nn.functional as F


def attention(q, k, v):
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    weights = torch.softmax(scores, dim=-1)
    weights = F.dropout(weights, p=0.1, training=True)
    return weights @ v


def example_inputs():
    torch.manual_seed(0)
    return tuple(torch.randn(1, 2, 64, 64) for _ in range(3))
