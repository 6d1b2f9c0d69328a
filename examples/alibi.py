"""ALiBi (Press et al., "Train short, test long"): a linear penalty on distance, one slope for each head, on top of causal masking.

The slopes are an argument, 2^(-8(h+1)/H) in the paper.
"""

import math

import torch


def attention(q, k, v, slopes):
    Sq, Sk = q.shape[2], k.shape[2]
    distance = torch.arange(Sk)[None, :] - torch.arange(Sq)[:, None]
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    scores = scores + slopes.view(1, -1, 1, 1) * distance
    scores = scores.masked_fill(distance > 0, -math.inf)
    return torch.softmax(scores, dim=-1).to(v.dtype) @ v


def example_inputs():
    torch.manual_seed(6)
    heads = 4
    q, k, v = (torch.randn(2, heads, 128, 64).half() for _ in range(3))
    slopes = torch.tensor([2.0 ** (-8.0 * (h + 1) / heads) for h in range(heads)])
    return q, k, v, slopes
