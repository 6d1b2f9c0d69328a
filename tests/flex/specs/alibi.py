"""ALiBi from a factory, as score_mod; no attention(), no example inputs."""

import torch


def generate_alibi(heads):
    def alibi(score, b, h, q_idx, kv_idx):
        return score + torch.exp2(-((h + 1) * 8.0 / heads)) * (kv_idx - q_idx)

    return alibi


score_mod = generate_alibi(4)
