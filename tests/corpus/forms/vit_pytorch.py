"""vit-pytorch: one class called Attention per idea."""

from __future__ import annotations

from ..form import Form


def _vit(
    file: str,
    family: str,
    make: str = "Attention(128, heads=4, dim_head=32)",
    *,
    call: str = "m(x)",
    arguments: str = "x",
    inputs: str = "randn(B, Sq, 128)",
    name: str = "",
    **more: object,
) -> Form:
    cls = make.partition("(")[0]
    body = (
        'stand_in("torchvision")\n'
        f"from vit_pytorch.{file} import {cls}\n\n"
        f"m = shaken({make})\n\n\n"
        f"def attention({arguments}):\n    return {call}\n"
    )
    return Form(f"vit-pytorch {name or file}", family, "vit-pytorch", body, inputs, **more)  # type: ignore[arg-type]


_MAP = "randn(B, 128, 8, 8)"
_EIGHT = {"Sq": 64, "Sk": 64}

FORMS = [
    _vit("vit", "module, plain", fast=True),
    _vit("simple_vit_with_qk_norm", "qk-norm"),
    _vit("cait", "head mixing", fused=False, why="scores and weights of different heads are mixed", fast=True),
    _vit("deepvit", "head mixing", fused=False, why="weights of different heads are mixed and normalised", fast=True),
    _vit("xcit", "channel attention", "XCAttention(128, heads=4, dim_head=32)", fused=False, why="a D x D matrix"),
    _vit("local_vit", "module, plain"),
    _vit("levit", "table by index", "Attention(128, 8, heads=4, dim_key=32, dim_value=64)", inputs=_MAP, sizes=_EIGHT),
    _vit(
        "max_vit",
        "table by index",
        "Attention(128, dim_head=32, window_size=4)",
        inputs="randn(B, 2, 2, 4, 4, 128)",
        sizes={"Sq": 16, "Sk": 16},
        why="window axes in the batch",
    ),
    _vit(
        "crossformer",
        "table by i - j",
        "Attention(128, 'short', 4, dim_head=32)",
        inputs=_MAP,
        sizes=_EIGHT,
        why="a bias from an MLP over 2-D distances",
    ),
    _vit(
        "regionvit",
        "bias",
        "Attention(128, heads=4, dim_head=32)",
        call="m(x, rel_pos_bias=b)",
        arguments="x, b",
        inputs="randn(B, Sq, 128), randn(4, Sq, Sq)",
    ),
    _vit(
        "learnable_memory_vit",
        "memory keys",
        call="m(x, memories=mem)",
        arguments="x, mem",
        inputs="randn(B, Sq, 128), randn(3, 128)",
    ),
    _vit(
        "vit_for_small_dataset",
        "cosine",
        "LSA(128, heads=4, dim_head=32)",
        why="a learned temperature and the diagonal masked",
    ),
    _vit(
        "scalable_vit",
        "module, plain",
        "ScalableSelfAttention(128, heads=4, dim_key=32, dim_value=32, reduction_factor=2)",
        inputs=_MAP,
        sizes=_EIGHT,
    ),
    _vit("cvt", "module, plain", "Attention(128, 3, 2, heads=4, dim_head=32)", inputs=_MAP, sizes=_EIGHT),
    _vit("nest", "module, plain", "Attention(128, heads=4)", inputs=_MAP, sizes=_EIGHT),
    _vit(
        "na_vit",
        "bool mask",
        call="m(x, attn_mask=mask)",
        arguments="x, mask",
        inputs="randn(B, Sq, 128), keep(B, 1, Sq, Sq)",
    ),
    _vit(
        "ats_vit",
        "top-k",
        call="m(x, mask=mask)[0]",
        arguments="x, mask",
        inputs="randn(B, Sq, 128), keep(B, Sq)",
        make="Attention(128, heads=4, dim_head=32, output_num_tokens=8)",
        fused=False,
        why="samples tokens by their weights",
    ),
    _vit("simple_vit_with_value_residual", "module, plain", call="m(x)[0]"),
    _vit(
        "simple_vit_with_relative_proj_pos_bias",
        "table by i - j",
        inputs="randn(B, 8, 8, 128)",
        sizes=_EIGHT,
        why="a bias projected from the query by distance",
    ),
    _vit("twins_svt", "module, plain", "GlobalAttention(128, heads=4, dim_head=32, k=2)", inputs=_MAP, sizes=_EIGHT),
    _vit("normalized_vit", "qk-norm", "Attention(128, dim_head=32, heads=4)"),
    _vit("vat_siglip", "gated output", "Attention(128, heads=4, dim_head=32, gate_attn=True)"),
    _vit(
        "vivit_with_moss",
        "causal mask",
        "Attention(128, heads=4, dim_head=32, use_flash_attn=False, causal=True)",
        call="m(x)",
    ),
    _vit("look_vit", "second use of P", "Attention(128, heads=4, dim_head=32)"),
]
