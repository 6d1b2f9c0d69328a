"""Gemma 2's local layers: soft-capped logits, causal sliding window, grouped KV heads.

The cap comes before the mask, and the scale is query_pre_attn_scalar ** -0.5 (not 1/sqrt(head_dim) for every model size).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

SOFTCAP = 50.0
WINDOW = 64
QUERY_PRE_ATTN_SCALAR = 144


def repeat_kv(x: Tensor, n_rep: int) -> Tensor:
    b, kv_heads, s, d = x.shape
    if n_rep == 1:
        return x
    return x[:, :, None].expand(b, kv_heads, n_rep, s, d).reshape(b, kv_heads * n_rep, s, d)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    n_rep = q.shape[1] // k.shape[1]
    k, v = repeat_kv(k, n_rep), repeat_kv(v, n_rep)

    logits = torch.matmul(q, k.transpose(2, 3)) * QUERY_PRE_ATTN_SCALAR**-0.5
    logits = logits / SOFTCAP
    logits = torch.tanh(logits)
    logits = logits * SOFTCAP

    row = torch.arange(q.shape[2], device=q.device)[:, None] + (k.shape[2] - q.shape[2])
    col = torch.arange(k.shape[2], device=q.device)[None, :]
    visible = (col <= row) & (row - col < WINDOW)
    logits = torch.where(visible, logits, float("-inf"))

    weights = F.softmax(logits, dim=-1, dtype=torch.float32).to(q.dtype)
    return torch.matmul(weights, v)


def example_inputs():
    torch.manual_seed(2)
    return (
        torch.randn(2, 4, 128, 128, dtype=torch.bfloat16),
        torch.randn(2, 2, 128, 128, dtype=torch.bfloat16),
        torch.randn(2, 2, 128, 128, dtype=torch.bfloat16),
    )
