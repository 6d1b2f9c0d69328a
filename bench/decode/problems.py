"""Decoding problems: random keys, contiguous and in pages, and the float32 reference."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class Row:
    """A row of the table. `page`: rows of a page of the cache; 0: the keys of an entry are contiguous."""

    variant: str
    B: int
    H: int
    Hkv: int
    S: int
    D: int = 128
    Sq: int = 1
    page: int = 0
    dtype: str = "bfloat16"

    @property
    def kv_bytes(self) -> int:
        """Bytes of the keys and values, which is what a launch must read."""
        return 2 * self.B * self.Hkv * self.S * self.D * 2

    def shape(self) -> dict[str, Any]:
        """For the record."""
        return {key: value for key, value in asdict(self).items() if key != "variant"}


class Inputs:
    """Random tensors of a problem on the GPU: q, k, v [B, heads, length, width], lengths of the entries (or none), the
    same keys and values in pages where there are pages, and o and lse to write to.

    Pages lie in a random order. Keys behind the last one of an entry are NaN: they must not count.
    """

    def __init__(
        self, b: int, h: int, hkv: int, sq: int, sk: int, d: int, dv: int, dtype: str, seed: int,
        page: int = 0, lengths: tuple[int, ...] = (), causal: bool = True,
    ) -> None:  # fmt: skip
        import torch

        self.kind = getattr(torch, dtype)
        self.page, self.lengths, self.causal, self.sk = page, lengths, causal, sk
        self.generator = torch.Generator("cuda").manual_seed(seed)
        self.q = 1.5 * self._normal(b, h, sq, d)
        self.k, self.v = self._normal(b, hkv, sk, d), self._normal(b, hkv, sk, dv)
        for entry, length in enumerate(lengths):
            self.k[entry, :, length:] = self.v[entry, :, length:] = math.nan
        self.o = torch.full((b, h, sq, dv), math.nan, device="cuda", dtype=self.kind)
        self.lse = torch.full((b, h, sq), math.nan, device="cuda")

    def _normal(self, *shape: int) -> Any:
        import torch

        return torch.randn(*shape, device="cuda", generator=self.generator, dtype=torch.float32).to(self.kind)

    @cached_property
    def kv_lengths(self) -> Any:
        """int32 [B], or None where every entry has Sk keys."""
        import torch

        return torch.tensor(self.lengths, dtype=torch.int32, device="cuda") if self.lengths else None

    @cached_property
    def table(self) -> Any:
        """int32 [B, pages of an entry]: a permutation of all pages."""
        import torch

        count = max(-(-self.sk // self.page), 1)
        order = torch.randperm(self.q.shape[0] * count, device="cuda", generator=self.generator)
        return order.to(torch.int32).reshape(-1, count)

    def in_pages(self, x: Any) -> Any:
        """Keys or values as a cache [pages, page, Hkv, width], rows of heads side by side, as servers keep it."""
        import torch

        b, hkv, sk, width = x.shape
        whole = torch.full((b, hkv, self.table.shape[1] * self.page, width), math.nan, device="cuda", dtype=x.dtype)
        whole[:, :, :sk] = x
        pages = whole.reshape(b, hkv, -1, self.page, width).transpose(1, 2).reshape(-1, hkv, self.page, width)
        cache = torch.empty_like(pages.transpose(1, 2), memory_format=torch.contiguous_format)
        cache[self.table.flatten().long()] = pages.transpose(1, 2)
        return cache

    @cached_property
    def cache(self) -> tuple[Any, Any]:
        """K and V in pages."""
        return self.in_pages(self.k), self.in_pages(self.v)

    def poison(self) -> None:
        """NaN where a launch writes."""
        self.o.fill_(math.nan)
        self.lse.fill_(math.nan)


def reference(x: Inputs) -> tuple[Any, Any]:
    """O and LSE in float32, by KV head. A row that sees no key gives 0 and -inf."""
    import torch

    b, h, sq, _ = x.q.shape
    hkv, sk = x.k.shape[1:3]
    o = torch.zeros(b, h, sq, x.v.shape[3], device="cuda")
    lse = torch.full((b, h, sq), -math.inf, device="cuda")
    group = h // hkv
    for entry in range(b):
        length = x.lengths[entry] if x.lengths else sk
        if length == 0:
            continue
        end = torch.arange(sq, device="cuda") + length - sq if x.causal else torch.full((sq,), length, device="cuda")
        hidden = torch.arange(length, device="cuda")[None] > end[:, None]
        for hk in range(hkv):
            heads = slice(hk * group, (hk + 1) * group)
            s = x.q[entry, heads].float() @ x.k[entry, hk, :length].float().T * x.q.shape[-1] ** -0.5
            s = s.masked_fill(hidden, -math.inf)
            lse[entry, heads] = torch.logsumexp(s, -1)
            top = torch.where(lse[entry, heads].isinf(), 0.0, lse[entry, heads])
            o[entry, heads] = torch.exp(s - top[..., None]) @ x.v[entry, hk, :length].float()
    return o, lse
