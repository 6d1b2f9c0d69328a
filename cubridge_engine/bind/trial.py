"""Trying a binding: the kernel runs in the simulator on a small problem, and its output is compared with attention.

A binding is right when O is attention of Q, K and V in some usual form and nothing was read out of bounds. What it
computed is an answer of its own ("causal, scale 1/sqrt(D)"); none of the forms is an answer too.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ..compile import Contract, Instance, evaluate_condition
from ..diagnostics import Diagnostic
from ..simulate import Module, load
from ..simulate.calling import output, prepare_call

Array = NDArray[Any]
LOG2E = math.log2(math.e)
TOLERANCE = {"float32": 2e-4, "float16": 1e-2, "bfloat16": 4e-2}
PROBE_ROWS = 256
MOST_STEPS = 60_000
SCALE = 0.171875  # passed as the scale: no power of a head dimension

# name of a mask -> which (i, j) are attended, given Sk - Sq
MASKS: dict[str, Callable[[Array, Array, int], Array]] = {
    "full": lambda i, j, off: np.ones(np.broadcast_shapes(i.shape, j.shape), bool),
    "causal_bottom_right": lambda i, j, off: j <= i + off,
    "causal_top_left": lambda i, j, off: j <= i,
}


@dataclass(frozen=True, slots=True)
class Trial:
    """What a launch computed. `mask` and `scale` ('' when O is none of the forms tried), `lse` (natural, log2 or ''),
    `error` the largest difference of O from it, `findings` of the simulator, `seconds`.
    """

    mask: str
    scale: str
    lse: str
    error: float
    findings: tuple[Diagnostic, ...]
    refused: tuple[Diagnostic, ...] = ()
    gqa: bool = False

    @property
    def ok(self) -> bool:
        """True when O is attention."""
        return bool(self.mask)

    def text(self) -> str:
        """The function in words."""
        if not self.ok:
            return "none of the forms of attention that were tried"
        return f"{self.mask.replace('_', ' ')} attention, scale {self.scale}, max |error| {self.error:.1e}"


def problem_for(contract: Contract, instance: Instance, gqa: bool) -> dict[str, int] | None:
    """The smallest problem that the contract's conditions allow; None when there is none."""
    # Two tiles of rows at least, since a CTA that does too many hides behind one; two lengths where a kernel can have
    # them, since only then causal masks differ; two batches and heads, since strides count then.
    rows = max(64, 2 * contract.br)
    lengths = [(rows, rows + 64), (rows, 2 * rows), (rows, rows), (256, 256), (512, 512), (1024, 1024)]
    for (b, h), (sq, sk) in itertools.product(((2, 4 if gqa else 2), (1, 2), (1, 1)), lengths):
        sizes = {"B": b, "H": h, "Hkv": max(h // 2, 1) if gqa else h, "Sq": sq, "Sk": sk, "D": instance.head_dim}
        sizes["Dv"] = instance.value_dim
        if all(evaluate_condition(text, {**sizes, "element_bytes": 2}) for text in contract.requires):
            return sizes
    return None


@lru_cache(maxsize=4)
def _module(ptx: str) -> Module:
    """The PTX, read and made ready once for all the calls that are tried."""
    return load(ptx)


def rows_written(contract: Contract, instance: Instance, ptx: str, name: str, cancel: Callable[[], bool]) -> int:
    """How many rows of O a launch writes, the same in every head and without a gap from row 0; else 0."""
    sizes = {
        "B": 2,
        "H": 2,
        "Hkv": 2,
        "Sq": PROBE_ROWS,
        "Sk": PROBE_ROWS,
        "D": instance.head_dim,
        "Dv": instance.value_dim,
    }
    rng = np.random.default_rng(1)
    tensors = {r: rng.standard_normal((2, 2, PROBE_ROWS, instance.head_dim)) for r in ("q", "k", "v")}
    call = prepare_call(contract, instance, sizes, tensors, {"scale": SCALE})
    if call.diagnostics:
        return 0
    run = _module(ptx).launch(
        name, call.grid, call.block, call.args, dynamic_shared=call.dynamic_shared, checkers=(), cancel=cancel,
        max_steps=MOST_STEPS,
    )  # fmt: skip
    if "O" not in run.outputs or run.cancelled or call.buffers["o"].role != "out":
        return 0
    done = cast(Array, np.isfinite(output(call, run, "o")).all(axis=-1))
    rows = done.sum(-1)
    count = int(rows.flat[0])
    return count if (rows == count).all() and done[..., :count].all() else 0


def try_contract(
    contract: Contract, instance: Instance, ptx: str, name: str, sizes: dict[str, int], *, causal: int = 0,
    seed: int = 0, cancel: Callable[[], bool] | None = None,
) -> Trial:  # fmt: skip
    """Launch `instance`, the kernel `name` of the PTX, on random tensors of these sizes, and say what O is."""
    rng = np.random.default_rng(seed)
    q = rng.standard_normal((sizes["B"], sizes["H"], sizes["Sq"], sizes["D"]))
    k = rng.standard_normal((sizes["B"], sizes["Hkv"], sizes["Sk"], sizes["D"]))
    v = rng.standard_normal((sizes["B"], sizes["Hkv"], sizes["Sk"], sizes["Dv"]))
    q, k, v = (_rounded(x, instance.dtype) for x in (q, k, v))
    call = prepare_call(contract, instance, sizes, {"q": q, "k": k, "v": v}, {"scale": SCALE, "causal": causal})
    if call.diagnostics:
        return Trial("", "", "", math.inf, (), call.diagnostics)
    run = _module(ptx).launch(
        name, call.grid, call.block, call.args, dynamic_shared=call.dynamic_shared, checkers=("races",),
        max_steps=MOST_STEPS, cancel=cancel,
    )  # fmt: skip
    if "O" not in run.outputs:
        return Trial("", "", "", math.inf, run.findings)
    o = output(call, run, "o")
    lse = output(call, run, "lse") if "LSE" in run.outputs else None
    return _judged(q, k, v, o, lse, TOLERANCE[instance.dtype], run.findings)


def _rounded(x: Array, dtype: str) -> Array:
    if dtype == "bfloat16":
        bits = x.astype(np.float32).view(np.uint32)
        return ((bits + 0x8000) & 0xFFFF0000).astype(np.uint32).view(np.float32).astype(np.float64)
    return x.astype({"float16": np.float16}.get(dtype, np.float32)).astype(np.float64)


def _scales(d: int) -> Iterator[tuple[str, float]]:
    yield "as passed", SCALE
    yield "1/sqrt(D)", d**-0.5
    yield "1", 1.0
    yield "passed * ln 2", SCALE / LOG2E
    yield "log2(e)/sqrt(D)", LOG2E * d**-0.5
    yield "passed * log2(e)", SCALE * LOG2E
    yield "passed / sqrt(D)", SCALE * d**-0.5


def _judged(
    q: Array, k: Array, v: Array, o: Array, lse: Array | None, tolerance: float, findings: tuple[Diagnostic, ...]
) -> Trial:
    group = q.shape[1] // k.shape[1]
    kk, vv = np.repeat(k, group, 1), np.repeat(v, group, 1)
    raw = np.einsum("bhid,bhjd->bhij", q, kk)
    i, j = np.arange(q.shape[2])[:, None], np.arange(k.shape[2])[None]
    best = (math.inf, "", "", "")
    for mask, test in MASKS.items():
        if mask == "causal_top_left" and q.shape[2] == k.shape[2]:
            continue  # the same as bottom right here
        keep = test(i, j, k.shape[2] - q.shape[2])
        for name, scale in _scales(q.shape[-1]):
            s = np.where(keep, raw * scale, -np.inf)
            top = s.max(-1, keepdims=True)
            p = np.exp(s - np.where(np.isfinite(top), top, 0.0))
            total = p.sum(-1, keepdims=True)
            want = np.einsum("bhij,bhjd->bhid", p / np.where(total == 0, 1, total), vv)
            error = float(np.abs(o - want).max())
            if error < best[0]:
                best = error, mask, name, _units(lse, top[..., 0] + np.log(total[..., 0]))
    error, mask, scale, units = best
    if not error <= tolerance:
        return Trial("", "", "", error, findings)
    return Trial(mask, scale, units, error, findings, gqa=group > 1)


def _units(lse: Array | None, want: Array) -> str:
    if lse is None:
        return ""
    for name, factor in (("natural", 1.0), ("log2", LOG2E)):
        if np.abs(lse - want * factor).max() < 2e-2:
            return name
    return ""
