"""Which known fault gives exactly the output that a kernel gives, where its steps cannot be looked at."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..simulate import Schedule
from ..simulate.calling import output
from ..verify.steps_causes import near
from ..verify.steps_tables import Tables, tables_of
from .launched import Launched
from .numbers import Wrong
from .watch_cases import inputs_of, watch_cases

Array = NDArray[Any]
LN2 = math.log(2.0)
CLOSE = {"float32": 1e-3}  # of the largest output; other types: 1e-2
RICH = ("short-query", "rising-max", "decode")  # several tiles, ragged, the maximum moves
Outputs = tuple[Array, Array]  # O [B, H, Sq, Dv] and LSE [B, H, Sq]


def known_fault(wrong: Wrong, launched: Launched) -> str:
    """The fault, in words, whose output is that of the kernel on a problem of several tiles; '' where none is, or where
    two are alike.
    """
    contract, instance = wrong.contract, wrong.instance
    cases = watch_cases(contract, instance, (wrong.case.flag,))
    rich = [c for name in RICH for c in cases if c.case.name.removeprefix("like ") == name]
    for case in rich:
        tensors = inputs_of(case, instance.dtype, launched.scale)
        call = launched.call(case, tensors)
        if call.diagnostics or 0 in call.grid:
            continue
        run = launched.run(call, Schedule("late", "forward"))
        if "O" not in run.outputs:
            continue
        tables = tables_of(wrong.meaning, tensors, case.sizes)
        lse = output(call, run, "lse") if "LSE" in run.outputs and contract.lse == "natural" else None
        found = _explains(tables, output(call, run, "o"), lse, contract.bc, launched.scale, instance.dtype)
        if found:
            return found
    return ""


def _explains(t: Tables, o: Array, lse: Array | None, bc: int, scale: float, dtype: str) -> str:
    close = CLOSE.get(dtype, 1e-2)
    right = _softmax(t.x, t.v[:, t.heads])
    live = np.asarray(t.keep.any(axis=3))
    if not _same(o, right[0], live, close):
        fits = [words for words, (other, _) in _faults(t, bc, scale) if _same(o, other, live, close)]
        return fits[0] if len(fits) == 1 else ""
    if lse is None or _same(lse, right[1], live, close):
        return ""
    fits = [words for words, other in _lse_faults(t) if _same(lse, other, live, close)]
    return fits[0] if len(fits) == 1 else ""


def _same(got: Array, want: Array, live: Array, close: float) -> bool:
    return bool(near(got[live], want[live], close).all())


def _softmax(x: Array, v: Array) -> Outputs:
    top = x.max(axis=3, keepdims=True, initial=-np.inf)
    safe = np.where(np.isfinite(top), top, 0.0)
    p = np.exp(x - safe)
    total = p.sum(axis=3, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        return (p @ v) / total, (np.log(total) + safe)[..., 0]


def _faults(t: Tables, bc: int, scale: float) -> Iterator[tuple[str, Outputs]]:
    v = t.v[:, t.heads]
    for words, factor in (
        ("the scale is missing", 1 / scale),
        ("the scale is multiplied in twice", scale),
        ("exp2 is taken of scores without log2(e)", LN2),
        ("log2(e) is multiplied in, and exp is taken", 1 / LN2),
    ):
        yield words, _softmax(np.where(t.keep, t.score * factor, -np.inf), v)
    for words, keep in _masks(t, bc):
        if bool((keep != t.keep).any()):
            yield words, _softmax(np.where(keep, t.score, -np.inf), v)
    for words, more in (
        ("the first key behind the end is not masked", 1),
        ("the keys behind the end are not masked", bc),
    ):
        count = more if more == 1 else -t.x.shape[3] % bc
        if count > 0 and (more == 1 or count > 1):
            x = np.pad(t.x, ((0, 0),) * 3 + ((0, count),))
            yield words, _softmax(x, np.pad(v, ((0, 0), (0, 0), (0, count), (0, 0))))
    yield from _head_maps(t)
    yield from _online(t, v, bc)


def _masks(t: Tables, bc: int) -> Iterator[tuple[str, Array]]:
    sq, sk = t.x.shape[2:]
    i, j = np.indices((sq, sk))
    everywhere = np.ones_like(t.keep)
    yield "nothing is masked", everywhere
    causal = bool((~t.keep).any())
    for words, keep in (
        ("the mask leaves out the diagonal", j < i + sk - sq),
        ("the mask goes one key too far", j <= i + sk - sq + 1),
        ("the causal mask is aligned to the top left", j <= i),
    ):
        if causal:
            yield words, everywhere & keep
    for words, keep in (
        ("the last, ragged tile of keys is left out", j < sk // bc * bc),
        ("the last key is left out", j < sk - 1),
        ("the first tile of keys is left out", j >= bc),
    ):
        yield words, t.keep & keep


def _head_maps(t: Tables) -> Iterator[tuple[str, Outputs]]:
    heads, kv = len(t.heads), t.k.shape[1]
    h = np.arange(heads)
    ratio = t.score[t.keep & (np.abs(t.s) > 1e-3)] / t.s[t.keep & (np.abs(t.s) > 1e-3)]
    if kv < 2 or not ratio.size or np.ptp(ratio) > 1e-6:
        return  # a score that is more than a scale cannot be made again from other products
    for words, other in (("head h reads KV head h % Hkv", h % kv), ("every head reads KV head 0", h * 0)):
        if bool((other != t.heads).any()):
            s = np.matmul(t.q, np.swapaxes(t.k[:, other], -1, -2)) * float(ratio[0])
            yield words, _softmax(np.where(t.keep, s, -np.inf), t.v[:, other])


def _online(t: Tables, v: Array, bc: int) -> Iterator[tuple[str, Outputs]]:
    """Faults of the online softmax over ascending tiles."""
    right = _softmax(t.x, v)
    state: Mapping[str, Array] = _state(t.x, v, bc)
    with np.errstate(divide="ignore", invalid="ignore"):
        yield "O is not rescaled when the maximum moves", (state["o"] / state["l"][..., None], right[1])
        yield "l is not rescaled when the maximum moves", (state["oc"] / state["lp"][..., None], right[1])
        yield "neither O nor l is rescaled", (state["o"] / state["lp"][..., None], right[1])
    yield "O is not divided by l", (state["oc"], right[1])


def _state(x: Array, v: Array, bc: int) -> dict[str, Array]:
    """O and l with (``oc``, ``l``) and without (``o``, ``lp``) the correction."""
    m = np.full(x.shape[:3], -np.inf)
    zero, wide = np.zeros(x.shape[:3]), np.zeros((*x.shape[:3], v.shape[3]))
    found = {"l": zero, "lp": zero, "o": wide, "oc": wide}
    for start in range(0, x.shape[3], bc):
        part = x[..., start : start + bc]
        new = np.maximum(m, part.max(axis=3))
        safe = np.where(np.isfinite(new), new, 0.0)
        p, fix = np.exp(part - safe[..., None]), np.exp(m - safe)
        product, total = p @ v[:, :, start : start + bc], p.sum(axis=3)
        found = {
            "l": found["l"] * fix + total,
            "lp": found["lp"] + total,
            "o": found["o"] + product,
            "oc": found["oc"] * fix[..., None] + product,
        }
        m = new
    return found


def _lse_faults(t: Tables) -> Iterator[tuple[str, Array]]:
    top = t.x.max(axis=3, initial=-np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_l = np.log(np.exp(t.x - np.where(np.isfinite(top), top, 0.0)[..., None]).sum(axis=3))
    yield "LSE is in units of log2", (top + log_l) / LN2
    yield "log2(l) is added to a maximum in natural units", top + log_l / LN2
    yield "log(l) is added to a maximum in units of log2", top / LN2 + log_l
    yield "the maximum is not added to log(l)", log_l
    yield "log(l) is not added to the maximum", top
