"""The `eager_attention_forward` functions of transformers: one per text that differs."""

from __future__ import annotations

from ..form import Form

GROUPED = {"Hkv": 2}


def _eager(
    model: str,
    family: str,
    *,
    extra: str = "",
    attributes: str = "",
    call: str = "",
    function: str = "eager_attention_forward",
    mask: str = "additive(B, 1, Sq, Sk)",
    inputs: str = "",
    **options: object,
) -> Form:
    """q, k, v, an additive mask and `extra` arguments; `attributes` are the module's, `call` further keywords."""
    body = (
        f"from transformers.models.{model}.modeling_{model} import {function} as forward\n\n\n"
        f"def attention(q, k, v, mask{', ' + extra if extra else ''}):\n"
        f"    module = part(num_key_value_groups=q.shape[1] // k.shape[1]{', ' + attributes if attributes else ''})\n"
        f"    return forward(module, q, k, v, mask, scaling=q.shape[-1] ** -0.5{', ' + call if call else ''})[0]\n"
    )
    given = f"q, k, v, {mask}{', ' + inputs if inputs else ''}"
    return Form(f"{model} eager", family, "transformers", body, given, **options)  # type: ignore[arg-type]


FORMS = [
    _eager("llama", "GQA + additive mask", sizes=GROUPED, fast=True),
    _eager("bert", "plain + additive mask", mask="additive(B, 1, 1, Sk)", fast=True),
    _eager("gpt2", "plain + additive mask"),
    _eager("gptj", "plain + additive mask"),
    _eager("llama4", "GQA + additive mask", sizes=GROUPED),
    _eager("evolla", "GQA + additive mask", sizes=GROUPED),
    _eager("bigbird_pegasus", "plain + additive mask"),
    _eager("modernbert_decoder", "plain + additive mask"),
    _eager("vjepa2", "plain", why="the mask argument is never read: the user must be told"),
    _eager("gemma2", "softcap", call="softcap=50.0", sizes=GROUPED, fast=True),
    _eager("gemma3", "softcap", call="softcap=30.0", sizes=GROUPED),
    _eager(
        "gpt_oss",
        "sink as a column",
        extra="sinks",
        attributes="sinks=sinks",
        inputs="randn(H)",
        sizes=GROUPED,
        fast=True,
    ),
    _eager(
        "openai_privacy_filter",
        "sink as a column",
        extra="sinks",
        attributes="sinks=sinks",
        inputs="randn(H)",
        sizes=GROUPED,
    ),
    _eager("flint", "sink as a column", extra="sinks", attributes="sinks=sinks", inputs="randn(H)", sizes=GROUPED),
    _eager(
        "mimo_v2_flash", "sink as a column", extra="sinks", attributes="sinks=sinks", inputs="randn(H)", sizes=GROUPED
    ),
    _eager(
        "granite_swa",
        "sink as a scale",
        extra="sinks",
        attributes="sinks=sinks",
        inputs="randn(H)",
        sizes=GROUPED,
        fast=True,
    ),
    _eager("inkling", "bias", extra="bias", call="position_bias=bias", inputs="randn(B, H, Sq, Sk)", sizes=GROUPED),
    _eager(
        "inkling2",
        "sink as a column",
        extra="bias, sinks",
        call="position_bias=bias, sinks=sinks",
        inputs="randn(1, H, Sq, Sk), randn(B, H, Sq, 1)",
        sizes=GROUPED,
        why="a sink per row and a bias together",
    ),
    _eager("longt5", "bias", extra="bias", call="position_bias=bias", inputs="randn(1, H, Sq, Sk)", fast=True),
    _eager("wav2vec2_bert", "bias", extra="bias", call="position_bias=bias", inputs="randn(B, H, Sq, Sk)"),
    _eager("tipsv2", "plain + additive mask", function="text_eager_attention_forward"),
    _eager("phi4_multimodal", "plain + additive mask", function="simple_eager_attention_forward"),
]
