"""Directed roundings, vector atomics, comparisons of packed halves, sparse products: against exact arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from cubridge_engine import simulate
from cubridge_engine.simulate import Buffer
from tests.simulate.test_warp_ops import fragments, half, matrix_b

THREADS = 256


def doubles(seed: int) -> np.ndarray:
    """Ordinary values, neighbours of powers of two, subnormals, infinities, NaN, zeros of both signs."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(THREADS) * 2.0 ** rng.integers(-60, 60, THREADS)
    edges = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        1 + 2**-52,
        2.0**-1074,
        -(2.0**-1022),
        1.7e308,
        -1.7e308,
        math.inf,
        -math.inf,
        math.nan,
    ]
    return np.where(rng.random(THREADS) < 0.3, rng.choice(edges, THREADS), x)


EXACT = {
    "add": lambda a, b, c: a + b,
    "sub": lambda a, b, c: a - b,
    "mul": lambda a, b, c: a * b,
    "div": lambda a, b, c: a / b,
    "fma": lambda a, b, c: a * b + c,
}


def check_direction(mode: str, exact: Fraction, got: float) -> bool:
    """The definition of the rounding: the greatest double that is not above, its mirror image, or either by sign."""
    if mode == "rz":
        mode = "rm" if exact >= 0 else "rp"
    if mode == "rp":
        return check_direction("rm", -exact, -got)
    if got == -math.inf:
        return exact < -Fraction(math.nextafter(math.inf, 0))
    following = math.nextafter(got, math.inf)
    return Fraction(got) <= exact and (math.isinf(following) or Fraction(following) > exact)


@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
@pytest.mark.parametrize("op", EXACT)
def test_directed_roundings_of_doubles(lab, op, mode):
    a, b, c = (doubles(s) for s in (1, 2, 3))
    operands = "%a, %b, %c" if op == "fma" else "%a, %b"
    given = [x.view(np.uint64) for x in ((a, b, c) if op == "fma" else (a, b))]
    (got,) = lab.run(f"{op}.{mode}.f64 %x0, {operands};", given, [64])
    got = got.view(np.float64)
    with np.errstate(all="ignore"):
        near = {"add": a + b, "sub": a - b, "mul": a * b, "div": a / b, "fma": a * b + c}[op]
    for t in range(THREADS):
        used = [float(x[t]) for x in ((a, b, c) if op == "fma" else (a, b))]
        if not all(map(math.isfinite, used)) or (op == "div" and used[1] == 0):
            assert np.array_equal(got[t], near[t], equal_nan=True), (t, used)
            continue
        exact = EXACT[op](*(Fraction(x) for x in (*used, 0.0)[:3]))
        assert check_direction(mode, exact, float(got[t])), (t, used, got[t])
        if exact == 0 and op in ("add", "sub") and used[0] != 0:
            assert np.signbit(got[t]) == (mode == "rm")


@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
def test_directed_roots_of_doubles(lab, mode):
    a = np.abs(doubles(4))
    (got,) = lab.run(f"sqrt.{mode}.f64 %x0, %a;", [a.view(np.uint64)], [64])
    for x, r in zip(a.tolist(), got.view(np.float64).tolist(), strict=True):
        if not math.isfinite(x):
            assert np.array_equal(r, math.sqrt(x) if x == x else x, equal_nan=True)
            continue
        below, above = (Fraction(math.nextafter(r, s)) for s in (-math.inf, math.inf))
        square, value = Fraction(r) ** 2, Fraction(x)
        assert square == value or (square < value < above**2 if mode != "rp" else below**2 < value < square), (x, r)


def finite_halves(kind: str) -> list[tuple[Fraction, int]]:
    found = []
    for code in range(1 << 16):
        value = half(code, kind)
        if math.isfinite(value) and code != 0x8000:
            found.append((Fraction(value), code))
    return sorted(found)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize(
    ("mode", "source"), [("rm", "f32"), ("rp", "f32"), ("rz", "f32"), ("rp", "u64"), ("rm", "s64")]
)
def test_directed_conversions_to_halves(lab, kind, mode, source):
    import bisect

    rng = np.random.default_rng(6)
    if source == "f32":
        x = (rng.standard_normal(THREADS) * 2.0 ** rng.integers(-30, 20, THREADS)).astype(np.float32)
        x[:6] = [65519, -65520, 1e-9, -1e-9, 0, 2.0**-14]
        given, exact = x.view(np.uint32), [Fraction(float(v)) for v in x]
    else:
        given = rng.integers(0, 1 << 63, THREADS, dtype=np.uint64) >> rng.integers(0, 60, THREADS).astype(np.uint64)
        # A little more than what the format holds: one rounding through float64 would lose it.
        given[:3] = [(1 << 62) + 1, (1 << 61) + 3, 2049]
        given = (
            np.where(rng.random(THREADS) < 0.5, -given.view(np.int64), given.view(np.int64))
            if source == "s64"
            else given
        )
        given = given.view(np.uint64)
        exact = [Fraction(int(v)) for v in (given.view(np.int64) if source == "s64" else given)]
    (got,) = lab.run(f"cvt.{mode}.{kind}.{source} %x0, %a;", [given], [16])
    table = finite_halves(kind)
    values = [v for v, _ in table]
    for t, value in enumerate(exact):
        down = bisect.bisect_right(values, value) - 1
        up = bisect.bisect_left(values, value)
        index = {"rm": down, "rp": up, "rz": down if value >= 0 else up}[mode]
        result = half(int(got[t]), kind)
        if 0 <= index < len(values):
            assert Fraction(result) == values[index], (t, value, result)
        else:
            assert math.isinf(result), (t, value, result)


