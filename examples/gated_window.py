"""Windowed attention whose output is gated by the input, with RMS-normalised queries and keys."""

import torch
import torch.nn.functional as F
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, width, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class GatedAttention(nn.Module):
    def __init__(self, dim=128, heads=2, window=24):
        super().__init__()
        self.heads, self.window = heads, window
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.to_gate = nn.Linear(dim, dim)
        self.to_out = nn.Linear(dim, dim)
        self.q_norm, self.k_norm = RMSNorm(dim // heads), RMSNorm(dim // heads)

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = (t.view(b, n, self.heads, -1).transpose(1, 2) for t in self.to_qkv(x).chunk(3, dim=-1))
        q, k = self.q_norm(q), self.k_norm(k)
        i, j = torch.arange(n, device=x.device)[:, None], torch.arange(n, device=x.device)
        near = (j <= i) & (i - j < self.window)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=near)
        out = out.transpose(1, 2).flatten(2)
        return self.to_out(out * torch.sigmoid(self.to_gate(x)))


def example_inputs():
    torch.manual_seed(0)
    return (torch.randn(2, 80, 128),)
