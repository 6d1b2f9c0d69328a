"""BERT's padding mask: keys whose attention_mask is False get -10000 added, which is finite on purpose."""

import math

import torch


def attention(query_layer, key_layer, value_layer, attention_mask):
    # attention_mask: [B, 1, 1, Sk], True for real tokens
    extended = (1.0 - attention_mask.to(query_layer.dtype)) * -10000.0
    attention_scores = torch.matmul(query_layer, key_layer.transpose(-1, -2))
    attention_scores = attention_scores / math.sqrt(query_layer.shape[-1])
    attention_scores = attention_scores + extended
    attention_probs = torch.nn.Softmax(dim=-1)(attention_scores)
    return torch.matmul(attention_probs, value_layer)


def example_inputs():
    torch.manual_seed(11)
    q, k, v = (torch.randn(2, 4, 128, 64) for _ in range(3))
    lengths = torch.tensor([128, 90])
    mask = torch.arange(128)[None, :] < lengths[:, None]
    return q, k, v, mask[:, None, None, :]
