"""Floating point against exact rational arithmetic, conversions against torch, approximations within a few ulp."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

THREADS = 256
EDGE32 = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    1.5,
    3.0,
    0.1,
    -0.1,
    65504.0,
    1e-8,
    1e30,
    -1e30,
    2.0**-126,
    2.0**24 + 1,
    np.inf,
    -np.inf,
    np.nan,
]


def floats32(seed: int, special: bool = True) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal(THREADS) * 10.0 ** rng.integers(-6, 7, THREADS)).astype(np.float32)
    if special:
        chosen = rng.random(THREADS) < 0.4
        x = np.where(chosen, rng.choice(np.array(EDGE32, np.float32), THREADS), x)
    return x


def halves(seed: int, kind: str) -> np.ndarray:
    """Random 16-bit patterns that are no NaN, as uint16."""
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal(THREADS) * 2.0 ** rng.integers(-6, 7, THREADS)).astype(np.float32)
    return x.astype(np.float16).view(np.uint16) if kind == "f16" else (x.view(np.uint32) >> 16).astype(np.uint16)


def value(bits: np.ndarray, kind: str) -> np.ndarray:
    return (
        bits.view(np.float16).astype(np.float64)
        if kind == "f16"
        else (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    )


def rounded(x: Fraction, mode: str, mantissa: int, lowest: int) -> Fraction:
    """The nearest number with `mantissa` bits and exponents from `lowest`, by rounding mode."""
    if x == 0:
        return x
    exponent = max(math.floor(math.log2(abs(x))), lowest)
    if Fraction(2) ** exponent > abs(x) and exponent > lowest:
        exponent -= 1
    unit = Fraction(2) ** (exponent - mantissa + 1)
    q = x / unit
    low = math.floor(q)
    if mode == "rm":
        n = low
    elif mode == "rp":
        n = math.ceil(q)
    elif mode == "rz":
        n = math.trunc(q)
    else:
        rest = q - low
        n = low + (rest > Fraction(1, 2) or (rest == Fraction(1, 2) and low % 2 == 1))
    return n * unit


def same32(got: np.ndarray, want: np.ndarray) -> None:
    bad = ~((got == want) | (np.isnan(got) & np.isnan(want)))
    assert not bad.any(), (got[bad][:4], want[bad][:4])


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("op", ["add", "sub", "mul", "fma"])
def test_rounding_modes(lab, op, mode):
    a, b, c = (floats32(s, special=False) for s in (1, 2, 3))
    names = "%a, %b, %c" if op == "fma" else "%a, %b"
    inputs = [a, b, c] if op == "fma" else [a, b]
    (got,) = lab.run(f"{op}.{mode}.f32 %x0, {names};", [x.view(np.uint32) for x in inputs], [32])
    exact = {
        "add": lambda x, y: x + y,
        "sub": lambda x, y: x - y,
        "mul": lambda x, y: x * y,
        "fma": lambda x, y, z: x * y + z,
    }[op]
    want = [float(rounded(exact(*(Fraction(float(v[t])) for v in inputs)), mode, 24, -126)) for t in range(THREADS)]
    same32(got.view(np.float32), np.array(want, np.float32))


ELEMENTARY = {
    "add.f32 %x0, %a, %b;": lambda a, b: a + b,
    "sub.f32 %x0, %a, %b;": lambda a, b: a - b,
    "mul.f32 %x0, %a, %b;": lambda a, b: a * b,
    "div.rn.f32 %x0, %a, %b;": lambda a, b: a / b,
    "min.f32 %x0, %a, %b;": np.fmin,
    "max.f32 %x0, %a, %b;": np.fmax,
    "max.NaN.f32 %x0, %a, %b;": np.maximum,
    "neg.f32 %x0, %a;": lambda a, b: -a,
    "abs.f32 %x0, %a;": lambda a, b: np.abs(a),
    "copysign.f32 %x0, %a, %b;": lambda a, b: np.copysign(b, a),
    "sqrt.rn.f32 %x0, %a;": lambda a, b: np.sqrt(a),
    "rcp.rn.f32 %x0, %a;": lambda a, b: np.float32(1) / a,
    "cvt.sat.f32.f32 %x0, %a;": lambda a, b: np.where(np.isnan(a), 0, np.clip(a, 0, 1)),
    "cvt.rni.f32.f32 %x0, %a;": lambda a, b: np.rint(a),
    "cvt.rmi.f32.f32 %x0, %a;": lambda a, b: np.floor(a),
    "add.sat.f32 %x0, %a, %b;": lambda a, b: np.where(np.isnan(a + b), 0, np.clip(a + b, 0, 1)),
}


@pytest.mark.parametrize("body", ELEMENTARY)
def test_special_values_go_through(lab, body):
    a, b = floats32(4), floats32(5)
    inputs = [a, b] if "%b" in body else [a]
    (got,) = lab.run(body, [x.view(np.uint32) for x in inputs], [32])
    with np.errstate(all="ignore"):
        same32(got.view(np.float32), ELEMENTARY[body](a, b).astype(np.float32))


APPROXIMATE = {
    "ex2.approx.ftz.f32": (np.exp2, (-140.0, 120.0)),
    "lg2.approx.f32": (np.log2, (1e-20, 1e20)),
    "rcp.approx.ftz.f32": (lambda x: 1 / x, (1e-20, 1e20)),
    "rsqrt.approx.f32": (lambda x: 1 / np.sqrt(x), (1e-20, 1e20)),
    "sqrt.approx.f32": (np.sqrt, (1e-20, 1e20)),
    "sin.approx.f32": (np.sin, (-3.0, 3.0)),
    "cos.approx.f32": (np.cos, (-3.0, 3.0)),
    "tanh.approx.f32": (np.tanh, (-4.0, 4.0)),
}


@pytest.mark.parametrize("op", APPROXIMATE)
def test_approximations(lab, op):
    function, (low, high) = APPROXIMATE[op]
    x = np.linspace(low, high, THREADS).astype(np.float32)
    (got,) = lab.run(f"{op} %x0, %a;", [x.view(np.uint32)], [32])
    want = function(x.astype(np.float64))
    if "ftz" in op:
        want = np.where(np.abs(want) < 2.0**-126, 0, want)
    np.testing.assert_allclose(got.view(np.float32), want, rtol=4e-7, atol=1e-7)


def test_ex2_of_special_values(lab):
    x = np.resize(np.array([-np.inf, np.inf, np.nan, 0, -1, 128, -127, -150], np.float32), THREADS)
    (got,) = lab.run("ex2.approx.ftz.f32 %x0, %a;", [x.view(np.uint32)], [32])
    want = np.resize(np.array([0, np.inf, np.nan, 1, 0.5, np.inf, 0, 0], np.float32), THREADS)
    same32(got.view(np.float32), want)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("op", ["add", "sub", "mul", "fma.rn", "max", "min"])
def test_half_arithmetic_rounds_once(lab, kind, op):
    inputs = [halves(s, kind) for s in (1, 2, 3)][: 3 if op == "fma.rn" else 2]
    names = ", ".join(["%a", "%b", "%c"][: len(inputs)])
    (got,) = lab.run(f"{op}.{kind} %x0, {names};", inputs, [16])
    exact = {
        "add": lambda x, y: x + y,
        "sub": lambda x, y: x - y,
        "mul": lambda x, y: x * y,
        "fma.rn": lambda x, y, z: x * y + z,
        "max": max,
        "min": min,
    }[op]
    mantissa, lowest = (11, -14) if kind == "f16" else (8, -126)
    v = [value(x, kind) for x in inputs]
    want = [float(rounded(exact(*(Fraction(float(x[t])) for x in v)), "rn", mantissa, lowest)) for t in range(THREADS)]
    want = [w if abs(w) <= (65504 if kind == "f16" else np.inf) else math.copysign(np.inf, w) for w in want]
    assert value(got, kind).tolist() == want


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_packed_arithmetic_is_two_scalar_ones(lab, kind):
    low, high = halves(6, kind), halves(7, kind)
    packed = low.astype(np.uint32) | high.astype(np.uint32) << 16
    (got,) = lab.run(f"mul.{kind}x2 %x0, %a, %b;", [packed, packed[::-1].copy()], [32])
    (one,) = lab.run(f"mul.{kind} %x0, %a, %b;", [low, low[::-1].copy()], [16])
    (two,) = lab.run(f"mul.{kind} %x0, %a, %b;", [high, high[::-1].copy()], [16])
    assert (got & 0xFFFF).tolist() == one.tolist()
    assert (got >> 16).tolist() == two.tolist()


def test_conversions_against_torch(lab):
    torch = pytest.importorskip("torch")
    x = floats32(8)
    t = torch.from_numpy(x)
    bits = [x.view(np.uint32)]
    (f16,) = lab.run("cvt.rn.f16.f32 %x0, %a;", bits, [16])
    (bf16,) = lab.run("cvt.rn.bf16.f32 %x0, %a;", bits, [16])
    (e4m3,) = lab.run("cvt.rn.satfinite.e4m3x2.f32 %x0, %a, %a;", bits, [16])
    (e5m2,) = lab.run("cvt.rn.satfinite.e5m2x2.f32 %x0, %a, %a;", bits, [16])
    nan = np.isnan(x)
    assert (f16.view(np.float16)[~nan] == t.half().numpy()[~nan]).all()
    want = t.bfloat16().view(torch.int16).numpy().view(np.uint16)
    assert (bf16[~nan] == want[~nan]).all()
    for got, dtype, top in ((e4m3, torch.float8_e4m3fn, 448.0), (e5m2, torch.float8_e5m2, 57344.0)):
        clamped = torch.clamp(t, -top, top)
        expected = clamped.to(dtype).view(torch.uint8).numpy()
        assert ((got & 0xFF)[~nan] == expected[~nan]).all()
        assert ((got >> 8)[~nan] == expected[~nan]).all()
    assert np.isnan(f16.view(np.float16)[nan]).all()
    assert (bf16[nan] == 0x7FFF).all()


def test_packed_conversion_puts_the_first_operand_high(lab):
    a, b = floats32(9, special=False), floats32(10, special=False)
    (got,) = lab.run("cvt.rn.f16x2.f32 %x0, %a, %b;", [a.view(np.uint32), b.view(np.uint32)], [32])
    with np.errstate(over="ignore"):
        assert ((got >> 16).astype(np.uint16) == a.astype(np.float16).view(np.uint16)).all()
        assert ((got & 0xFFFF).astype(np.uint16) == b.astype(np.float16).view(np.uint16)).all()


@pytest.mark.parametrize("mode", ["rni", "rzi", "rmi", "rpi"])
def test_float_to_integer_clamps(lab, mode):
    x = floats32(11)
    (signed,) = lab.run(f"cvt.{mode}.s32.f32 %x0, %a;", [x.view(np.uint32)], [32])
    (unsigned,) = lab.run(f"cvt.{mode}.u32.f32 %x0, %a;", [x.view(np.uint32)], [32])
    step = {"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}[mode]
    for got, low, high in ((signed.view(np.int32), -(2**31), 2**31 - 1), (unsigned, 0, 2**32 - 1)):
        for t in range(THREADS):
            v = float(x[t])
            want = 0 if math.isnan(v) else (high if v > 0 else low) if math.isinf(v) else max(low, min(high, step(v)))
            assert int(got[t]) == want, v


def test_integer_to_float(lab):
    rng = np.random.default_rng(12)
    n = rng.integers(-(2**31), 2**31, THREADS).astype(np.int32)
    (near,) = lab.run("cvt.rn.f32.s32 %x0, %a;", [n.view(np.uint32)], [32])
    (zero,) = lab.run("cvt.rz.f32.s32 %x0, %a;", [n.view(np.uint32)], [32])
    same32(near.view(np.float32), n.astype(np.float32))
    want = [float(rounded(Fraction(int(v)), "rz", 24, -126)) for v in n]
    same32(zero.view(np.float32), np.array(want, np.float32))


def test_double_precision(lab):
    rng = np.random.default_rng(13)
    a, b, c = (rng.standard_normal(THREADS) * 10.0 ** rng.integers(-9, 9, THREADS) for _ in range(3))
    (got,) = lab.run("fma.rn.f64 %x0, %a, %b, %c;", [x.view(np.uint64) for x in (a, b, c)], [64])
    want = [float(Fraction(x) * Fraction(y) + Fraction(z)) for x, y, z in zip(a, b, c, strict=True)]
    assert got.view(np.float64).tolist() == want
    (down,) = lab.run("cvt.rn.f32.f64 %x0, %a;", [a.view(np.uint64)], [32])
    same32(down.view(np.float32), a.astype(np.float32))


COMPARE = {
    "lt": lambda a, b: a < b, "le": lambda a, b: a <= b, "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b, "ne": lambda a, b: (a != b) & ~np.isnan(a) & ~np.isnan(b),
    "ltu": lambda a, b: ~(a >= b), "geu": lambda a, b: ~(a < b), "neu": lambda a, b: a != b,
    "equ": lambda a, b: ~((a < b) | (a > b)),
    "num": lambda a, b: ~np.isnan(a) & ~np.isnan(b), "nan": lambda a, b: np.isnan(a) | np.isnan(b),
}  # fmt: skip


@pytest.mark.parametrize("op", COMPARE)
def test_comparisons_with_nan(lab, op):
    a, b = floats32(14), floats32(15)
    b[::5] = a[::5]
    (got,) = lab.run(
        f"setp.{op}.f32 %p1, %a, %b; selp.b32 %x0, 1, 0, %p1;",
        [a.view(np.uint32), b.view(np.uint32)],
        [32],
        extra=".reg .pred %p<2>;",
    )
    with np.errstate(invalid="ignore"):
        assert (got.astype(bool) == COMPARE[op](a, b)).all()


def test_an_unknown_instruction_is_named(lab):
    from cubridge_engine import simulate

    text = lab.ptx("frobnicate.f32 %x0, %a;", [(32, 1)], [32])
    module = simulate.load(text)
    run = module.launch(
        "k", (1,), (32,), [simulate.Buffer(np.zeros(32, np.uint32)), simulate.Buffer(np.zeros(32, np.uint32), "out")]
    )
    (finding,) = run.findings
    assert finding.code == "CB510"
    assert "frobnicate.f32" in finding.message
    line = 1 + text.split("\n").index("frobnicate.f32 %x0, %a;")
    assert f"PTX line {line}" in finding.message
    assert not run.outputs
