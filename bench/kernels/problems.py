"""The rows of the table: what is computed at which sizes, inputs, the float32 reference, limits of error."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from cubridge_engine.device.timing import relative_error as error

from .variants import VARIANTS, Variant, spec_function

ERROR_LIMIT = {"bfloat16": 6e-3, "float16": 1e-3}  # of O, relative, in the Frobenius norm
LSE_LIMIT = 2e-3
__all__ = [
    "BASE",
    "ERROR_LIMIT",
    "LSE_LIMIT",
    "ROWS",
    "Row",
    "draw",
    "error",
    "operands_of",
    "reference",
    "wanted_output",
]


@dataclass(frozen=True)
class Row:
    """A problem of the table: attention, causal or not, or a variant of it."""

    variant: str
    B: int
    H: int
    Hkv: int
    S: int
    D: int
    Dv: int
    causal: bool
    dtype: str = "bfloat16"
    change: Variant | None = None

    def tflop(self, operands: dict[str, Any]) -> float:
        """Useful work of one launch: 2 (D + Dv) for each pair (i, j) that is attended."""
        if self.change is not None:
            pairs = attended(self, operands)
        else:
            pairs = self.S * (self.S + 1) / 2 if self.causal else self.S**2
        return 2 * (self.D + self.Dv) * self.B * self.H * pairs / 1e12

    def shape(self) -> dict[str, Any]:
        """For the record."""
        names = ("B", "H", "Hkv", "S", "D", "Dv", "causal", "dtype")
        return {name: getattr(self, name) for name in names}


def _pair(name: str, *sizes: int) -> list[Row]:
    return [Row(f"{name} full", *sizes, causal=False), Row(f"{name} causal", *sizes, causal=True)]


BASE = [
    *_pair("D=128", 4, 32, 32, 4096, 128, 128),
    *_pair("D=64", 4, 32, 32, 4096, 64, 64),
    *_pair("GQA 64/8 S=8192", 1, 64, 8, 8192, 128, 128),
    *_pair("B=16 S=1024", 16, 32, 32, 1024, 128, 128),
    *_pair("D=256", 4, 16, 16, 4096, 256, 256),
    *_pair("D=192 Dv=128", 4, 16, 16, 4096, 192, 128),
]
ROWS = [*BASE, *(Row(v.name, 4, 32, 32, 4096, 128, 128, causal=v.causal, change=v) for v in VARIANTS)]


def draw(b: int, h: int, hkv: int, sq: int, sk: int, d: int, dv: int, dtype: str, seed: int) -> dict[str, Any]:
    """Random q, k, v and poisoned o, lse on the GPU."""
    import torch

    generator = torch.Generator("cuda").manual_seed(seed)
    kind = getattr(torch, dtype)

    def normal(*shape: int) -> Any:
        return torch.randn(*shape, device="cuda", generator=generator).to(kind)

    o = torch.full((b, h, sq, dv), math.nan, device="cuda", dtype=kind)
    lse = torch.full((b, h, sq), math.nan, device="cuda")
    return {"q": 1.5 * normal(b, h, sq, d), "k": normal(b, hkv, sk, d), "v": normal(b, hkv, sk, dv), "o": o, "lse": lse}


def operands_of(row: Row) -> dict[str, Any]:
    """The tensors of the variant's spec besides q, k and v, by name."""
    if row.change is None or row.change.operands is None:
        return {}
    return row.change.operands(row.H, row.S, row.dtype, "cuda")


def attended(row: Row, operands: dict[str, Any]) -> int:
    """How many pairs (i, j) of one head the variant attends."""
    import torch

    assert row.change is not None
    if row.change.keep is None:
        return row.S**2
    i = torch.arange(row.S, device="cuda")
    kept = row.change.keep(operands)(0, 0, i[:, None], i[None, :])
    return int(kept.expand(row.S, row.S).sum())


def reference(tensors: dict[str, Any], causal: bool) -> tuple[Any, Any]:
    """O and LSE in float32, head by head. A row that sees no key gives 0 and -inf."""
    import torch

    q, k, v = (tensors[name] for name in "qkv")
    o, lse = torch.empty(*q.shape[:3], v.shape[-1], device="cuda"), torch.empty(q.shape[:3], device="cuda")
    sq, sk = q.shape[2], k.shape[2]
    hidden = torch.ones(sq, sk, dtype=torch.bool, device="cuda").triu(sk - sq + 1) if causal else None
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            hk = h // (q.shape[1] // k.shape[1])
            s = q[b, h].float() @ k[b, hk].float().T * q.shape[-1] ** -0.5
            s = s.masked_fill(hidden, -math.inf) if hidden is not None else s
            lse[b, h] = torch.logsumexp(s, -1) if sk else -math.inf
            p = torch.where(lse[b, h, :, None].isinf(), 0.0, torch.exp(s - lse[b, h, :, None]))
            o[b, h] = p @ v[b, hk].float()
    return o, lse


def wanted_output(row: Row, tensors: dict[str, Any], operands: dict[str, Any]) -> Any:
    """O in float32: the variant's own spec on float32 inputs, a batch at a time."""
    import torch

    if row.change is None:
        return reference(tensors, row.causal)[0]
    function = spec_function(row.change.spec)
    given = [t.float() if t.is_floating_point() else t for t in operands.values()]
    parts = [
        function(*(tensors[name][b : b + 1].float() for name in "qkv"), *given) for b in range(tensors["q"].shape[0])
    ]
    return torch.cat(parts)
