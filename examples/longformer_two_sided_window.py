"""Longformer's local attention without global tokens: each token sees W neighbours on both sides, W included."""

import torch

ONE_SIDED_WINDOW = 32


def attention(q, k, v):
    positions_q = torch.arange(q.shape[-2]).unsqueeze(1)
    positions_k = torch.arange(k.shape[-2]).unsqueeze(0)
    too_far = (positions_q - positions_k).abs() > ONE_SIDED_WINDOW
    q = q / (q.shape[-1] ** 0.5)
    attn_scores = torch.einsum("bhqd,bhkd->bhqk", q, k)
    attn_scores.masked_fill_(too_far, float("-inf"))
    attn_probs = torch.softmax(attn_scores.float(), dim=-1).type_as(attn_scores)
    return torch.einsum("bhqk,bhkd->bhqd", attn_probs, v)


def example_inputs():
    torch.manual_seed(4)
    return [torch.randn(2, 4, 128, 64).half() for _ in range(3)]
