"""Llama's eager attention with grouped KV heads (expand + reshape) and a causal mask added as finfo.min."""

import math

import torch
from torch import nn


def repeat_kv(hidden_states: torch.Tensor, n_rep: int) -> torch.Tensor:
    batch, num_key_value_heads, slen, head_dim = hidden_states.shape
    if n_rep == 1:
        return hidden_states
    hidden_states = hidden_states[:, :, None, :, :].expand(batch, num_key_value_heads, n_rep, slen, head_dim)
    return hidden_states.reshape(batch, num_key_value_heads * n_rep, slen, head_dim)


def make_causal_mask(q_len: int, kv_len: int, dtype: torch.dtype) -> torch.Tensor:
    mask = torch.full((q_len, kv_len), torch.finfo(dtype).min)
    mask_cond = torch.arange(kv_len)
    mask.masked_fill_(mask_cond < (torch.arange(q_len) + 1 + kv_len - q_len).view(q_len, 1), 0)
    return mask[None, None]


def attention(query_states, key_states, value_states):
    n_rep = query_states.shape[1] // key_states.shape[1]
    key_states = repeat_kv(key_states, n_rep)
    value_states = repeat_kv(value_states, n_rep)
    attn_weights = torch.matmul(query_states, key_states.transpose(2, 3)) / math.sqrt(query_states.shape[-1])
    attn_weights = attn_weights + make_causal_mask(query_states.shape[2], key_states.shape[2], attn_weights.dtype)
    attn_weights = nn.functional.softmax(attn_weights, dim=-1, dtype=torch.float32).to(query_states.dtype)
    return torch.matmul(attn_weights, value_states)


def example_inputs():
    torch.manual_seed(10)
    q = torch.randn(2, 8, 128, 128).to(torch.bfloat16)
    k = torch.randn(2, 2, 128, 128).to(torch.bfloat16)
    v = torch.randn(2, 2, 128, 128).to(torch.bfloat16)
    return q, k, v
