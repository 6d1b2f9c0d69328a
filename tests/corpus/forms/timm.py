"""timm's attention modules."""

from __future__ import annotations

from ..form import Form

_IMAGE = "randn(B, 128, 8, 8)"
_TOKENS = "randn(B, Sq, 128)"
_GRID = "randn(B, 64, 128)"


def _timm(
    name: str,
    family: str,
    where: str,
    make: str,
    *,
    call: str = "m(x)",
    arguments: str = "x",
    inputs: str = _TOKENS,
    **more: object,
) -> Form:
    cls = make.partition("(")[0]
    body = (
        'stand_in("torchvision", "PIL")\n'
        f"from timm.{where} import {cls}\n\n"
        f"m = shaken({make})\n\n\n"
        f"def attention({arguments}):\n    return {call}\n"
    )
    return Form(f"timm {name}", family, "timm", body, inputs, **more)  # type: ignore[arg-type]


_EIGHT = {"Sq": 64, "Sk": 64}

FORMS = [
    _timm("vit", "module, plain", "layers", "Attention(128, 4, qkv_bias=True)"),
    _timm(
        "vit masked",
        "bool mask",
        "layers",
        "Attention(128, 4)",
        call="m(x, attn_mask=mask)",
        arguments="x, mask",
        inputs=_TOKENS + ", additive(B, 1, Sq, Sq)",
    ),
    _timm("vit causal", "causal mask", "layers", "Attention(128, 4)", call="m(x, is_causal=True)"),
    _timm("vit qk-norm", "qk-norm", "layers", "Attention(128, 4, qk_norm=True, norm_layer=nn.LayerNorm)"),
    _timm("vit gated", "gated output", "layers", "Attention(128, 4, gated=True)"),
    _timm(
        "rope",
        "module, GQA + rope",
        "layers",
        "AttentionRope(128, 4)",
        call="m(x, rope=r)",
        arguments="x, r",
        inputs=_TOKENS + ", randn(Sq - 1, 64)",
    ),
    _timm("differential", "differential", "layers", "DiffAttention(128, 4)"),
    _timm(
        "multi-query 2-D",
        "GQA",
        "layers",
        "MultiQueryAttention2d(128, num_heads=4, key_dim=32, value_dim=32)",
        inputs=_IMAGE,
        sizes=_EIGHT,
    ),
    _timm("attention 2-D", "module, plain", "layers", "Attention2d(128, num_heads=4)", inputs=_IMAGE, sizes=_EIGHT),
    _timm(
        "latent pool", "module, plain", "layers", "AttentionPoolLatent(128, num_heads=4)", why="the query is a weight"
    ),
    _timm(
        "swin",
        "shifted window",
        "models.swin_transformer",
        "WindowAttention(128, 4, window_size=4)",
        inputs="randn(2 * B, 16, 128)",
        sizes={"Sq": 16, "Sk": 16},
    ),
    _timm(
        "swin shifted",
        "shifted window",
        "models.swin_transformer",
        "WindowAttention(128, 4, window_size=4)",
        call="m(x, mask=mask)",
        arguments="x, mask",
        inputs="randn(2 * B, 16, 128), -100.0 * ~keep(2, 16, 16)",
        sizes={"Sq": 16, "Sk": 16},
    ),
    _timm(
        "swin block",
        "shifted window",
        "models.swin_transformer",
        "SwinTransformerBlock(128, (8, 8), num_heads=4, window_size=4, shift_size=2)",
        inputs="randn(B, 8, 8, 128)",
        sizes=_EIGHT,
        why="the roll and the window partition are views around the attention",
    ),
    _timm(
        "swin v2",
        "cosine",
        "models.swin_transformer_v2",
        "WindowAttention(128, (4, 4), 4)",
        inputs="randn(2 * B, 16, 128)",
        sizes={"Sq": 16, "Sk": 16},
    ),
    _timm(
        "beit",
        "table by index",
        "models.beit",
        "Attention(128, 4, window_size=(4, 4))",
        inputs="randn(B, 17, 128)",
        sizes={"Sq": 17, "Sk": 17},
    ),
    Form(
        "timm relative position",
        "table by index",
        "timm",
        'stand_in("torchvision", "PIL")\n'
        "from timm.layers import RelPosBias\n"
        "from timm.models.vision_transformer_relpos import RelPosAttention\n\n"
        "m = shaken(RelPosAttention(128, 4, rel_pos_cls=lambda num_heads, **_: RelPosBias((8, 8), num_heads)))\n\n\n"
        "def attention(x):\n    return m(x)\n",
        _GRID,
        sizes=_EIGHT,
    ),
    _timm(
        "levit",
        "table by index",
        "models.levit",
        "Attention(128, 32, num_heads=4, attn_ratio=2, resolution=8)",
        inputs=_GRID,
        sizes=_EIGHT,
    ),
    _timm(
        "sam",
        "decomposed rel-pos",
        "models.vision_transformer_sam",
        "Attention(128, 4, use_rel_pos=True, input_size=(8, 8))",
        inputs="randn(B, 8, 8, 128)",
        sizes=_EIGHT,
    ),
    _timm("cait class", "module, plain", "models.cait", "ClassAttn(128, 4)", why="one query: the first token"),
    _timm(
        "cait talking heads",
        "head mixing",
        "models.cait",
        "TalkingHeadAttn(128, 4)",
        fused=False,
        why="scores and weights of different heads are mixed",
    ),
    _timm("xcit", "channel attention", "models.xcit", "XCA(128, 4)", fused=False, why="a D x D matrix"),
    _timm(
        "edgenext",
        "channel attention",
        "models.edgenext",
        "CrossCovarianceAttn(128, 4)",
        fused=False,
        why="a D x D matrix",
    ),
    _timm(
        "davit channels",
        "channel attention",
        "models.davit",
        "ChannelAttention(128, 4)",
        fused=False,
        why="a D x D matrix",
    ),
    _timm(
        "davit window",
        "module, plain",
        "models.davit",
        "WindowAttention(128, (4, 4), 4)",
        inputs="randn(B, 16, 128)",
        sizes={"Sq": 16, "Sk": 16},
    ),
    _timm(
        "convit",
        "positional mix",
        "models.convit",
        "GPSA(128, 4)",
        inputs=_GRID,
        sizes=_EIGHT,
        why="softmax(s) and softmax(positions) mixed by a gate per head, then divided by the sum",
        fused=False,
    ),
    _timm("volo", "module, plain", "models.volo", "Attention(128, 4)", inputs="randn(B, 8, 8, 128)", sizes=_EIGHT),
    _timm(
        "volo outlook",
        "no product",
        "models.volo",
        "OutlookAttention(128, 4)",
        inputs="randn(B, 8, 8, 128)",
        sizes=_EIGHT,
        fused=False,
        why="weights are a linear layer of the query: no q k^T",
    ),
    _timm(
        "pvt",
        "module, plain",
        "models.pvt_v2",
        "Attention(128, 4, sr_ratio=2)",
        call="m(x, (8, 8))",
        inputs=_GRID,
        sizes=_EIGHT,
    ),
    _timm(
        "twins local",
        "module, plain",
        "models.twins",
        "LocallyGroupedAttn(128, 4, ws=4)",
        call="m(x, (8, 8))",
        inputs=_GRID,
        sizes=_EIGHT,
    ),
    _timm("crossvit", "module, plain", "models.crossvit", "CrossAttention(128, 4)"),
    _timm(
        "nest",
        "module, plain",
        "models.nest",
        "Attention(128, 4)",
        inputs="randn(B, 4, 16, 128)",
        sizes={"Sq": 16, "Sk": 16},
        why="two batch axes",
    ),
    _timm(
        "mvit",
        "decomposed rel-pos",
        "models.mvitv2",
        "MultiScaleAttention(128, 128, (8, 8), num_heads=4, has_cls_token=False, rel_pos_type='spatial')",
        call="m(x, (8, 8))[0]",
        inputs=_GRID,
        sizes=_EIGHT,
    ),
    _timm(
        "gcvit",
        "table by index",
        "models.gcvit",
        "WindowAttentionGlobal(128, 4, (4, 4), use_global=False)",
        inputs="randn(B, 16, 128)",
        sizes={"Sq": 16, "Sk": 16},
    ),
    _timm(
        "halo",
        "Shaw q.R",
        "layers.halo_attn",
        "HaloAttn(128, dim_head=32, num_heads=4, block_size=4, halo_size=1)",
        inputs=_IMAGE,
        sizes=_EIGHT,
        why="blocks with overlapping halos by unfold; q.R relative logits",
    ),
    _timm(
        "bottleneck",
        "decomposed rel-pos",
        "layers.bottleneck_attn",
        "BottleneckAttn(128, feat_size=(8, 8), dim_head=32, num_heads=4)",
        inputs=_IMAGE,
        sizes=_EIGHT,
    ),
    _timm(
        "lambda",
        "linear attention",
        "layers.lambda_layer",
        "LambdaLayer(128, feat_size=(8, 8), dim_head=32, num_heads=4)",
        inputs=_IMAGE,
        sizes=_EIGHT,
        fused=False,
        why="softmax of keys, then (K^T V) first",
    ),
    _timm(
        "efficientvit linear",
        "linear attention",
        "models.efficientvit_mit",
        "LiteMLA(128, 128)",
        inputs=_IMAGE,
        sizes=_EIGHT,
        fused=False,
        why="(K^T V) first",
    ),
    _timm(
        "swiftformer",
        "linear attention",
        "models.swiftformer",
        "EfficientAdditiveAttention(128, 128)",
        inputs=_IMAGE,
        sizes=_EIGHT,
        fused=False,
        why="no product of queries and keys",
    ),
]
