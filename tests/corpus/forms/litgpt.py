"""litgpt's CausalSelfAttention, in configurations of models that it has."""

from __future__ import annotations

from ..form import Form

_FOR_OTHER_THINGS = (
    "lightning",
    "lightning_utilities",
    "torchmetrics",
    "litdata",
    "huggingface_hub",
    "jsonargparse",
    "safetensors",
    "tokenizers",
    "requests",
    "psutil",
    "tqdm",
)
_COMMON = "n_layer=1, n_embd=128, n_head=4, head_size=32, bias=False, norm_class_name='RMSNorm'"


def _attention(
    name: str, family: str, options: str, *, rotary: int = 32, why: str = "", fast: bool = False, **sizes: int
) -> Form:
    body = (
        f"stand_in({', '.join(map(repr, _FOR_OTHER_THINGS))})\n"
        "from litgpt.config import Config\n"
        "from litgpt.model import CausalSelfAttention\n\n"
        f"m = shaken(CausalSelfAttention(Config({_COMMON}, {options}), 0))\n\n\n"
        "def attention(x, cos, sin):\n    return m(x, cos, sin)\n"
    )
    inputs = f"randn(B, Sq, 128), randn(1, Sq, {rotary}), randn(1, Sq, {rotary})"
    return Form(f"litgpt {name}", family, "litgpt", body, inputs, why=why, fast=fast, sizes=sizes)


FORMS = [
    _attention("llama", "GQA", "n_query_groups=2, rotary_percentage=1.0", fast=True),
    _attention("pythia", "causal mask", "rotary_percentage=0.25", rotary=8, why="a part of each head is rotated"),
    _attention("qwen3", "qk-norm", "n_query_groups=2, rotary_percentage=1.0, norm_qk=True"),
    _attention(
        "gemma2 global",
        "softcap",
        "n_query_groups=2, rotary_percentage=1.0, attention_logit_softcapping=50.0, attention_scores_scalar=64",
        why="the least float32 is added to the scores above the diagonal",
    ),
]
