"""Documents by offsets: ids are computed once, and an inner mask sees positions within its document."""

import torch


def document_mask(inner, offsets):
    ids = torch.repeat_interleave(torch.arange(len(offsets) - 1), offsets.diff())

    def mask(b, h, q_idx, kv_idx):
        same = ids[q_idx] == ids[kv_idx]
        return same & inner(b, h, q_idx - offsets[ids[q_idx]], kv_idx - offsets[ids[kv_idx]])

    return mask


mask_mod = document_mask(lambda b, h, q, kv: q >= kv, torch.tensor([0, 30, 80, 96]))
