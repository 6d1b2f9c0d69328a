"""Recorded values as numbers: one `Observed` per result register, and per half where it may hold two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..simulate.model import Instruction
from ..simulate.observe import HALVES
from .model import Array
from .record import Recorded, Series


@dataclass(frozen=True, slots=True)
class Observed:
    """Values (executions, lanes) of one register. `kind` is how its bits are read; `bits` are kept for inputs.

    `ok` marks lanes that executed it and hold a number that says something: no 0, 1, infinity or NaN.
    """

    site: int
    result: int
    half: int
    kind: str  # f32 | f16 | bf16
    bits: Array
    values: Array
    active: Array
    ok: Array
    trips: Array


def telling(x: Array) -> Array:
    """Which numbers can be evidence of anything."""
    size = np.abs(x)
    return np.isfinite(x) & (size > 1e-10) & (size < 1e4) & (size != 1)


def observations(recorded: Recorded, code: Sequence[Instruction], dtype: str) -> list[Observed]:
    """What was recorded, as numbers. `dtype` is that of the inputs: packed words of unknown type are read so."""
    half = {"float16": "f16", "bfloat16": "bf16"}.get(dtype)
    found: list[Observed] = []
    with np.errstate(invalid="ignore", over="ignore"):
        for series in recorded.series.values():
            if series.values:
                found += _views(series, code[series.site], half)
    return sorted(found, key=lambda o: (o.site, o.result, o.half))


def _views(series: Series, ins: Instruction, half: str | None) -> list[Observed]:
    bits, active, trips = (np.stack(x) for x in (series.values, series.active, series.trips))
    named = next((p.removesuffix("x2") for p in ins.parts[1:] if p in HALVES), None)
    parts: list[tuple[int, str, Array]] = []
    if bits.dtype.itemsize == 2:
        parts.append((0, named or half or "f16", _half(bits, named or half or "f16")))
    else:
        if _may_be_float(ins, named):
            parts.append((-1, "f32", bits.view(np.float32).astype(np.float64)))
        kind = named if named and not _gives_f32(ins) else half if _may_be_packed(ins) else None
        if kind:
            parts += [(i, kind, _half((bits >> np.uint32(16 * i)).astype(np.uint16), kind)) for i in (0, 1)]
    return [
        Observed(series.site, series.result, i, kind, bits, x, active, active & telling(x), trips)
        for i, kind, x in parts
    ]


def _half(bits: Array, kind: str) -> Array:
    if kind == "f16":
        return bits.view(np.float16).astype(np.float64)
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)


def _gives_f32(ins: Instruction) -> bool:
    """True where a result named with half types holds a float: mma of halves into f32, cvt.f32.f16."""
    types = [p for p in ins.parts[1:] if p in HALVES or p == "f32"]
    return (bool(types) and types[0] == "f32") or (ins.parts[0] == "wmma" and types[-1:] == ["f32"])


def _may_be_float(ins: Instruction, named: str | None) -> bool:
    return named is None or _gives_f32(ins)


def _may_be_packed(ins: Instruction) -> bool:
    """Words that are loaded, exchanged or selected: nothing says what is in them."""
    return ins.parts[0] in ("ld", "ldu", "ldmatrix", "shfl", "selp", "movmatrix") or (
        ins.parts[0] == "wmma" and ins.parts[1] == "load"
    )
