"""Attention over the patches of an image with a relative position for rows and one for columns, each times q."""

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim=128, num_heads=2, size=(10, 7)):
        super().__init__()
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.qkv = nn.Linear(dim, dim * 3)
        self.proj = nn.Linear(dim, dim)
        generator = torch.Generator().manual_seed(1)
        rows, columns = (torch.randn(2 * n - 1, dim // num_heads, generator=generator) for n in size)
        self.rel_pos_h, self.rel_pos_w = nn.Parameter(rows), nn.Parameter(columns)

    def forward(self, x):
        B, H, W, C = x.shape
        qkv = self.qkv(x).reshape(B, H * W, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        attn = (q * self.scale) @ k.transpose(-2, -1)
        steps_h = torch.arange(H)[:, None] - torch.arange(H)[None, :] + H - 1
        steps_w = torch.arange(W)[:, None] - torch.arange(W)[None, :] + W - 1
        r_q = q.reshape(B, self.num_heads, H, W, -1)
        rel_h = torch.einsum("bnhwc,hkc->bnhwk", r_q, self.rel_pos_h[steps_h])
        rel_w = torch.einsum("bnhwc,wkc->bnhwk", r_q, self.rel_pos_w[steps_w])
        attn = attn.view(B, self.num_heads, H, W, H, W) + rel_h[..., :, None] + rel_w[..., None, :]
        attn = attn.view(B, self.num_heads, H * W, H * W).softmax(dim=-1)
        out = (attn @ v).transpose(1, 2).reshape(B, H, W, C)
        return self.proj(out)


def example_inputs():
    torch.manual_seed(0)
    return (torch.randn(2, 10, 7, 128),)
