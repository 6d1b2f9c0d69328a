"""T5's attention as its layer computes it: no 1/sqrt(d), and a position bias [1, H, Sq, Sk] broadcast over the batch."""

import torch
from torch import nn


def attention(query_states, key_states, value_states, position_bias):
    scores = torch.matmul(query_states, key_states.transpose(3, 2))
    scores += position_bias
    attn_weights = nn.functional.softmax(scores.float(), dim=-1).type_as(scores)
    return torch.matmul(attn_weights, value_states)


def example_inputs():
    gen = torch.Generator().manual_seed(7)
    q, k, v = (0.3 * torch.randn(2, 4, 128, 64, generator=gen) for _ in range(3))
    bias = torch.randn(1, 4, 128, 128, generator=gen)
    return q.half(), k.half(), v.half(), bias.half()
