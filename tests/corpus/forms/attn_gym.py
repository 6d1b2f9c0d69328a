"""The mask and score modifications of attn-gym, as a user of FlexAttention writes them down."""

from __future__ import annotations

from ..form import Form

_IMPORT = """
from torch.nn.attention.flex_attention import flex_attention
"""


def _mask(name: str, family: str, make: str, **options: object) -> Form:
    body = f"{make}\n\n\ndef attention(q, k, v):\n" + _dense("where")
    return Form(f"attn-gym {name}", family, "attn-gym", body, **options)  # type: ignore[arg-type]


def _dense(kind: str) -> str:
    """The modification over all indices at once, which is what `mask_mod` and `score_mod` mean."""
    rows = [
        "    s = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5",
        "    b, h, i, j = (torch.arange(n).reshape([-1 if a == x else 1 for a in range(4)])"
        " for x, n in enumerate(s.shape))",
        "    s = torch.where(mod(b, h, i, j), s, float('-inf'))" if kind == "where" else "    s = mod(s, b, h, i, j)",
        "    return torch.softmax(s, -1) @ v",
    ]
    return "\n".join(rows) + "\n"


def _score(name: str, family: str, make: str, **options: object) -> Form:
    body = f"{make}\n\n\ndef attention(q, k, v):\n" + _dense("score")
    return Form(f"attn-gym {name}", family, "attn-gym", body, **options)  # type: ignore[arg-type]


def _flex(name: str, family: str, make: str, call: str, **options: object) -> Form:
    body = f"{_IMPORT}{make}\n\n\ndef attention(q, k, v):\n    return flex_attention(q, k, v, {call})\n"
    return Form(f"flex {name}", family, "attn-gym", body, **options)  # type: ignore[arg-type]


_WINDOW = "from attn_gym.masks import generate_sliding_window\nmod = generate_sliding_window(12)"
_ALIBI = "from attn_gym.mods import generate_alibi_bias\nmod = generate_alibi_bias(4)"

