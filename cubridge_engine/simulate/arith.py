"""The arithmetic of PTX on NumPy arrays (or scalars): roundings, conversions, bit fields, packed and narrow floats.

Generated code calls these as ``A.name``. Arrays have one value per lane; packed types (f16x2, bf16x2) are unpacked to
shape (2, lanes), low half first.
"""

from __future__ import annotations

from typing import Any

import numpy as np

TRUE = np.bool_(True)
FALSE = np.bool_(False)
U8, U16, U32, U64 = np.uint8, np.uint16, np.uint32, np.uint64
F16, F32, F64 = np.float16, np.float32, np.float64
TINY = {np.dtype(F32): F32(2.0**-126), np.dtype(F64): F64(2.0**-1022)}


def cast(x: Any, dtype: Any) -> Any:
    """Bits of an unsigned value in another width and type."""
    x = np.asarray(x)
    width = np.dtype(dtype).itemsize
    return x.astype({1: U8, 2: U16, 4: U32, 8: U64}[width]).view(dtype)


# ------------------------------------------------------------------------------------------------- floating point
def ftz(x: Any) -> Any:
    """Subnormals become zero of the same sign."""
    x = np.asarray(x)
    return x * (np.abs(x) >= TINY[x.dtype])


def saturate(x: Any) -> Any:
    """Clamp to [0, 1]; NaN and -0 become 0."""
    x = np.asarray(x)
    return np.where(x > 0, np.minimum(x, x.dtype.type(1)), x.dtype.type(0))


def directed(exact: Any, mode: str) -> Any:
    """Round float64 values to float32 towards zero (rz), minus (rm) or plus infinity (rp)."""
    near = np.asarray(exact).astype(F32)
    wide = near.astype(F64)
    if mode == "rz":
        toward = np.where(np.abs(wide) > np.abs(exact), F32(0), near)
    elif mode == "rm":
        toward = np.where(wide > exact, F32(-np.inf), near)
    else:
        toward = np.where(wide < exact, F32(np.inf), near)
    return np.nextafter(near, toward)


def fma(a: Any, b: Any, c: Any) -> Any:
    """float32 fused multiply-add: the product is exact, the sum is rounded to float64 and then to float32."""
    return (np.multiply(a, b, dtype=F64) + c).astype(F32)


def sum_odd(a: Any, b: Any) -> Any:
    """The sum of float64 values rounded to odd, so that rounding it once more to a narrower type is right."""
    a, b = np.asarray(a, F64), np.asarray(b, F64)
    total = a + b
    part = total - a
    error = (a - (total - part)) + (b - part)
    even = (total.view(U64) & U64(1)) == 0
    step = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
    return np.where((error != 0) & even & np.isfinite(total), step, total)


def directed_sum(a: Any, b: Any, mode: str) -> Any:
    """The sum of float64 values rounded to float32 by `mode`; a sum of opposites is -0 towards minus infinity."""
    total = directed(sum_odd(a, b), mode)
    if mode != "rm":
        return total
    positive = (np.asarray(a) == 0) & (np.asarray(b) == 0) & ~np.signbit(a) & ~np.signbit(b)
    return np.where((total == 0) & ~positive, F32(-0.0), total)


def fma64(a: Any, b: Any, c: Any) -> Any:
    """a b + c of float32 values in float64, rounded to odd."""
    return sum_odd(np.multiply(a, b, dtype=F64), c)


def fma_double(a: Any, b: Any, c: Any) -> Any:
    """float64 fused multiply-add.

    The error of the product is carried (Dekker), so one rounding in all but rare cases.
    """
    a, b = np.asarray(a), np.asarray(b)
    p = a * b
    factor = F64(134217729.0)

    def split(x: Any) -> tuple[Any, Any]:
        t = factor * x
        high = t - (t - x)
        return high, x - high

    (ah, al), (bh, bl) = split(a), split(b)
    error = al * bl - (((p - ah * bh) - al * bh) - ah * bl)
    total = p + c
    part = total - p
    rest = (p - (total - part)) + (c - part)
    return np.where(np.isfinite(error) & np.isfinite(total), total + (rest + error), total)


def fmin(a: Any, b: Any) -> Any:
    """The smaller; a NaN operand is ignored. Which zero comes of +0 and -0 is not modelled."""
    return np.fmin(a, b)


def fmax(a: Any, b: Any) -> Any:
    """The greater; a NaN operand is ignored. Which zero comes of +0 and -0 is not modelled."""
    return np.fmax(a, b)


def bf16_bits(x: Any, mode: str = "rn") -> Any:
    """float32 -> bfloat16 bits (uint16), round to nearest even or towards zero; NaN is 0x7fff."""
    x = np.asarray(x)
    u = x.view(U32)
    if mode != "rz":
        u = u + (U32(0x7FFF) + ((u >> U32(16)) & U32(1)))
    return np.where(np.isnan(x), U16(0x7FFF), (u >> U32(16)).astype(U16))


