"""Prefix language model (UniLM, PaliGemma): the first PREFIX keys are seen by everyone, the rest is causal."""

import torch

PREFIX = 40


class PrefixAttention(torch.nn.Module):
    def __init__(self, prefix: int = PREFIX):
        super().__init__()
        self.prefix = prefix

    def forward(self, q, k, v):
        i = torch.arange(q.size(2), device=q.device).view(-1, 1)
        j = torch.arange(k.size(2), device=q.device).view(1, -1)
        allowed = (j < self.prefix) | (j <= i)
        scores = (q @ k.mT) * (q.size(3) ** -0.5)
        scores = torch.where(allowed, scores, torch.tensor(float("-inf"), dtype=scores.dtype))
        return scores.softmax(-1) @ v


def example_inputs():
    torch.manual_seed(5)
    q = torch.randn(2, 4, 128, 64, dtype=torch.float16)
    return q, torch.randn_like(q), torch.randn_like(q)
