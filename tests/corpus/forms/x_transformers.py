"""x-transformers: its Attend with one option at a time, and whole attention layers."""

from __future__ import annotations

from ..form import Form


def _attend(
    name: str,
    family: str,
    options: str,
    *,
    extra: str = "",
    call: str = "",
    inputs: str = "",
    result: str = "[0]",
    **more: object,
) -> Form:
    body = (
        "from x_transformers.attend import Attend\n\n"
        f"m = shaken(Attend({options}))\n\n\n"
        f"def attention(q, k, v{', ' + extra if extra else ''}):\n"
        f"    return m(q, k, v{', ' + call if call else ''}){result}\n"
    )
    given = "q, k, v" + (", " + inputs if inputs else "")
    return Form(f"x-transformers {name}", family, "x-transformers", body, given, **more)  # type: ignore[arg-type]


def _layer(
    name: str,
    family: str,
    options: str,
    *,
    call: str = "x",
    inputs: str = "randn(B, Sq, 128)",
    arguments: str = "x",
    **more: object,
) -> Form:
    body = (
        "from x_transformers.x_transformers import Attention\n\n"
        f"m = shaken(Attention(dim=128, dim_head=32, heads=4{', ' + options if options else ''}))\n\n\n"
        f"def attention({arguments}):\n"
        f"    out = m({call})\n"
        "    return out[0] if isinstance(out, tuple) else out\n"
    )
    return Form(f"x-transformers layer {name}", family, "x-transformers", body, inputs, **more)  # type: ignore[arg-type]


FORMS = [
    _attend("plain", "plain", "", fast=True),
    _attend("causal", "causal mask", "causal=True", fast=True),
    _attend("key mask", "bool mask", "", extra="mask", call="mask=mask", inputs="keep(B, Sk)", fast=True),
    _attend("bias", "bias", "", extra="bias", call="attn_bias=bias", inputs="randn(H, Sq, Sk)", fast=True),
    _attend("softclamp", "softcap", "causal=True, softclamp_logits=True, logit_softclamp_value=15.0", fast=True),
    _attend("l2 distance", "distance", "l2_distance=True", why="-|q - k|: cdist"),
    _attend("sigmoid", "sigmoid or ReLU weights", "sigmoid=True"),
    _attend("zero kv", "memory keys", "add_zero_kv=True", why="one key of zeros before the others"),
    _attend("learned sink", "sink as a column", "heads=4, head_learned_sink=True", why="the sink is a weight"),
    _attend("flash", "plain", "flash=True, causal=True"),
    _attend("scale", "plain", "scale=10.0"),
    _attend("multi-query", "GQA", "causal=True", inputs="", sizes={"Hkv": 2}),
    _attend(
        "talking heads",
        "head mixing",
        "heads=4, pre_talking_heads=True",
        fused=False,
        why="scores of different heads are mixed",
        fast=True,
    ),
    _attend(
        "post talking heads",
        "head mixing",
        "heads=4, post_talking_heads=True",
        fused=False,
        why="weights of different heads are mixed",
        fast=True,
    ),
    _attend(
        "scaled by mixed heads",
        "head mixing",
        "heads=4, pre_scale_post_talking_heads=True",
        fused=False,
        why="weights are scaled by mixed scores",
    ),
    _attend(
        "top-k", "top-k", "sparse_topk=8", fused=False, why="needs a whole row before any key is dropped", fast=True
    ),
    _attend("hard", "top-k", "hard=True", fused=False, why="argmax of a row"),
    _attend(
        "selective",
        "running sum",
        "causal=True, selective=True, heads=4",
        fused=False,
        why="a running sum of one head's scores over the queries",
    ),
    _attend(
        "cog signed",
        "second use of P",
        "cog_signed=True",
        fused=False,
        why="softmax of |s| times sign of s: fused in principle, with two uses of the score",
    ),
    _attend("inverted", "wrong axis", "inverted_attention=True", fused=False, why="softmax over the queries"),
    _attend(
        "returned scores",
        "weights returned",
        "",
        result="[1].post_softmax_attn",
        fused=False,
        why="the weights themselves are asked for",
    ),
    _layer("plain", "module, plain", ""),
    _layer("causal gqa", "module, GQA + rope", "causal=True, kv_heads=2"),
    _layer("qk-norm", "qk-norm", "qk_norm=True, qk_norm_scale=10"),
    _layer("gated", "gated output", "gate_values=True"),
    _layer("memory kv", "memory keys", "num_mem_kv=3"),
    _layer("one kv head", "GQA", "one_kv_head=True"),
    _layer("value width", "module, plain", "value_dim_head=48"),
    _layer(
        "cross",
        "module, plain",
        "",
        call="x, context=y",
        arguments="x, y",
        inputs="randn(B, Sq, 128), randn(B, Sk, 128)",
    ),
    _layer("alibi", "ALiBi", "causal=True", call="x, rel_pos=bias", arguments="x").__class__(
        "x-transformers layer alibi",
        "ALiBi",
        "x-transformers",
        "from x_transformers.x_transformers import AlibiPositionalBias, Attention\n\n"
        "m = shaken(Attention(dim=128, dim_head=32, heads=4, causal=True))\n"
        "bias = AlibiPositionalBias(heads=4, total_heads=4)\n\n\n"
        "def attention(x):\n    return m(x, rel_pos=bias)[0]\n",
        "randn(B, Sq, 128)",
    ),
    Form(
        "x-transformers t5 bias",
        "T5",
        "x-transformers",
        "from x_transformers.attend import Attend\n"
        "from x_transformers.x_transformers import RelativePositionBias\n\n"
        "m = Attend(causal=True)\n"
        "bias = shaken(RelativePositionBias(scale=1.0, causal=True, num_buckets=16, max_distance=64, heads=4))\n\n\n"
        "def attention(q, k, v):\n    return m(q, k, v, attn_bias=bias(q.shape[2], k.shape[2]))[0]\n",
        why="the table is a weight; unequal lengths are aligned to the bottom right",
    ),
    Form(
        "x-transformers dynamic position bias",
        "table by i - j",
        "x-transformers",
        "from x_transformers.attend import Attend\n"
        "from x_transformers.x_transformers import DynamicPositionBias\n\n"
        "m = Attend()\n"
        "bias = shaken(DynamicPositionBias(dim=8, heads=4, depth=2))\n\n\n"
        "def attention(q, k, v):\n    return m(q, k, v, attn_bias=bias(q.shape[2], k.shape[2]))[0]\n",
        why="a table over i - j made by an MLP of the weights: prepared once",
    ),
]
