"""Exact arithmetic that few kernels need: carries, packed 16-bit integers, byte-wise operations, directed roundings.

Generated code calls these as ``E.name``. Arrays have one value per lane.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from . import arith

U16, U32, F64 = np.uint16, np.uint32, np.float64


# ---------------------------------------------------------------------------------------------------------- carries
def _unsigned(x: Any) -> Any:
    x = np.asarray(x)
    return x.view(f"u{x.dtype.itemsize}")


def add_carry(a: Any, b: Any, carry: Any) -> tuple[Any, Any]:
    """a + b + carry, unsigned, and the carry out."""
    a, b = _unsigned(a), _unsigned(b)
    part = a + b
    total = part + np.asarray(carry).astype(a.dtype)
    return total, (part < a) | (total < part)


def sub_borrow(a: Any, b: Any, borrow: Any) -> tuple[Any, Any]:
    """a - b - borrow, unsigned, and the borrow out."""
    a, b = _unsigned(a), _unsigned(b)
    taken = np.asarray(borrow).astype(a.dtype)
    part = a - b
    return part - taken, (a < b) | (part < taken)


def add_saturated(a: Any, b: Any) -> Any:
    """int32 a + b, clamped to the range of int32."""
    return arith.clamp(np.asarray(a).astype(np.int64) + b, np.int32)


def sub_saturated(a: Any, b: Any) -> Any:
    """int32 a - b, clamped to the range of int32."""
    return arith.clamp(np.asarray(a).astype(np.int64) - b, np.int32)


# ---------------------------------------------------------------------------------------------------- packed integers
def packed16(op: str, a: Any, b: Any, signed: bool, relu: bool) -> Any:
    """add, min or max of the two 16-bit halves of uint32 values."""
    kind = np.int16 if signed else U16
    function: Any = {"add": np.add, "min": np.minimum, "max": np.maximum}[op]
    result = function(_parts(a, kind), _parts(b, kind))
    if relu:
        result = np.maximum(result, kind(0))
    return np.ascontiguousarray(result).view(U32)[..., 0]


def _parts(x: Any, kind: Any) -> Any:
    """uint32 (lanes) -> (lanes, 2 or 4) elements of the type."""
    x = np.ascontiguousarray(x)
    return x[..., None].view(kind)


def joined(low: Any, high: Any) -> Any:
    """Two uint64 per lane -> one element of 16 bytes."""
    return np.stack([low, high], axis=-1).view("V16")[..., 0]


def parted(x: Any) -> Any:
    """The inverse of ``joined``: (2, lanes) uint64."""
    return np.ascontiguousarray(x).view(np.uint64).reshape(-1, 2).T


# prmt: bytes of b:a that a mode chooses, by the low two bits of the selector
PERMUTATIONS = {
    "f4e": ((0, 1, 2, 3), (1, 2, 3, 4), (2, 3, 4, 5), (3, 4, 5, 6)),
    "b4e": ((0, 7, 6, 5), (1, 0, 7, 6), (2, 1, 0, 7), (3, 2, 1, 0)),
    "rc8": ((0, 0, 0, 0), (1, 1, 1, 1), (2, 2, 2, 2), (3, 3, 3, 3)),
    "ecl": ((0, 1, 2, 3), (1, 1, 2, 3), (2, 2, 2, 3), (3, 3, 3, 3)),
    "ecr": ((0, 0, 0, 0), (0, 1, 1, 1), (0, 1, 2, 2), (0, 1, 2, 3)),
    "rc16": ((0, 1, 0, 1), (2, 3, 2, 3), (0, 1, 0, 1), (2, 3, 2, 3)),
}
_SELECTORS = {
    mode: np.array([sum(byte << 4 * i for i, byte in enumerate(row)) for row in rows], U32)
    for mode, rows in PERMUTATIONS.items()
}


def permute_by(mode: str, a: Any, b: Any, selector: Any) -> Any:
    """prmt with a mode."""
    return arith.permute(a, b, _SELECTORS[mode][np.asarray(selector) & U32(3)])


def pack_saturated(a: Any, b: Any, c: Any, kind: Any) -> Any:
    """cvt.pack: a and b clamped to the type, b below a; bytes are put below the low half of c."""
    width = 8 * np.dtype(kind).itemsize
    high, low = (arith.clamp(x, kind).view(f"u{width // 8}").astype(U32) for x in (a, b))
    both = low | (high << U32(width))
    return both if width == 16 else both | (np.asarray(c) << U32(16))


_VIDEO: dict[str, Callable[[Any, Any], Any]] = {
    "vadd": lambda a, b: a + b,
    "vsub": lambda a, b: a - b,
    "vavrg": lambda a, b: (a + b + (a + b >= 0)) >> 1,
    "vabsdiff": lambda a, b: np.abs(a - b),
    "vmin": np.minimum,
    "vmax": np.maximum,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}


def video(
    op: str, a: Any, b: Any, c: Any, count: int, signs: tuple[bool, bool, bool], saturate: bool, add: bool
) -> Any:
    """vadd2, vabsdiff4 and like: `count` parts of a and b, each signed or not (`signs`: result, a, b).

    With `add` the parts of the result are summed onto c; else they are packed.
    """
    types = {(4, True): np.int8, (4, False): np.uint8, (2, True): np.int16, (2, False): U16}
    left, right = (_parts(x, types[count, s]).astype(np.int64) for x, s in ((a, signs[1]), (b, signs[2])))
    result = np.asarray(_VIDEO[op](left, right)).astype(np.int64)
    kind = types[count, signs[0]]
    if saturate:
        result = np.clip(result, np.iinfo(kind).min, np.iinfo(kind).max)
    if add:
        return (np.asarray(c).astype(np.int64) + result.sum(-1)).astype(U32)
    return np.ascontiguousarray(result.astype(kind)).view(U32)[..., 0]


def dot2(a: Any, b: Any, c: Any, high: bool, a_signed: bool, b_signed: bool) -> Any:
    """dp2a: the two halves of a times the low (or high) two bytes of b, and an addend."""
    left = _parts(a, np.int16 if a_signed else U16).astype(np.int64)
    right = _parts(b, np.int8 if b_signed else np.uint8).astype(np.int64)[..., 2 * high : 2 * high + 2]
    return (np.asarray(c).astype(np.int64) + (left * right).sum(-1)).astype(U32)


def bit_mask(position: Any, width: Any, clamp: bool) -> Any:
    """bmsk: `width` ones from bit `position` up; both modulo 32, or cut at the word's end where `clamp`."""
    position, width = np.asarray(position), np.asarray(width)
    first, count = (position & U32(31)).astype(np.int64), (width & U32(31)).astype(np.int64)
    ones = np.int64(0xFFFFFFFF)
    low = np.where((position >= 32) & clamp, 0, ones << first & ones)
    beyond = (first + count >= 32) | (((position >= 32) | (width >= 32)) & clamp)
    return (low & ~np.where(beyond, 0, ones << (first + count) & ones)).astype(U32)