@pytest.mark.parametrize("kind", ["f16x2", "bf16x2"])
def test_comparisons_of_packed_halves_give_masks(lab, kind):
    a, b = (np.random.default_rng(s).integers(0, 2**32, THREADS, dtype=np.uint64).astype(np.uint32) for s in (1, 2))
    b[::4] = a[::4]
    (got,) = lab.run(f"set.le.u32.{kind} %x0, %a, %b;", [a, b], [32])
    for t in range(THREADS):
        pairs = [(half(int(a[t]) >> s & 0xFFFF, kind[:-2]), half(int(b[t]) >> s & 0xFFFF, kind[:-2])) for s in (0, 16)]
        assert int(got[t]) == sum(0xFFFF << 16 * i for i, (x, y) in enumerate(pairs) if x <= y)


VECTOR_ATOMICS = """.version 9.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 p0, .param .u64 p1, .param .u64 p2) {
  .reg .b64 %rd<8>; .reg .b32 %t<9>; .reg .f32 %f<9>;
  ld.param.u64 %rd0, [p0]; ld.param.u64 %rd1, [p1]; ld.param.u64 %rd2, [p2];
  mov.u32 %t0, %tid.x; mul.wide.u32 %rd3, %t0, 16; add.s64 %rd1, %rd1, %rd3; add.s64 %rd2, %rd2, %rd3;
  ld.global.v4.b32 {%t1, %t2, %t3, %t4}, [%rd1];
  OP
  st.global.v4.b32 [%rd2], {%t5, %t6, %t7, %t8};
  ret;
}"""
VECTORS = {
    "v4.f32": "atom.global.add.v4.f32 {%t5, %t6, %t7, %t8}, [%rd0], {%t1, %t2, %t3, %t4};",
    "v2.f32": "atom.global.add.v2.f32 {%t5, %t6}, [%rd0], {%t1, %t2}; "
    "red.global.add.v2.f32 [%rd0+8], {%t3, %t4}; mov.b32 %t7, 0; mov.b32 %t8, 0;",
    "v4.f16x2": "atom.global.add.noftz.v4.f16x2 {%t5, %t6, %t7, %t8}, [%rd0], {%t1, %t2, %t3, %t4};",
    "v2.bf16x2": "atom.global.max.noftz.v2.bf16x2 {%t5, %t6}, [%rd0], {%t1, %t2}; "
    "red.global.max.noftz.v2.bf16x2 [%rd0+8], {%t3, %t4}; mov.b32 %t7, 0; mov.b32 %t8, 0;",
}


def atomic_operands(name: str) -> tuple[str, np.ndarray, np.ndarray]:
    """PTX, start (16 bytes), addends of 8 threads; sums are exact in any order."""
    kind = name.split(".")[1]
    rng = np.random.default_rng(8)
    whole = rng.integers(-20, 21, (9, 4 if kind == "f32" else 8)).astype(np.float32)
    if kind == "f32":
        bits = whole.view(np.uint32)
    elif kind == "f16x2":
        bits = whole.astype(np.float16).view(np.uint32)
    else:
        bits = np.ascontiguousarray((whole.view(np.uint32) >> 16).astype(np.uint16)).view(np.uint32)
    return VECTOR_ATOMICS.replace("OP", VECTORS[name]), bits[0].copy(), bits[1:].copy()


@pytest.mark.parametrize("name", VECTORS)
def test_vector_atomics(name):
    text, start, addends = atomic_operands(name)
    args = [
        Buffer(start, "inout", "sum"),
        Buffer(addends, "in", "in"),
        Buffer(np.zeros((8, 4), np.uint32), "out", "old"),
    ]
    run = simulate.load(text).launch("k", (1,), (8,), args)
    assert run.ok, [f.message for f in run.findings]

    def value(x: np.ndarray) -> np.ndarray:
        kind = name.split(".")[1]
        if kind == "f32":
            return x.view(np.float32).astype(np.float64)
        return np.array([half(int(h), kind[:-2]) for h in x.view(np.uint16).ravel()])

    every = [value(start), *(value(row) for row in addends)]
    want = np.max(every, axis=0) if "bf16" in name else np.sum(every, axis=0)
    assert value(run.outputs["sum"]).tolist() == want.tolist()
    # The old values of one element are the running sums of the threads in some order: the least is the start's.
    old = np.stack([value(row) for row in run.outputs["old"]])
    assert value(start)[0] in old[:, 0]


