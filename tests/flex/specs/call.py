"""flex_attention called under torch.compile: GQA, own scale, captured slopes, a mask made for each call, LSE."""

import torch
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

SLOPES = torch.exp2(-torch.arange(1, 9) / 1.0)
compiled = torch.compile(flex_attention, dynamic=False)


def attention(q, k, v, first=4):
    past = k.shape[2] - q.shape[2]

    def score(s, b, h, q_idx, kv_idx):
        return s - SLOPES[h] * (q_idx + past - kv_idx).abs()

    def mask(b, h, q_idx, kv_idx):
        ahead = q_idx + past - kv_idx
        return (ahead >= 0) & ((ahead < 32) | (kv_idx < first))

    blocks = create_block_mask(mask, B=None, H=None, Q_LEN=q.shape[2], KV_LEN=k.shape[2], device="cuda")
    out, aux = compiled(
        q, k, v, score_mod=score, block_mask=blocks, scale=0.1, enable_gqa=True, return_aux=AuxRequest(lse=True)
    )
    return out, aux.lse


def example_inputs():
    q = torch.randn(2, 8, 96, 64, dtype=torch.float16)
    k, v = (torch.randn(2, 2, 160, 64, dtype=torch.float16) for _ in range(2))
    return q, k, v
