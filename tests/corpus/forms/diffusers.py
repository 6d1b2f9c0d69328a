"""diffusers' Attention with its processors."""

from __future__ import annotations

from ..form import Form


def _attention(
    name: str,
    family: str,
    options: str,
    processor: str,
    *,
    call: str = "m(x)",
    arguments: str = "x",
    inputs: str = "randn(B, Sq, 128)",
    **more: object,
) -> Form:
    body = (
        'stand_in("PIL")\n'
        f"from diffusers.models.attention_processor import Attention, {processor}\n\n"
        f"m = shaken(Attention(128, heads=4, dim_head=32{', ' + options if options else ''}, "
        f"processor={processor}()))\n\n\n"
        f"def attention({arguments}):\n    return {call}\n"
    )
    return Form(f"diffusers {name}", family, "diffusers", body, inputs, **more)  # type: ignore[arg-type]


FORMS = [
    _attention("sdpa", "module, plain", "", "AttnProcessor2_0"),
    _attention("eager", "module, plain", "", "AttnProcessor"),
    _attention(
        "cross",
        "module, plain",
        "cross_attention_dim=128",
        "AttnProcessor2_0",
        call="m(x, encoder_hidden_states=y)",
        arguments="x, y",
        inputs="randn(B, Sq, 128), randn(B, Sk, 128)",
    ),
    _attention(
        "masked",
        "bias",
        "",
        "AttnProcessor",
        call="m(x, attention_mask=mask)",
        arguments="x, mask",
        inputs="randn(B, Sq, 128), randn(4 * B, 1, Sq)",
        why="a bias over merged batch and heads",
    ),
    _attention("qk-norm", "qk-norm", "qk_norm='rms_norm'", "AttnProcessor2_0"),
    _attention(
        "joint",
        "module, plain",
        "added_kv_proj_dim=128, context_pre_only=False, out_dim=128",
        "JointAttnProcessor2_0",
        call="m(x, encoder_hidden_states=y)",
        arguments="x, y",
        inputs="randn(B, Sq, 128), randn(B, Sk, 128)",
        why="two streams joined along the sequence, one attention, split again",
    ),
    _attention(
        "added kv",
        "module, plain",
        "added_kv_proj_dim=128, norm_num_groups=8",
        "AttnAddedKVProcessor2_0",
        call="m(x, encoder_hidden_states=y)",
        arguments="x, y",
        inputs="randn(B, 128, Sq), randn(B, Sk, 128)",
    ),
    _attention("sana linear", "linear attention", "", "SanaLinearAttnProcessor2_0", fused=False, why="(K^T V) first"),
]