FORMS = [
    _mask("causal", "causal mask", "from attn_gym.masks import causal_mask as mod", fast=True),
    _mask("sliding window", "window mask", _WINDOW, fast=True),
    _mask(
        "dilated window",
        "dilated mask",
        "from attn_gym.masks.dilated_sliding_window import generate_dilated_sliding_window\n"
        "mod = generate_dilated_sliding_window(12, 3)",
        fast=True,
    ),
    _mask(
        "prefix lm",
        "prefix mask",
        "from attn_gym.masks.prefix_lm import generate_prefix_lm_mask\nmod = generate_prefix_lm_mask(9)",
        fast=True,
    ),
    _mask(
        "document",
        "document mask",
        "from attn_gym.masks import causal_mask\n"
        "from attn_gym.masks.document_mask import generate_doc_mask_mod, length_to_offsets\n"
        "mod = generate_doc_mask_mod(causal_mask, length_to_offsets([13, 7, 20], 'cpu'))",
        why="the document of each position is a buffer made when the file is loaded",
    ),
    _mask(
        "packed document",
        "document mask",
        "from attn_gym.masks.document_mask import generate_packed_causal_doc_mask_mod, length_to_offsets\n"
        "mod = generate_packed_causal_doc_mask_mod(length_to_offsets([13, 7, 20], 'cpu'))",
    ),
    _mask(
        "block diffusion",
        "block diffusion mask",
        "from attn_gym.masks.block_diffusion import generate_block_diffusion_mask\n"
        "mod = generate_block_diffusion_mask(20, 5)",
    ),
    _mask(
        "neighbourhood 2-D",
        "2-D neighbourhood mask",
        "from attn_gym.masks.natten import generate_natten\nmod = generate_natten(8, 5, 3, 3)",
        fast=True,
    ),
    _mask(
        "tiled neighbourhood",
        "2-D neighbourhood mask",
        "from attn_gym.masks.natten import generate_tiled_natten\nmod = generate_tiled_natten(8, 8, 3, 3, 4, 4)",
        sizes={"Sq": 64, "Sk": 64},
    ),
    _mask(
        "morton neighbourhood",
        "2-D neighbourhood mask",
        "from attn_gym.masks.natten import generate_morton_natten\nmod = generate_morton_natten(8, 8, 3, 3)",
        sizes={"Sq": 64, "Sk": 64},
        why="bit tricks on indices",
    ),
    _mask(
        "global and sliding",
        "global + window mask",
        "from attn_gym.masks.global_sliding_window import generate_global_sliding_window\n"
        "mod = generate_global_sliding_window(8, torch.arange(40) % 16 == 0)",
    ),
    _mask(
        "sta 2-D",
        "2-D neighbourhood mask",
        "from attn_gym.masks.sta import generate_sta_mask_mod_2d\n"
        "mod = generate_sta_mask_mod_2d((8, 8), (4, 4), (2, 2), 0)",
        sizes={"Sq": 64, "Sk": 64},
    ),
    Form(
        "attn-gym flamingo",
        "document mask",
        "attn-gym",
        """
        from attn_gym.masks.flamingo import generate_vision_cross_attention_mask_mod

        mod = generate_vision_cross_attention_mask_mod(torch.tensor([[0, 12], [12, 40]]), 20)


        def attention(q, k, v):
            i, j = torch.arange(q.shape[2]), torch.arange(k.shape[2])
            keep = torch.vmap(torch.vmap(mod, (None, None, None, 0)), (None, None, 0, None))(0, 0, i, j)
            s = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~keep, -torch.inf)
            return s.softmax(-1) @ v
        """,
        why="for one index at a time: applied by nested vmap",
    ),
    _mask(
        "shared prefix",
        "shared question mask",
        "from attn_gym.masks.shared_prefix import generate_shared_prefix_mask_mod\n"
        "mod = generate_shared_prefix_mask_mod(torch.tensor([0, 12, 26, 40]), torch.tensor([0, 0, 0]))",
    ),
    _score("alibi", "ALiBi", _ALIBI, fast=True),
    _score(
        "softcap",
        "softcap",
        "from attn_gym.mods import generate_tanh_softcap\nmod = generate_tanh_softcap(20)",
        fast=True,
    ),
    _score(
        "sandwich",
        "table by i - j",
        "from attn_gym.mods.sandwich import generate_sandwich_bias\nmod = generate_sandwich_bias(4, 4096)",
    ),
    _score(
        "activation",
        "sigmoid or ReLU weights",
        "from attn_gym.mods.activation import generate_activation_score_mod\n"
        "mod = generate_activation_score_mod(torch.relu)",
    ),
    _score(
        "graphormer",
        "table by index",
        "from attn_gym.mods.graphormer import generate_graphormer_spatial_bias\n"
        "hops = torch.arange(40)[:, None].sub(torch.arange(40)).abs().clamp(max=7)\n"
        "mod = generate_graphormer_spatial_bias(torch.randn(4, 8), hops.expand(2, 40, 40))",
    ),
    _flex("plain score_mod", "ALiBi", _ALIBI, "score_mod=mod", fast=True),
    _flex(
        "block mask",
        "window mask",
        _WINDOW + "\nfrom torch.nn.attention.flex_attention import create_block_mask",
        "block_mask=create_block_mask(mod, None, None, q.shape[2], k.shape[2], device='cpu')",
        fast=True,
    ),
    _flex(
        "softcap", "softcap", "from attn_gym.mods import generate_tanh_softcap\nmod = generate_tanh_softcap(20)", "mod"
    ),
    _flex(
        "gqa",
        "GQA",
        _WINDOW + "\ndef score(s, b, h, i, j):\n    return s + (j - i) * 0.1",
        "score, enable_gqa=True",
        sizes={"Hkv": 2},
    ),
]