def bf16_value(u: Any) -> Any:
    """bfloat16 bits -> float32."""
    return (np.asarray(u).astype(U32) << U32(16)).view(F32)


def f16_bits(x: Any, mode: str = "rn") -> Any:
    """float32 or float64 -> binary16 bits (uint16)."""
    x = np.asarray(x)
    h = x.astype(F16)
    if mode == "rz":
        over = np.abs(h.astype(F64)) > np.abs(x.astype(F64))
        h = np.where(over, np.nextafter(h, F16(0)), h)
    return np.where(np.isnan(x), U16(0x7FFF), h.view(U16))


def up(x: Any, kind: str) -> Any:
    """Bits of f16, bf16, f16x2 or bf16x2 -> float32; packed types get a leading axis of 2."""
    x = np.asarray(x)
    if kind == "f16":
        return x.view(F16).astype(F32)
    if kind == "bf16":
        return bf16_value(x)
    halves = np.stack([x & U32(0xFFFF), x >> U32(16)]).astype(U16)
    return up(halves, kind[:-2])


def down(x: Any, kind: str) -> Any:
    """float32 or float64 -> bits of f16, bf16, f16x2 or bf16x2 (the inverse of ``up``, rounding to nearest even)."""
    if kind == "f16":
        return f16_bits(x)
    if kind == "bf16":
        x = np.asarray(x)
        return bf16_bits(odd32(x) if x.dtype == F64 else x)
    low, high = down(x[0], kind[:-2]), down(x[1], kind[:-2])
    return low.astype(U32) | (high.astype(U32) << U32(16))


def odd32(x: Any) -> Any:
    """float64 -> float32 rounded to odd, so that a second rounding to a narrower type is right."""
    cut = directed(x, "rz")
    inexact = (cut.astype(F64) != x) & np.isfinite(x)
    return np.where(inexact, (cut.view(U32) | U32(1)).view(F32), cut)


def pack(low: Any, high: Any) -> Any:
    """Two 16-bit values -> one 32-bit value."""
    return np.asarray(low).astype(U32) | (np.asarray(high).astype(U32) << U32(16))


def tf32_bits(x: Any, mode: str = "rna") -> Any:
    """float32 -> tf32 in float32 bits: 10 bits of mantissa, nearest with ties away (rna) or to even (rn), or rz."""
    u = np.asarray(x).view(U32)
    if mode == "rna":
        u = u + U32(0x1000)
    elif mode == "rn":
        u = u + U32(0x0FFF) + ((u >> U32(13)) & U32(1))
    return np.where(np.isfinite(x), u & U32(0xFFFFE000), np.asarray(x).view(U32))


# name -> (exponent bits, mantissa bits, bias, largest finite)
NARROW = {"e4m3": (4, 3, 7, 448.0), "e5m2": (5, 2, 15, 57344.0)}


