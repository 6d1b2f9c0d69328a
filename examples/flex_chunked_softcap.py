"""FlexAttention-style callables instead of an attention(): a soft cap, and causal attention within chunks of 64 tokens."""

import torch


def score_mod(score, b, h, q_idx, kv_idx):
    return 20.0 * torch.tanh(score / 20.0)


def mask_mod(b, h, q_idx, kv_idx):
    same_chunk = q_idx // 64 == kv_idx // 64
    return same_chunk & (q_idx >= kv_idx)


def example_inputs():
    torch.manual_seed(16)
    return tuple(torch.randn(2, 4, 192, 64, dtype=torch.float16) for _ in range(3))
