"""What a user could pick instead: SDPA, FlexAttention on Triton and on FlashAttention-4, FA3, FA4; each where it has
the row's mask and score.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

from .problems import Row
from .variants import DOCUMENTS, spec_function

Call = Callable[[], Any]
Maker = Callable[[dict[str, Any], Row, dict[str, Any]], Call]  # (tensors, row, operands) -> a launch


class Unsupported(Exception):
    """The peer does not have this row."""


def _found(*names: str) -> Any | None:
    for name in names:
        try:
            return importlib.import_module(name)
        except (ImportError, OSError):
            continue
    return None


def _scale(row: Row) -> float | None:
    return row.change.scale if row.change is not None else None


# ---- SDPA


def _sdpa(backend: str) -> Maker:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    chosen = getattr(SDPBackend, backend)

    def make(t: dict[str, Any], row: Row, operands: dict[str, Any]) -> Call:
        bias = None
        if row.change is not None:
            bias = operands.get("bias")  # a dense bias is the one variant that it takes as it is
            if bias is None:
                raise Unsupported
            bias = bias.expand(row.B, -1, -1, -1)
        grouped = t["q"].shape[1] != t["k"].shape[1]

        def call() -> Any:
            with sdpa_kernel(chosen):
                return torch.nn.functional.scaled_dot_product_attention(
                    t["q"], t["k"], t["v"], attn_mask=bias, is_causal=row.causal, enable_gqa=grouped, scale=_scale(row)
                )

        return call

    return make


# ---- FlexAttention


@cache
def _compiled_flex() -> Any:
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    torch._dynamo.config.recompile_limit = 256  # pyright: ignore[reportPrivateUsage]
    return torch.compile(flex_attention, dynamic=False)


def _causal_mod(b: Any, h: Any, i: Any, j: Any) -> Any:
    return i >= j


def _flex(backend: str) -> Maker:
    from torch.nn.attention.flex_attention import create_block_mask

    compiled = _compiled_flex()

    def make(t: dict[str, Any], row: Row, operands: dict[str, Any]) -> Call:
        change = row.change
        if change is not None and not change.softmax:
            raise Unsupported
        keep = _causal_mod if row.causal and change is None else None
        score = None
        if change is not None:
            keep = change.keep(operands) if change.keep else None
            score = change.score(operands) if change.score else None
        mask = None if keep is None else create_block_mask(keep, None, None, row.S, row.S)
        options: dict[str, Any] = {"scale": _scale(row), "enable_gqa": row.Hkv != row.H}
        if backend:
            options["kernel_options"] = {"BACKEND": backend}
        if "sinks" in operands:
            return _with_sink(compiled, t, score, mask, operands["sinks"], options)
        return lambda: compiled(t["q"], t["k"], t["v"], score_mod=score, block_mask=mask, **options)

    return make


def _with_sink(compiled: Any, t: dict[str, Any], score: Any, mask: Any, sinks: Any, options: dict[str, Any]) -> Call:
    """FlexAttention has no sink: its users scale O by what the sink leaves, as the log-sum-exp tells."""
    import torch

    @torch.compile(dynamic=False)
    def left(o: Any, lse: Any) -> Any:
        return (o * torch.sigmoid(lse - sinks[:, None])[..., None]).to(o.dtype)

    def call() -> Any:
        return left(*compiled(t["q"], t["k"], t["v"], score_mod=score, block_mask=mask, return_lse=True, **options))

    return call


# ---- FlashAttention


def _flash_attn(module: Any) -> Maker:
    function = module.flash_attn_func
    known = set(inspect.signature(function).parameters)

    def make(t: dict[str, Any], row: Row, operands: dict[str, Any]) -> Call:
        given: dict[str, Any] = {"causal": row.causal}
        if row.change is not None:
            given = {key: operands[x] if isinstance(x, str) else x for key, x in row.change.flash.items()}
            if not given or set(given) - known:
                raise Unsupported
        if "learnable_sink" in given:
            given["learnable_sink"] = given["learnable_sink"].to(t["q"].dtype)
        q, k, v = (t[name].transpose(1, 2).contiguous() for name in "qkv")  # [B, S, H, D], as it wants it
        return lambda: _first(function(q, k, v, **given)).transpose(1, 2)

    return make


def _first(result: Any) -> Any:
    return result[0] if isinstance(result, tuple) else result


def _varlen(module: Any) -> Maker:
    """Packed documents as sequences of their own."""
    function = module.flash_attn_varlen_func
    known = set(inspect.signature(function).parameters)

    def make(t: dict[str, Any], row: Row, operands: dict[str, Any]) -> Call:
        import torch

        if row.change is None or not row.change.packed:
            raise Unsupported
        length = row.S // DOCUMENTS
        q, k, v = (t[name].transpose(1, 2).reshape(-1, t[name].shape[1], t[name].shape[3]) for name in "qkv")
        ends = torch.arange(0, q.shape[0] + 1, length, device="cuda", dtype=torch.int32)
        lengths = {"cu_seqlens_q": ends, "cu_seqlens_k": ends, "max_seqlen_q": length, "max_seqlen_k": length}
        given = {key: value for key, value in lengths.items() if key in known}
        shape = (row.B, row.S, row.H, row.Dv)
        return lambda: _first(function(q, k, v, causal=row.causal, **given)).reshape(shape).transpose(1, 2)

    return make


# ---- the spec itself


def _compiled_spec(t: dict[str, Any], row: Row, operands: dict[str, Any]) -> Call:
    """torch.compile of the spec, in the inputs' own type: what there is where no library has the row."""
    import torch

    change = row.change
    if change is None or change.softmax:
        raise Unsupported
    compiled: Any = torch.compile(spec_function(change.spec), dynamic=False)
    return lambda: compiled(t["q"], t["k"], t["v"], *operands.values())


def peers() -> dict[str, Maker]:
    """Makers of calls of the peers installed, by the name in the record."""
    found: dict[str, Maker] = {
        "sdpa_flash": _sdpa("FLASH_ATTENTION"),
        "sdpa_cudnn": _sdpa("CUDNN_ATTENTION"),
        "sdpa_efficient": _sdpa("EFFICIENT_ATTENTION"),
        "torch_compile": _compiled_spec,
    }
    if _found("triton") is not None:
        found["flex_triton"] = _flex("")
    fa4 = _found("flash_attn.cute", "flash_attn.cute.interface")
    if fa4 is not None and hasattr(fa4, "flash_attn_func"):
        found |= {"fa4": _flash_attn(fa4), "flex_flash": _flex("FLASH")}
    if fa4 is not None and hasattr(fa4, "flash_attn_varlen_func"):
        found["fa4_varlen"] = _varlen(fa4)
    fa3 = _found("fa3_fwd_interface", "flash_attn_interface")
    if fa3 is not None:
        found["fa3"] = _flash_attn(fa3)
        if hasattr(fa3, "flash_attn_varlen_func"):
            found["fa3_varlen"] = _varlen(fa3)
    return found
