"""A module with projections around flex_attention, and its BlockMask as an attribute."""

import torch
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


class Attention(nn.Module):
    def __init__(self, width=128, heads=2):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.block_mask = create_block_mask(causal, None, None, 96, 96, device="cpu")

    def forward(self, x):
        b, s, d = x.shape
        q, k, v = self.qkv(x).view(b, s, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = flex_attention(q, k, v, block_mask=self.block_mask)
        return self.out(y.transpose(1, 2).reshape(b, s, d))


def example_inputs():
    return (torch.randn(2, 96, 128),)
