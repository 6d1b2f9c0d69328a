"""A soft cap from a factory, under another name than score_mod."""

import torch


def generate_softcap(cap):
    def softcap(score, b, h, q_idx, kv_idx):
        return cap * torch.tanh(score / cap)

    return softcap


capped_score_mod = generate_softcap(30.0)
