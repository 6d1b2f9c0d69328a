"""Cases that an adapted kernel fails because the kernel it was made from does: found by running that one on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..diagnostics import Diagnostic, make
from ..ir.expr import TRUE, Expr, S
from ..ir.interp import execute
from ..ir.nodes import Kernel
from ..results import CaseResult
from ..transfer.sampling import value_at
from ..transfer.semantics import NotAttention, Semantics, bound_semantics, semantics_of

Array = NDArray[Any]
_TOLERANCE = 1e-6  # as `verify.measure` has it for exact arithmetic


def inherited(kernel: Kernel, bindings: Mapping[str, float | int], cases: Sequence[CaseResult]) -> list[Diagnostic]:
    """CB033 for each failed case on which `kernel` itself, with its switches off, is no attention over all keys.
    Nothing where it cannot be told: a kernel whose scores are more than a scale, or masked.
    """
    values = _own_values(kernel, bindings)
    sem = _plain(kernel, values)
    if sem is None:
        return []
    found: list[Diagnostic] = []
    for case in {c.name: c for c in cases if not c.passed and c.level == "ir"}.values():
        place = _first_wrong(kernel, sem, values, case)
        if place is not None:
            sizes = " ".join(f"{n}={v}" for n, v in case.sizes.items())
            where, got, want = place
            text = ", ".join(f"{n}={v}" for n, v in zip(("b", "h", "i", "d"), where, strict=True))
            span = kernel.origin.span
            found.append(
                make("CB033", span, case=case.name, sizes=sizes, place=text, got=f"{got:.4g}", want=f"{want:.4g}")
            )
    return found


def _own_values(kernel: Kernel, bindings: Mapping[str, float | int]) -> dict[str, float | int]:
    own = {p.name: p.role for p in kernel.params}
    values = {n: v for n, v in bindings.items() if n in own and not own[n].startswith("flag")}
    return {**values, **{n: 0 for n, role in own.items() if role.startswith("flag")}}


def _plain(kernel: Kernel, values: Mapping[str, float | int]) -> Semantics | None:
    try:
        sem = bound_semantics(semantics_of(kernel), values)
    except NotAttention:
        return None
    plain = sem.keep == TRUE and sem.normaliser == "softmax" and sem.sink is None and not sem.issues
    return sem if plain and kernel.Dv == kernel.D else None


def _first_wrong(
    kernel: Kernel, sem: Semantics, values: Mapping[str, float | int], case: CaseResult
) -> tuple[tuple[int, ...], float, float] | None:
    """Where the kernel's own output on such sizes is not that of attention, with both numbers."""
    sizes, rng = dict(case.sizes), np.random.default_rng(case.seed)
    b, h, hkv, rows, keys = (sizes[n] for n in ("B", "H", "Hkv", "Sq", "Sk"))
    d = kernel.D
    sizes["D"] = d
    q, k, v = (rng.standard_normal(shape) for shape in ((b, h, rows, d), (b, hkv, keys, d), (b, hkv, keys, d)))
    got = execute(kernel, {"q": q, "k": k, "v": v}, sizes, dict(values)).o
    want = _attention(q, k, v, sem.score, _heads(sem.head_map, sizes))
    wrong = ~np.isclose(got, want, rtol=_TOLERANCE, atol=_TOLERANCE)
    if got.shape != want.shape or not wrong.any():
        return None
    at = tuple(int(n) for n in np.argwhere(wrong)[0])
    return at, float(got[at]), float(want[at])


def _heads(head_map: Expr, sizes: Mapping[str, int]) -> Array:
    env = {**sizes, "h": np.arange(sizes["H"])}
    return np.broadcast_to(np.asarray(value_at(head_map, env)), (sizes["H"],)).astype(int)


def _attention(q: Array, k: Array, v: Array, score: Expr, heads: Array) -> Array:
    k, v = k[:, heads], v[:, heads]
    if not k.shape[2]:
        return np.zeros(q.shape)  # as torch has it
    scale = float(np.asarray(value_at(score, {"s": 1.0, "D": q.shape[3]}))) if score != S else 1.0
    x = np.einsum("bhid,bhjd->bhij", q, k) * scale
    p = np.exp(x - x.max(-1, keepdims=True))
    return p @ v / p.sum(-1, keepdims=True)