def _narrow_table(kind: str) -> Any:
    exponent_bits, mantissa_bits, bias, largest = NARROW[kind]
    code = np.arange(256)
    sign = np.where(code & 0x80, -1.0, 1.0)
    exponent = (code >> mantissa_bits) & ((1 << exponent_bits) - 1)
    mantissa = (code & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
    value = np.where(exponent == 0, mantissa * 2.0 ** (1 - bias), (1 + mantissa) * 2.0 ** (exponent - bias))
    if kind == "e4m3":
        value = np.where((code & 0x7F) == 0x7F, np.nan, value)
    else:
        top = exponent == 31
        value = np.where(top, np.where(mantissa == 0, np.inf, np.nan), value)
    assert np.nanmax(np.where(np.isinf(value), 0, value)) == largest
    return (sign * value).astype(F32)


NARROW_VALUES = {kind: _narrow_table(kind) for kind in NARROW}


def narrow_value(x: Any, kind: str) -> Any:
    """e4m3 or e5m2 codes -> float32."""
    return NARROW_VALUES[kind][np.asarray(x).astype(U8)]


def narrow_bits(x: Any, kind: str) -> Any:
    """float32 -> e4m3 or e5m2 codes (uint8): nearest even, saturated to the largest finite value (satfinite)."""
    _, mantissa_bits, bias, largest = NARROW[kind]
    x = np.asarray(x, F64)
    a = np.minimum(np.abs(x), largest)
    exponent = np.maximum(np.floor(np.log2(np.where(a > 0, a, 1.0))), 1 - bias)
    step = 2.0 ** (exponent - mantissa_bits)
    rounded = np.minimum(np.rint(a / step) * step, largest)
    table = NARROW_VALUES[kind][:128].astype(F64)
    finite = int(np.flatnonzero(table == largest)[0]) + 1
    code = np.searchsorted(table[:finite], rounded).astype(U8)
    nan_code = U8(0x7F)
    return np.where(np.isnan(x), nan_code, code | np.where(np.signbit(x), U8(0x80), U8(0)))


# ------------------------------------------------------------------------------------------------------- integers
def divide(a: Any, b: Any) -> Any:
    """Integer division that truncates; all bits set where the divisor is 0."""
    a, b = np.broadcast_arrays(a, b)
    zero = b == 0
    safe = np.where(zero, b.dtype.type(1), b)
    q = a // safe
    if a.dtype.kind == "i":  # NumPy rounds down
        q = q + ((q * safe != a) & ((a < 0) != (safe < 0)))
    return np.where(zero, ~a.dtype.type(0), q)


def remainder(a: Any, b: Any) -> Any:
    """Remainder with the sign of the dividend; all bits set where the divisor is 0."""
    a, b = np.broadcast_arrays(a, b)
    safe = np.where(b == 0, b.dtype.type(1), b)
    return np.where(b == 0, ~a.dtype.type(0), np.fmod(a, safe))


def multiply_high(a: Any, b: Any, width: int) -> Any:
    """The high half of the product."""
    a, b = np.asarray(a), np.asarray(b)
    kind = a.dtype.kind
    if width < 64:
        wide = np.dtype(f"{kind}{width // 4}")
        return ((a.astype(wide) * b.astype(wide)) >> wide.type(width)).astype(a.dtype)
    ua, ub = a.view(U64), b.view(U64)
    low, shift = U64(0xFFFFFFFF), U64(32)
    a0, a1, b0, b1 = ua & low, ua >> shift, ub & low, ub >> shift
    middle = a1 * b0 + ((a0 * b0) >> shift)
    other = a0 * b1 + (middle & low)
    high = a1 * b1 + (middle >> shift) + (other >> shift)
    if kind == "i":
        high = high - np.where(a < 0, ub, U64(0)) - np.where(b < 0, ua, U64(0))
    return high.view(a.dtype)


def shift_left(a: Any, b: Any, width: int) -> Any:
    """Zero when the amount reaches the width."""
    a, b = np.asarray(a), np.asarray(b)
    moved = a << np.minimum(b, width - 1).astype(a.dtype)
    return np.where(b >= width, a.dtype.type(0), moved)


def shift_right(a: Any, b: Any, width: int) -> Any:
    """Arithmetic for signed types; the amount is clamped to the width."""
    a, b = np.asarray(a), np.asarray(b)
    moved = a >> np.minimum(b, width - 1).astype(a.dtype)
    return moved if a.dtype.kind == "i" else np.where(b >= width, a.dtype.type(0), moved)


def funnel(a: Any, b: Any, amount: Any, left: bool, wrap: bool) -> Any:
    """shf: the 64 bits b:a shifted; the high half (left) or the low half (right)."""
    n = np.asarray(amount)
    n = (n & U32(31) if wrap else np.minimum(n, U32(32))).astype(U64)
    both = (np.asarray(b).astype(U64) << U64(32)) | np.asarray(a).astype(U64)
    return ((both << n) >> U64(32) if left else both >> n).astype(U32)


def extract(a: Any, position: Any, length: Any, width: int) -> Any:
    """bfe: `length` bits from `position`; sign-extended for signed types."""
    a = np.asarray(a)
    signed = a.dtype.kind == "i"
    unsigned = np.dtype(f"u{width // 8}").type
    u = a.view(unsigned)
    position = np.asarray(position) & U32(0xFF)
    length = np.asarray(length) & U32(0xFF)
    field = shift_right(u, position, width) & _ones(length, width, unsigned)
    if not signed:
        return field
    top = np.minimum(position.astype(np.int64) + length - 1, width - 1)
    sign = (shift_right(u, np.maximum(top, 0).astype(U32), width) & unsigned(1)) * (length > 0).astype(unsigned)
    kept = np.minimum(length.astype(np.int64), np.maximum(width - position.astype(np.int64), 0)).astype(U32)
    fill = np.where(sign != 0, ~_ones(kept, width, unsigned), unsigned(0))
    return (field | fill).view(a.dtype)


def _ones(length: Any, width: int, unsigned: Any) -> Any:
    return np.where(length >= width, ~unsigned(0), shift_left(unsigned(1), length, width) - unsigned(1))


def insert(a: Any, b: Any, position: Any, length: Any, width: int) -> Any:
    """bfi: the low `length` bits of a put into b at `position`."""
    a, b = np.asarray(a), np.asarray(b)
    unsigned = a.dtype.type
    position = np.asarray(position) & U32(0xFF)
    mask = shift_left(_ones(np.asarray(length) & U32(0xFF), width, unsigned), position, width)
    return (b & ~mask) | (shift_left(a, position, width) & mask)


def permute(a: Any, b: Any, selector: Any) -> Any:
    """prmt: four bytes chosen from the eight of b:a; bit 3 of a nibble replicates the sign of the byte."""
    both = (np.asarray(b).astype(U64) << U64(32)) | np.asarray(a).astype(U64)
    selector = np.asarray(selector)
    result = U32(0)
    for i in range(4):
        nibble = selector >> U32(4 * i)
        byte = ((both >> ((nibble & U32(7)).astype(U64) * U64(8))) & U64(0xFF)).astype(U32)
        byte = np.where((nibble & U32(8)) != 0, np.where(byte & U32(0x80), U32(0xFF), U32(0)), byte)
        result = result | (byte << U32(8 * i))
    return result


def lop3(a: Any, b: Any, c: Any, table: int) -> Any:
    """Any function of three bits, given by its truth table."""
    result = np.zeros_like(np.asarray(a) | b | c)
    for i in range(8):
        if table >> i & 1:
            result = result | ((a if i & 4 else ~a) & (b if i & 2 else ~b) & (c if i & 1 else ~c))
    return result


def popcount(x: Any) -> Any:
    """Number of ones."""
    x = np.asarray(x)
    count = np.zeros(x.shape, U32)
    for byte in range(x.dtype.itemsize):
        count = count + _BYTE_ONES[((x >> x.dtype.type(8 * byte)) & x.dtype.type(0xFF)).astype(np.intp)]
    return count


_BYTE_ONES = np.array([bin(i).count("1") for i in range(256)], U32)


def leading_zeros(x: Any) -> Any:
    """Number of zeros above the highest one."""
    x = np.asarray(x)
    for shift in (1, 2, 4, 8, 16, 32):
        if shift < 8 * x.dtype.itemsize:
            x = x | (x >> x.dtype.type(shift))
    return U32(8 * x.dtype.itemsize) - popcount(x)


def reverse_bits(x: Any) -> Any:
    """The bits in the opposite order."""
    x = np.asarray(x)
    width = 8 * x.dtype.itemsize
    result = np.zeros_like(x)
    for i in range(width):
        result = result | (((x >> x.dtype.type(i)) & x.dtype.type(1)) << x.dtype.type(width - 1 - i))
    return result


def find_high(x: Any, amount: bool) -> Any:
    """bfind: position of the highest one (for signed values: of the highest bit that differs from the sign)."""
    x = np.asarray(x)
    width = 8 * x.dtype.itemsize
    u = np.where(x < 0, ~x, x) if x.dtype.kind == "i" else x
    zeros = leading_zeros(u.view(f"u{width // 8}"))
    found = np.where(zeros == width, U32(0xFFFFFFFF), U32(width - 1) - zeros)
    return np.where(zeros == width, found, zeros) if amount else found


def dot4(a: Any, b: Any, c: Any, a_signed: bool, b_signed: bool) -> Any:
    """dp4a: four products of bytes and an addend."""
    total = np.asarray(c).astype(np.int64)
    for i in range(4):
        pair: list[Any] = []
        for x, signed in ((a, a_signed), (b, b_signed)):
            byte = ((np.asarray(x) >> U32(8 * i)) & U32(0xFF)).astype(U8)
            pair.append((byte.view(np.int8) if signed else byte).astype(np.int64))
        total = total + pair[0] * pair[1]
    return total.astype(U32)


ROUND = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


def to_integer(x: Any, mode: str, dtype: Any) -> Any:
    """Float -> integer, rounded by `mode`, clamped to the range; NaN becomes 0 (64 bits: the top bit alone)."""
    info = np.iinfo(dtype)
    wide = ROUND[mode](np.asarray(x).astype(F64))
    nan = np.isnan(wide)
    wide = np.where(nan, 0.0, wide)
    if info.bits < 64:
        return np.clip(wide, info.min, info.max).astype(dtype)
    top = 2.0 ** (63 if info.min < 0 else 64)
    inside = np.where((wide >= top) | (wide < info.min), 0.0, wide).astype(dtype)
    limited = np.where(wide >= top, dtype(info.max), np.where(wide < info.min, dtype(info.min), inside))
    return np.where(nan, dtype(info.min) if info.min else dtype(1 << 63), limited)


def clamp(x: Any, dtype: Any) -> Any:
    """Integer -> narrower integer with saturation."""
    info = np.iinfo(dtype)
    x = np.asarray(x)
    own = np.iinfo(x.dtype)
    low, high = max(info.min, own.min), min(info.max, own.max)
    return np.clip(x, x.dtype.type(low), x.dtype.type(high)).astype(dtype)
