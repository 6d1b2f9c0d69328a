"""Packed documents: a token sees the earlier tokens of its own document. The ids may come in any order."""

import torch
import torch.nn.functional as F


def attention(q, k, v, document_ids):
    positions = torch.arange(q.shape[2], device=q.device)
    causal = positions[:, None] >= positions[None, :]
    same_document = document_ids[:, None, :, None] == document_ids[:, None, None, :]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=same_document & causal)


def example_inputs():
    torch.manual_seed(11)
    q, k, v = (torch.randn(2, 4, 192, 64, dtype=torch.float16) for _ in range(3))
    document_ids = torch.randint(0, 5, (2, 192), dtype=torch.int32).sort(dim=-1).values
    return q, k, v, document_ids
