"""Distance of two captured coordinates: a row of a table for each position, summed over its two numbers."""

import torch

COORDS = torch.stack([torch.arange(128) // 16, torch.arange(128) % 16], dim=-1)


def mask_mod(b, h, q_idx, kv_idx):
    return (COORDS[q_idx] - COORDS[kv_idx]).abs().sum(-1) <= 4