def extend(a: Any, width: Any, clamp: bool, signed: bool) -> Any:
    """szext: the low `width` bits (modulo 32, or at most all where `clamp`), extended by sign or by zeros."""
    a, width = np.asarray(a).view(U32), np.asarray(width)
    count = width & U32(31)
    whole = (width >= 32) & clamp
    high = np.where(whole, U32(0), U32(0xFFFFFFFF) << count)
    negative = ((a >> ((count - U32(1)) & U32(31))) & U32(1) != 0) & (count > 0) & ~whole & signed
    return (a & ~high) | np.where(negative, high, U32(0))


def nth_set(mask: Any, base: Any, offset: Any) -> Any:
    """fns: the position of the `offset`-th one of `mask`, counted from bit `base` up (or down, when negative)."""
    mask, base, offset = np.broadcast_arrays(mask, base, offset)
    where = np.arange(32)
    ones = (mask[..., None] >> where.astype(U32)) & U32(1) != 0
    start, count = base.astype(np.int64)[..., None], offset.astype(np.int64)[..., None]
    reached = np.where(count > 0, where >= start, np.where(count < 0, where <= start, where == start)) & ones
    up = np.cumsum(reached, axis=-1)
    rank = np.where(count >= 0, up, up[..., -1:] - up + 1)
    found = reached & (rank == np.maximum(np.abs(count), 1))
    return np.where(found.any(-1), found.argmax(-1), 0xFFFFFFFF).astype(U32)


