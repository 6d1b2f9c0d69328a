"""or_masks with a prefix of its own length for each batch: a captured tensor [B]."""

import torch
from torch.nn.attention.flex_attention import or_masks

LENGTHS = torch.tensor([20, 50])


def prefix(b, h, q_idx, kv_idx):
    return kv_idx < LENGTHS[b]


mask_mod = or_masks(prefix, lambda b, h, q_idx, kv_idx: q_idx >= kv_idx)
