"""gpt-oss: a learned sink logit for each head joins the softmax as an extra column and is then dropped; sliding window and GQA."""

import torch

SLIDING_WINDOW = 64


def attention(Q, K, V, S):
    # Q [B, H, n_q, d], K and V [B, H_kv, n_k, d], S [H]
    batch, n_heads, n_ctx, d_head = Q.shape
    q_mult = n_heads // K.shape[1]
    K = K.repeat_interleave(q_mult, dim=1)
    V = V.repeat_interleave(q_mult, dim=1)
    sm_scale = 1 / d_head**0.5
    QK = torch.einsum("bhqd,bhkd->bhqk", Q, K)
    QK *= sm_scale
    mask = torch.triu(QK.new_full((n_ctx, K.shape[2]), -float("inf")), diagonal=1)
    mask += torch.tril(mask.new_full((n_ctx, K.shape[2]), -float("inf")), diagonal=-SLIDING_WINDOW)
    QK += mask[None, None, :, :]
    S = S.reshape(1, n_heads, 1, 1).expand(batch, -1, n_ctx, -1)
    QK = torch.cat([QK, S], dim=-1)
    W = torch.softmax(QK, dim=-1)
    W = W[..., :-1]
    return torch.einsum("bhqk,bhkd->bhqd", W, V)


def example_inputs():
    torch.manual_seed(8)
    return (
        torch.randn(2, 8, 128, 64, dtype=torch.bfloat16),
        torch.randn(2, 2, 128, 64, dtype=torch.bfloat16),
        torch.randn(2, 2, 128, 64, dtype=torch.bfloat16),
        torch.randn(8, dtype=torch.bfloat16),
    )
