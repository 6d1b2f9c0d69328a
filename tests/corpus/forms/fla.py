"""The naive references of flash-linear-attention, loaded file by file: the package itself wants a GPU compiler."""

from __future__ import annotations

from ..form import Form

_BSHD = "q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)"


def _naive(
    name: str, family: str, file: str, call: str, *, extra: str = "", inputs: str = "q, k, v", **more: object
) -> Form:
    body = (
        f'naive = by_path("fla/ops/{file}/naive.py")\n\n\n'
        f"def attention(q, k, v{', ' + extra if extra else ''}):\n    return naive.{call}\n"
    )
    return Form(f"fla {name}", family, "fla", body, inputs, **more)  # type: ignore[arg-type]


FORMS = [
    _naive("retention", "decay", "retention", "naive_retention(q, k, v)", fast=True),
    _naive("based", "sigmoid or ReLU weights", "based", "naive_parallel_based(q, k, v)", fast=True),
    _naive("rebased", "sigmoid or ReLU weights", "rebased", "naive_parallel_rebased(q, k, v)"),
    _naive(
        "forgetting",
        "decay",
        "forgetting_attn",
        "naive_forgetting_attn(q, k, v, g)",
        extra="g",
        inputs=_BSHD + ", -positive(B, Sq, H)",
        why="F_i - F_j from a running sum of an input: a vector per row and per column",
    ),
    _naive("attention", "GQA", "attn", "naive_parallel_attn(q, k, v)[0]", inputs=_BSHD, sizes={"Hkv": 2}, fast=True),
    _naive(
        "attention window",
        "window mask",
        "attn",
        "naive_parallel_attn(q, k, v, window_size=12)[0]",
        inputs=_BSHD,
        sizes={"Hkv": 2},
    ),
    _naive(
        "attention sink",
        "sink as a column",
        "attn",
        "naive_parallel_attn(q, k, v, sink_bias=sink)[0]",
        extra="sink",
        inputs=_BSHD + ", randn(H)",
    ),
    _naive(
        "simple gla",
        "decay",
        "simple_gla",
        "naive_parallel_simple_gla(q, k, v, g)[0]",
        extra="g",
        inputs=_BSHD + ", -positive(B, Sq, H)",
    ),
    _naive(
        "simple gla chunks",
        "decay",
        "simple_gla",
        "naive_chunk_simple_gla(q, k, v, g, chunk_size=8)[0]",
        extra="g",
        inputs=_BSHD + ", -positive(B, Sq, H)",
        fused=False,
        why="a recurrence over chunks with a state",
    ),
    _naive(
        "simple gla recurrent",
        "linear attention",
        "simple_gla",
        "naive_recurrent_simple_gla(q, k, v, g)[0]",
        extra="g",
        inputs=_BSHD + ", -positive(B, Sq, H)",
        fused=False,
        why="a recurrence over positions with a state",
        sizes={"Sq": 12, "Sk": 12},
    ),
    _naive(
        "linear chunks",
        "linear attention",
        "linear_attn",
        "naive_chunk_linear_attn(q, k, v)",
        inputs="randn(B, 128, H, D), randn(B, 128, H, D), randn(B, 128, H, D)",
        sizes={"Sq": 128, "Sk": 128},
        fused=False,
        why="a running sum of K^T V",
    ),
    _naive(
        "stick breaking",
        "running sum",
        "stickbreaking_attn",
        "naive_stickbreaking_attn(q, k, v)[0]",
        inputs=_BSHD,
        fused=False,
        why="a running sum of scores along the keys",
        fast=True,
    ),
    _naive(
        "parallax",
        "second use of P",
        "parallax",
        "naive_parallax(q, r, k, v)",
        extra="r",
        inputs=_BSHD + ", randn(B, Sq, H, D)",
        fused=False,
        why="a second product and a second accumulator",
    ),
    _naive(
        "deltaformer",
        "running sum",
        "deltaformer",
        "naive_deltaformer_attn(q, k, v)",
        inputs=_BSHD,
        fused=False,
        why="values are a recurrence over earlier rows",
        sizes={"Sq": 12, "Sk": 12},
    ),
]
