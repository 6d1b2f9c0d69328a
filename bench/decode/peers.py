"""What a user could pick instead for decoding: SDPA on its backends, FlexAttention, FA3 with its KV cache.

Each gets the keys in the layout it wants, made before anything is timed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from .problems import Inputs

Call = Callable[[], Any]


class Unsupported(Exception):
    """The peer does not have this row."""


def _sdpa(backend: str) -> Callable[[Inputs], Call]:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    chosen = getattr(SDPBackend, backend)

    def make(x: Inputs) -> Call:
        if x.page or x.lengths or x.q.shape[2] > 1:
            raise Unsupported
        grouped = x.q.shape[1] != x.k.shape[1]

        def call() -> Any:
            with sdpa_kernel(chosen):
                return torch.nn.functional.scaled_dot_product_attention(x.q, x.k, x.v, enable_gqa=grouped)

        return call

    return make


def _flex(x: Inputs) -> Call:
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    if x.page or x.lengths or x.q.shape[2] > 1:
        raise Unsupported
    compiled: Any = torch.compile(flex_attention, dynamic=False)
    return lambda: compiled(x.q, x.k, x.v, enable_gqa=x.q.shape[1] != x.k.shape[1])


def _fa3(module: Any) -> Callable[[Inputs], Call]:
    def make(x: Inputs) -> Call:
        import torch

        q = x.q.transpose(1, 2).contiguous()  # [B, Sq, H, D], as it wants it
        k, v = x.cache if x.page else (x.k.transpose(1, 2).contiguous(), x.v.transpose(1, 2).contiguous())
        given: dict[str, Any] = {"page_table": x.table} if x.page else {}
        lengths = x.kv_lengths
        if lengths is None:
            lengths = torch.full((q.shape[0],), x.sk, dtype=torch.int32, device="cuda")
        given |= {"cache_seqlens": lengths, "causal": x.causal}
        return lambda: module.flash_attn_with_kvcache(q, k, v, **given).transpose(1, 2)

    return make


def peers() -> dict[str, Callable[[Inputs], Call]]:
    """Makers of calls of the peers installed, by the name in the record."""
    found: dict[str, Callable[[Inputs], Call]] = {
        "sdpa_flash": _sdpa("FLASH_ATTENTION"),
        "sdpa_cudnn": _sdpa("CUDNN_ATTENTION"),
    }
    for name, make in (("triton", lambda _: _flex), ("fa3_fwd_interface", _fa3), ("flash_attn_interface", _fa3)):
        try:
            module = importlib.import_module(name)
        except (ImportError, OSError):
            continue
        found.setdefault("flex_triton" if name == "triton" else "fa3", make(module))
    return found