# --------------------------------------------------------------------------------------------------- directed roundings
def odd64(x: Any) -> Any:
    """Integers -> float64, rounded to odd where they have more than 53 bits, so that one more rounding is right."""
    x = np.asarray(x)
    if x.dtype.itemsize < 8:
        return x.astype(F64)
    low = x & x.dtype.type(0xFFFFFFFF)
    return arith.sum_odd((x - low).astype(F64), low.astype(F64))


def half_directed(x: Any, kind: str, mode: str) -> Any:
    """float32 or float64 -> bits of f16 or bf16, rounded towards minus (rm) or plus infinity (rp)."""
    x = np.asarray(x)
    cut = arith.f16_bits(x, "rz") if kind == "f16" else arith.bf16_bits(arith.odd32(x) if x.dtype == F64 else x, "rz")
    value = arith.up(cut, kind).astype(F64)
    # Bits of a larger magnitude are the next integer; what overflows becomes infinity, and -0 starts at its own sign.
    away = (value > x) if mode == "rm" else (value < x)
    grows = np.signbit(x) if mode == "rm" else ~np.signbit(x)
    return np.where(away & grows & np.isfinite(x), cut + U16(1), cut)


def _rounded(exact: Fraction, mode: str) -> float:
    """The float64 next to an exact value in the direction of the mode."""
    try:
        near = float(exact)
    except OverflowError:
        near = math.inf if exact > 0 else -math.inf
    largest = math.ldexp(1 - 2.0**-53, 1024)
    if math.isinf(near):
        outward = (mode == "rp") if near > 0 else (mode == "rm")
        return near if outward else math.copysign(largest, near)
    above = Fraction(near) > exact
    if Fraction(near) == exact:
        return near
    if mode == "rz":
        return math.nextafter(near, 0.0) if above == (exact > 0) else near
    if mode == "rm":
        return math.nextafter(near, -math.inf) if above else near
    return near if above else math.nextafter(near, math.inf)


def _root(x: float, mode: str) -> float:
    near = math.sqrt(x)
    square, exact = Fraction(near) ** 2, Fraction(x)
    if square > exact and mode != "rp":
        return math.nextafter(near, 0.0)
    if square < exact and mode == "rp":
        return math.nextafter(near, math.inf)
    return near


_EXACT: dict[str, Callable[..., Fraction]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "fma": lambda a, b, c: a * b + c,
    "rcp": lambda a: 1 / a,
}


def directed64(op: str, mode: str, near: Any, *operands: Any) -> Any:
    """A float64 operation rounded by `mode`; `near` is its result rounded to nearest, which decides special values."""
    rows = np.broadcast_arrays(near, *operands)
    result = np.array(rows[0], F64)
    flat = result.ravel()
    for index, (value, *given) in enumerate(zip(*(r.ravel().tolist() for r in rows), strict=True)):
        if not all(map(math.isfinite, given)) or math.isnan(value) or (op in ("div", "rcp") and given[-1] == 0):
            continue
        if op == "sqrt":
            flat[index] = _root(given[0], mode) if given[0] > 0 else value
            continue
        exact = _EXACT[op](*map(Fraction, given))
        if exact:
            rounded = _rounded(exact, mode)
            flat[index] = rounded if rounded else math.copysign(rounded, 1 if exact > 0 else -1)
        elif op in ("add", "sub", "fma") and mode == "rm" and not _same_zeros(op, given):
            flat[index] = -0.0
    return flat.reshape(result.shape)


def _same_zeros(op: str, given: list[float]) -> bool:
    """True for the exact zero that is +0 towards minus infinity too: a sum of two +0."""
    if op == "fma":
        product = math.copysign(1, given[0]) * math.copysign(1, given[1])
        return given[0] * given[1] == 0 and given[2] == 0 and product > 0 and math.copysign(1, given[2]) > 0
    second = given[1] if op == "add" else -given[1]
    return given[0] == 0 and math.copysign(1, given[0]) > 0 and second == 0 and math.copysign(1, second) > 0
