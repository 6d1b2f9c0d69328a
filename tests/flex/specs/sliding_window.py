"""and_masks of two functions; the window holds 48 + 1 keys."""

from torch.nn.attention.flex_attention import and_masks

WINDOW = 48


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def window(b, h, q_idx, kv_idx):
    return q_idx - kv_idx <= WINDOW


mask_mod = and_masks(causal, window)
