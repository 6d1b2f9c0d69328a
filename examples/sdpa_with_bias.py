"""An additive bias through scaled_dot_product_attention, shared by the batch (Swin, AlphaFold-like pair bias)."""

import torch
import torch.nn.functional as F


def attention(q, k, v, pair_bias):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=pair_bias.unsqueeze(0))


def example_inputs():
    torch.manual_seed(12)
    q, k, v = (torch.randn(2, 4, 128, 64, dtype=torch.float16) for _ in range(3))
    pair_bias = torch.randn(4, 128, 128, dtype=torch.float16)  # [H, Sq, Sk]
    return q, k, v, pair_bias