def test_a_misaligned_vector_atomic():
    text, start, addends = atomic_operands("v4.f32")
    args = [
        Buffer(start, "inout", "sum", offset=8),
        Buffer(addends, "in", "in"),
        Buffer(np.zeros((8, 4), np.uint32), "out", "old"),
    ]
    run = simulate.load(text).launch("k", (1,), (8,), args)
    assert "CB514" in {f.code for f in run.findings}


# shape, type, registers of A and B, values of the selector
SPARSE = [("m16n8k16", 16, (2, 2), 4), ("m16n8k32", 32, (4, 4), 2)]


def sparse_operands(kind: str, k: int, counts: tuple[int, int], selector: int) -> list[np.ndarray]:
    """A, B, C, metadata of two warps; other lanes' metadata is left as a pattern that would be wrong."""
    a, b = fragments(kind, counts[0], 21), fragments(kind, counts[1], 22)
    c = np.random.default_rng(23).integers(-8, 9, (64, 4)).astype(np.float32).view(np.uint32)
    rng = np.random.default_rng(24)
    pairs = np.array([0b0100, 0b1000, 0b1100, 0b1001, 0b1101, 0b1110])  # two rising indices
    words = sum(rng.choice(pairs, 64).astype(np.uint32) << np.uint32(4 * i) for i in range(8))
    lanes = np.arange(64) % 4
    used = lanes == selector if k == 16 else lanes // 2 == selector
    return [a, b, c, np.where(used, words, np.uint32(0)).astype(np.uint32)]


def sparse_body(kind: str, shape: str, counts: tuple[int, int], selector: int) -> str:
    lists = [
        "{" + ", ".join(f"%{p}{i}" for i in range(n)) + "}"
        for p, n in (("x", 4), ("a", counts[0]), ("b", counts[1]), ("c", 4))
    ]
    name = f"mma.sp::ordered_metadata.sync.aligned.{shape}.row.col.f32.{kind}.{kind}.f32"
    return f"{name} {', '.join(lists)}, %d, 0x{selector};"


def sparse_a(registers: np.ndarray, kind: str, k: int, words: np.ndarray, selector: int) -> np.ndarray:
    """Operand A of one warp, by the manual's description: element for element."""
    dense = np.zeros((16, k))
    for lane in range(32):
        group, thread = lane >> 2, lane & 3
        for i in range(registers.shape[1] * 2):
            row = group + (8 if i // 2 % 2 else 0)
            kept = thread * 2 + i % 2 + (8 if i >= 4 else 0)  # column among the kept ones
            chunk = kept // 2  # of four columns
            owner = 4 * group + (selector if k == 16 else 2 * selector + chunk // 4)
            bits = int(words[owner]) >> (16 if row >= 8 else 0) >> 4 * (chunk % 4) & 15
            index = bits >> 2 if kept % 2 else bits & 3
            word = int(registers[lane, i // 2]) >> 16 * (i % 2) & 0xFFFF
            dense[row, 4 * chunk + index] = half(word, kind)
    return dense


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize(("shape", "k", "counts", "selectors"), SPARSE)
def test_sparse_mma(lab, kind, shape, k, counts, selectors):
    for selector in range(selectors):
        given = sparse_operands(kind, k, counts, selector)
        got = lab.run(sparse_body(kind, shape, counts, selector), given, [32] * 4)
        for warp in (0, 32):
            part = slice(warp, warp + 32)
            a = sparse_a(given[0][part], kind, k, given[3][part], selector)
            want = a @ matrix_b(given[1][part], kind, k)
            c = given[2][part].view(np.float32)
            for lane in range(32):
                for i in range(4):
                    row, column = lane // 4 + (8 if i >= 2 else 0), lane % 4 * 2 + i % 2
                    value = float(got[i][warp + lane : warp + lane + 1].view(np.float32)[0])
                    assert value == pytest.approx(want[row, column] + c[lane, i], rel=1e-5, abs=1e-5)


def test_sparse_metadata_that_names_one_element_twice(lab):
    given = sparse_operands("f16", 16, (2, 2), 0)
    given[3][4] = 0x5555_4444
    lab.run(sparse_body("f16", "m16n8k16", (2, 2), 0), given, [32] * 4, ok=False)
    assert [f.code for f in lab.findings] == ["CB544"]
    assert "0x55554444 of lane 4" in lab.findings[0].message
