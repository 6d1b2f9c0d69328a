"""The variants of the table: the spec each is adapted to, and the same mask and score for the peers that take them.

A spec is plain PyTorch in ``bench/specs``; ``cubridge adapt`` makes the kernel from it, and on float32 inputs it is the
reference. Mods are FlexAttention's: ``keep(b, h, i, j)`` and ``score(s, b, h, i, j)``, over the spec's own tensors.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Mod = Callable[..., Any]
Tensors = Mapping[str, Any]
CAP, WINDOW, PREFIX, GLOBAL, BLOCK, SLOPE, DOCUMENTS = 50.0, 1024, 1024, 64, 512, 0.001, 8


@dataclass(frozen=True)
class Variant:
    """A row of the table besides the plain ones.

    `operands(H, S, dtype, device)` gives the spec's tensors besides q, k, v, in its order. `keep` and `score` make
    mods from them. `flash` are keywords of FlashAttention's functions for the same; `packed`: documents that its
    varlen functions take. `softmax` False: no peer has it. `scale` None is 1 / sqrt(D).
    """

    name: str
    spec: str
    causal: bool = False
    keep: Callable[[Tensors], Mod] | None = None
    score: Callable[[Tensors], Mod] | None = None
    operands: Callable[[int, int, str, str], dict[str, Any]] | None = None
    flash: dict[str, Any] = field(default_factory=dict)
    packed: bool = False
    softmax: bool = True
    scale: float | None = None


def spec_function(stem: str) -> Callable[..., Any]:
    """The ``attention`` of a spec of bench/specs."""
    return importlib.import_module(f"bench.specs.{stem}").attention


# ---- masks


def _causal(_: Tensors) -> Mod:
    return lambda b, h, i, j: i >= j


def _window(_: Tensors) -> Mod:
    return lambda b, h, i, j: (i >= j) & (i - j <= WINDOW)


def _both_sides(_: Tensors) -> Mod:
    return lambda b, h, i, j: (i - j <= WINDOW) & (j - i <= WINDOW)


def _prefix(_: Tensors) -> Mod:
    return lambda b, h, i, j: (i >= j) | (j < PREFIX)


def _global(_: Tensors) -> Mod:
    return lambda b, h, i, j: ((i - j <= WINDOW) & (j - i <= WINDOW)) | (i < GLOBAL) | (j < GLOBAL)


def _document(given: Tensors) -> Mod:
    ids = given["ids"]
    return lambda b, h, i, j: ids[i] == ids[j]


def _causal_document(given: Tensors) -> Mod:
    ids = given["ids"]
    return lambda b, h, i, j: (ids[i] == ids[j]) & (i >= j)


def _blockwise(_: Tensors) -> Mod:
    return lambda b, h, i, j: (i // BLOCK == j // BLOCK) & (i >= j)


def _evicted(given: Tensors) -> Mod:
    kept = given["kept"]
    return lambda b, h, i, j: kept[j] & (i >= j)


# ---- scores


def _softcap(_: Tensors) -> Mod:
    import torch

    return lambda s, b, h, i, j: CAP * torch.tanh(s / CAP)


def _alibi(given: Tensors) -> Mod:
    slopes = given["slopes"]
    return lambda s, b, h, i, j: s + slopes[h] * (j - i)


def _relative(_: Tensors) -> Mod:
    return lambda s, b, h, i, j: s + SLOPE * (i - j)


def _dense(given: Tensors) -> Mod:
    bias = given["bias"]
    return lambda s, b, h, i, j: s + bias[h, i, j]


# ---- tensors


def _random(device: str, *shape: int) -> Any:
    import torch

    return torch.randn(*shape, device=device, generator=torch.Generator(device).manual_seed(7))


def _slopes(heads: int, length: int, dtype: str, device: str) -> dict[str, Any]:
    import torch

    return {"slopes": torch.tensor([2.0 ** (-8 * (h + 1) / heads) for h in range(heads)], device=device)}


def _sinks(heads: int, length: int, dtype: str, device: str) -> dict[str, Any]:
    return {"sinks": _random(device, heads).bfloat16().float()}  # FA4 takes them in bfloat16


def _ids(heads: int, length: int, dtype: str, device: str) -> dict[str, Any]:
    import torch

    return {"ids": (torch.arange(length, device=device) * DOCUMENTS // length).int()}


def _kept(heads: int, length: int, dtype: str, device: str) -> dict[str, Any]:
    return {"kept": _random(device, length) < 0.5}


def _bias(heads: int, length: int, dtype: str, device: str) -> dict[str, Any]:
    import torch

    return {"bias": _random(device, heads, length, length).to(getattr(torch, dtype))}


_LEFT = {"causal": True, "window_size": (WINDOW, 0)}
_SINK = {"learnable_sink": "sinks"}
VARIANTS = (
    Variant("softcap causal", "softcap_causal", True, _causal, _softcap, flash={"causal": True, "softcap": CAP}),
    Variant("ALiBi causal", "alibi_causal", True, _causal, _alibi, _slopes),
    Variant("relative bias causal", "relative_bias_causal", True, _causal, _relative),
    Variant("causal window 1024", "window_causal", True, _window, flash=_LEFT),
    Variant(
        "causal window 1024 + sink", "window_causal_sink", True, _window, operands=_sinks, flash={**_LEFT, **_SINK}
    ),
    Variant("window +-1024", "window_both", False, _both_sides, flash={"window_size": (WINDOW, WINDOW)}),
    Variant("prefix-LM 1024", "prefix_lm", False, _prefix),
    Variant("global 64 + window", "global_window", False, _global),
    Variant("document (8)", "document", False, _document, operands=_ids, packed=True),
    Variant("causal document (8)", "document_causal", True, _causal_document, operands=_ids, packed=True),
    Variant("causal blockwise (8)", "blockwise_causal", True, _blockwise, packed=True),
    Variant("sink causal", "sink_causal", True, _causal, operands=_sinks, flash={"causal": True, **_SINK}),
    Variant(
        "softcap + window + sink",
        "softcap_window_sink",
        True,
        _window,
        _softcap,
        _sinks,
        flash={**_LEFT, **_SINK, "softcap": CAP},
    ),
    Variant("random eviction causal", "random_eviction", True, _evicted, operands=_kept),
    Variant("T5 bias", "t5_bias", False, None, _dense, _bias, scale=1.0),
    Variant("sigmoid causal", "sigmoid_causal", True, _causal, softmax=False),
    Variant("ReLU causal", "relu_causal", True, _causal, softmax=False),
    Variant("retention", "retention", True, _causal, softmax=False),
)
