"""Every integer instruction against exact Python integers, on edge values and random ones."""

from __future__ import annotations

import numpy as np
import pytest

UNSIGNED = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
THREADS = 256


def values(bits: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    edge = [
        0,
        1,
        2,
        3,
        7,
        31,
        32,
        33,
        (1 << bits - 1) - 1,
        1 << bits - 1,
        (1 << bits - 1) + 1,
        (1 << bits) - 1,
        (1 << bits) - 2,
    ]
    x = (
        rng.integers(0, 1 << bits, THREADS, dtype=np.uint64, endpoint=False)
        if bits < 64
        else rng.integers(0, 2**64 - 1, THREADS, dtype=np.uint64)
    )
    chosen = rng.random(THREADS) < 0.5
    x = np.where(chosen, rng.choice(np.array(edge, np.uint64), THREADS), x)
    return x.astype(UNSIGNED[bits])


def signed(x: int, bits: int) -> int:
    x &= (1 << bits) - 1
    return x - (1 << bits) if x >> (bits - 1) else x


def truncating(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def S(f, bits):
    """The function on signed operands."""
    return lambda *x: f(*(signed(v, bits) for v in x))


def extract(x: int, position: int, length: int, bits: int, sign: bool) -> int:
    position, length = position & 0xFF, length & 0xFF
    top = bits - 1
    fill = (x >> min(position + length - 1, top)) & 1 if sign and length else 0
    result = 0
    for i in range(bits):
        source = position + i
        bit = (x >> source) & 1 if i < length and source <= top else fill
        result |= bit << i
    return result


def insert(a: int, b: int, position: int, length: int, bits: int) -> int:
    position, length = position & 0xFF, length & 0xFF
    for i in range(min(length, bits)):
        if position + i < bits:
            b = b & ~(1 << (position + i)) | ((a >> i) & 1) << (position + i)
    return b


def permute(a: int, b: int, selector: int) -> int:
    data = [(b << 32 | a) >> 8 * i & 0xFF for i in range(8)]
    result = 0
    for i in range(4):
        nibble = selector >> 4 * i & 0xF
        byte = data[nibble & 7]
        if nibble & 8:
            byte = 0xFF if byte & 0x80 else 0
        result |= byte << 8 * i
    return result


def funnel(a: int, b: int, n: int, left: bool, wrap: bool) -> int:
    n = n & 31 if wrap else min(n, 32)
    both = b << 32 | a
    return (both << n) >> 32 if left else both >> n


def bfind(x: int, bits: int, sign: bool) -> int:
    if sign and x >> (bits - 1):
        x = ~x & ((1 << bits) - 1)
    return x.bit_length() - 1 if x else 0xFFFFFFFF


def dp4a(a: int, b: int, c: int, sa: bool, sb: bool) -> int:
    byte = lambda x, i, s: signed(x >> 8 * i & 0xFF, 8) if s else x >> 8 * i & 0xFF  # noqa: E731
    return c + sum(byte(a, i, sa) * byte(b, i, sb) for i in range(4))


def parts(x: int, count: int, sign: bool) -> list[int]:
    bits = 32 // count
    return [signed(x >> bits * i, bits) if sign else x >> bits * i & ((1 << bits) - 1) for i in range(count)]


def packed(values: list[int]) -> int:
    bits = 32 // len(values)
    return sum((v & ((1 << bits) - 1)) << bits * i for i, v in enumerate(values))


def each(f, count: int, signs: tuple[bool, bool] = (False, False), low: int | None = None, high: int | None = None):
    """A function of pairs of parts of two words, clamped where limits are given."""

    def apply(a: int, b: int) -> list[int]:
        found = [f(x, y) for x, y in zip(parts(a, count, signs[0]), parts(b, count, signs[1]), strict=True)]
        return [v if low is None or high is None else max(low, min(high, v)) for v in found]

    return apply


def dp2a(a: int, b: int, c: int, high: bool, sa: bool, sb: bool) -> int:
    left, right = parts(a, 2, sa), parts(b, 4, sb)[2 * high : 2 * high + 2]
    return c + sum(x * y for x, y in zip(left, right, strict=True))


def nth_set(mask: int, base: int, offset: int) -> int:
    """fns, as the manual's program says it."""
    base, offset = base & 31, signed(offset, 32)
    if offset == 0:
        return base if mask >> base & 1 else -1
    step, left, at = (1 if offset > 0 else -1), abs(offset) - 1, base
    while 0 <= at < 32:
        if mask >> at & 1:
            if left == 0:
                return at
            left -= 1
        at += step
    return -1


def clamp32(x: int) -> int:
    return max(-(1 << 31), min((1 << 31) - 1, x))


# instruction, operand bits, result bits, reference on unsigned operands
CASES = [
    ("add.s32 %x0, %a, %b;", (32, 32), 32, lambda a, b: a + b),
    ("add.u64 %x0, %a, %b;", (64, 64), 64, lambda a, b: a + b),
    ("add.s16 %x0, %a, %b;", (16, 16), 16, lambda a, b: a + b),
    ("sub.s64 %x0, %a, %b;", (64, 64), 64, lambda a, b: a - b),
    ("mul.lo.s32 %x0, %a, %b;", (32, 32), 32, lambda a, b: a * b),
    ("mul.lo.u64 %x0, %a, %b;", (64, 64), 64, lambda a, b: a * b),
    ("mul.hi.s32 %x0, %a, %b;", (32, 32), 32, S(lambda a, b: a * b >> 32, 32)),
    ("mul.hi.u32 %x0, %a, %b;", (32, 32), 32, lambda a, b: a * b >> 32),
    ("mul.hi.s64 %x0, %a, %b;", (64, 64), 64, S(lambda a, b: a * b >> 64, 64)),
    ("mul.hi.u64 %x0, %a, %b;", (64, 64), 64, lambda a, b: a * b >> 64),
    ("mul.wide.s32 %x0, %a, %b;", (32, 32), 64, S(lambda a, b: a * b, 32)),
    ("mul.wide.u16 %x0, %a, %b;", (16, 16), 32, lambda a, b: a * b),
    ("mul.wide.s32 %x0, %a, -24;", (32,), 64, S(lambda a: a * -24, 32)),
    ("mul24.lo.s32 %x0, %a, %b;", (32, 32), 32, lambda a, b: signed(a, 24) * signed(b, 24)),
    ("mad.lo.s32 %x0, %a, %b, %c;", (32, 32, 32), 32, lambda a, b, c: a * b + c),
    ("mad.wide.u32 %x0, %a, %b, %c;", (32, 32, 64), 64, lambda a, b, c: a * b + c),
    ("mad.hi.u32 %x0, %a, %b, %c;", (32, 32, 32), 32, lambda a, b, c: (a * b >> 32) + c),
    ("div.s32 %x0, %a, %b;", (32, 32), 32, S(lambda a, b: truncating(a, b) if b else -1, 32)),
    ("div.u32 %x0, %a, %b;", (32, 32), 32, lambda a, b: a // b if b else -1),
    ("div.s64 %x0, %a, 7;", (64,), 64, S(lambda a: truncating(a, 7), 64)),
    ("rem.s32 %x0, %a, 13;", (32,), 32, S(lambda a: a - 13 * truncating(a, 13), 32)),
    ("rem.u32 %x0, %a, %b;", (32, 32), 32, lambda a, b: a % b if b else -1),
    ("min.s32 %x0, %a, %b;", (32, 32), 32, S(min, 32)),
    ("min.u32 %x0, %a, %b;", (32, 32), 32, min),
    ("max.s64 %x0, %a, %b;", (64, 64), 64, S(max, 64)),
    ("neg.s32 %x0, %a;", (32,), 32, lambda a: -a),
    ("abs.s32 %x0, %a;", (32,), 32, S(abs, 32)),
    ("sad.s32 %x0, %a, %b, %c;", (32, 32, 32), 32, lambda a, b, c: abs(signed(a, 32) - signed(b, 32)) + c),
    ("and.b32 %x0, %a, %b;", (32, 32), 32, lambda a, b: a & b),
    ("or.b64 %x0, %a, %b;", (64, 64), 64, lambda a, b: a | b),
    ("xor.b16 %x0, %a, %b;", (16, 16), 16, lambda a, b: a ^ b),
    ("not.b32 %x0, %a;", (32,), 32, lambda a: ~a),
    ("cnot.b32 %x0, %a;", (32,), 32, lambda a: int(a == 0)),
    ("shl.b32 %x0, %a, %b;", (32, 32), 32, lambda a, b: a << b if b < 32 else 0),
    ("shl.b64 %x0, %a, 5;", (64,), 64, lambda a: a << 5),
    ("shr.u32 %x0, %a, %b;", (32, 32), 32, lambda a, b: a >> b if b < 32 else 0),
    ("shr.s32 %x0, %a, %b;", (32, 32), 32, lambda a, b: signed(a, 32) >> min(b, 31)),
    ("shr.s32 %x0, %a, 31;", (32,), 32, lambda a: signed(a, 32) >> 31),
    ("shr.s64 %x0, %a, 63;", (64,), 64, lambda a: signed(a, 64) >> 63),
    ("shf.l.wrap.b32 %x0, %a, %b, %c;", (32, 32, 32), 32, lambda a, b, c: funnel(a, b, c, True, True)),
    ("shf.r.clamp.b32 %x0, %a, %b, %c;", (32, 32, 32), 32, lambda a, b, c: funnel(a, b, c, False, False)),
    ("bfe.u32 %x0, %a, %b, %c;", (32, 32, 32), 32, lambda a, b, c: extract(a, b, c, 32, False)),
    ("bfe.s32 %x0, %a, %b, %c;", (32, 32, 32), 32, lambda a, b, c: extract(a, b, c, 32, True)),
    ("bfe.s32 %x0, %a, 4, 9;", (32,), 32, lambda a: extract(a, 4, 9, 32, True)),
    ("bfe.u64 %x0, %a, 11, 40;", (64,), 64, lambda a: extract(a, 11, 40, 64, False)),
    ("bfi.b32 %x0, %a, %b, %c, %d;", (32, 32, 32, 32), 32, lambda a, b, c, d: insert(a, b, c, d, 32)),
    ("bfi.b32 %x0, %a, %b, 3, 5;", (32, 32), 32, lambda a, b: insert(a, b, 3, 5, 32)),
    ("lop3.b32 %x0, %a, %b, %c, 0xE8;", (32,) * 3, 32, lambda a, b, c: (a & b) | (a & c) | (b & c)),
    ("lop3.b32 %x0, %a, %b, %c, 0x96;", (32,) * 3, 32, lambda a, b, c: a ^ b ^ c),
    ("prmt.b32 %x0, %a, %b, %c;", (32,) * 3, 32, permute),
    ("popc.b32 %x0, %a;", (32,), 32, lambda a: bin(a).count("1")),
    ("popc.b64 %x0, %a;", (64,), 32, lambda a: bin(a).count("1")),
    ("clz.b32 %x0, %a;", (32,), 32, lambda a: 32 - a.bit_length()),
    ("clz.b64 %x0, %a;", (64,), 32, lambda a: 64 - a.bit_length()),
    ("brev.b32 %x0, %a;", (32,), 32, lambda a: int(f"{a:032b}"[::-1], 2)),
    ("bfind.u32 %x0, %a;", (32,), 32, lambda a: bfind(a, 32, False)),
    ("bfind.s32 %x0, %a;", (32,), 32, lambda a: bfind(a, 32, True)),
    ("dp4a.s32.s32 %x0, %a, %b, %c;", (32,) * 3, 32, lambda a, b, c: dp4a(a, b, c, True, True)),
    ("dp4a.u32.s32 %x0, %a, %b, %c;", (32,) * 3, 32, lambda a, b, c: dp4a(a, b, c, False, True)),
    ("cvt.s64.s32 %x0, %a;", (32,), 64, lambda a: signed(a, 32)),
    ("cvt.u64.u32 %x0, %a;", (32,), 64, lambda a: a),
    ("cvt.u32.u64 %x0, %a;", (64,), 32, lambda a: a),
    ("cvt.s32.s16 %x0, %a;", (16,), 32, lambda a: signed(a, 16)),
    ("cvt.s32.s8 %x0, %a;", (32,), 32, lambda a: signed(a, 8)),
    ("cvt.u16.u32 %x0, %a;", (32,), 16, lambda a: a),
    ("cvt.sat.s8.s32 %x0, %a;", (32,), 32, lambda a: max(-128, min(127, signed(a, 32)))),
    ("cvt.sat.u8.s32 %x0, %a;", (32,), 32, lambda a: max(0, min(255, signed(a, 32)))),
    # Carries: the low words make the flag that the high words take.
    (
        "{.reg .b32 l; add.cc.u32 l, %a, %b; addc.u32 %x0, %c, %d;}",
        (32,) * 4,
        32,
        lambda a, b, c, d: c + d + (a + b >> 32),
    ),
    (
        "{.reg .b32 l; add.cc.s32 l, %a, %b; addc.cc.s32 l, %c, %d; addc.s32 %x0, 0, 0;}",
        (32,) * 4,
        32,
        lambda a, b, c, d: c + d + (a + b >> 32) >> 32,
    ),
    ("{.reg .b64 l; add.cc.u64 l, %a, %b; addc.u64 %x0, %a, %b;}", (64, 64), 64, lambda a, b: a + b + (a + b >> 64)),
    ("{.reg .b32 l; sub.cc.u32 l, %a, %b; subc.u32 %x0, %c, %d;}", (32,) * 4, 32, lambda a, b, c, d: c - d - (a < b)),
    (
        "{.reg .b32 l; sub.cc.u32 l, %a, %b; subc.cc.u32 l, %c, %d; subc.u32 %x0, 0, 0;}",
        (32,) * 4,
        32,
        lambda a, b, c, d: -((d << 32 | b) > (c << 32 | a)),
    ),
    (
        "{.reg .b32 l; mad.lo.cc.u32 l, %a, %b, %c; madc.hi.u32 %x0, %a, %b, %d;}",
        (32,) * 4,
        32,
        lambda a, b, c, d: a * b + (d << 32 | c) >> 32,
    ),
    (
        "{.reg .b32 l; mad.lo.cc.s32 l, %a, %b, %c; madc.hi.cc.s32 l, %a, %b, %d; addc.u32 %x0, 0, 0;}",
        (32,) * 4,
        32,
        lambda a, b, c, d: ((signed(a, 32) * signed(b, 32) >> 32) % 2**32 + d + ((a * b) % 2**32 + c >> 32)) >> 32,
    ),
    ("add.sat.s32 %x0, %a, %b;", (32, 32), 32, S(lambda a, b: clamp32(a + b), 32)),
    ("sub.sat.s32 %x0, %a, %b;", (32, 32), 32, S(lambda a, b: clamp32(a - b), 32)),
    ("mad.hi.sat.s32 %x0, %a, %b, %c;", (32,) * 3, 32, S(lambda a, b, c: clamp32((a * b >> 32) + c), 32)),
    # Two halves at once.
    ("add.u16x2 %x0, %a, %b;", (32, 32), 32, lambda a, b: packed(each(lambda x, y: x + y, 2)(a, b))),
    ("add.s16x2 %x0, %a, %b;", (32, 32), 32, lambda a, b: packed(each(lambda x, y: x + y, 2)(a, b))),
    ("min.u16x2 %x0, %a, %b;", (32, 32), 32, lambda a, b: packed(each(min, 2)(a, b))),
    ("max.s16x2 %x0, %a, %b;", (32, 32), 32, lambda a, b: packed(each(max, 2, (True, True))(a, b))),
    ("min.relu.s16x2 %x0, %a, %b;", (32, 32), 32, lambda a, b: packed(each(min, 2, (True, True), 0, 2**15)(a, b))),
    ("max.relu.s32 %x0, %a, %b;", (32, 32), 32, S(lambda a, b: max(a, b, 0), 32)),
    # Parts of a word.
    ("vadd4.u32.u32.u32 %x0, %a, %b, %c;", (32,) * 3, 32, lambda a, b, c: packed(each(lambda x, y: x + y, 4)(a, b))),
    (
        "vsub2.s32.s32.s32.sat %x0, %a, %b, %c;",
        (32,) * 3,
        32,
        lambda a, b, c: packed(each(lambda x, y: x - y, 2, (True, True), -(2**15), 2**15 - 1)(a, b)),
    ),
    (
        "vabsdiff4.u32.u32.u32.add %x0, %a, %b, %c;",
        (32,) * 3,
        32,
        lambda a, b, c: c + sum(each(lambda x, y: abs(x - y), 4)(a, b)),
    ),
    (
        "vabsdiff2.u32.s32.s32.sat %x0, %a, %b, %c;",
        (32,) * 3,
        32,
        lambda a, b, c: packed(each(lambda x, y: abs(x - y), 2, (True, True), 0, 2**16 - 1)(a, b)),
    ),
    (
        "vavrg4.u32.u32.u32 %x0, %a, %b, %c;",
        (32,) * 3,
        32,
        lambda a, b, c: packed(each(lambda x, y: x + y + 1 >> 1, 4)(a, b)),
    ),
    ("vmax2.s32.s32.s32 %x0, %a, %b, %c;", (32,) * 3, 32, lambda a, b, c: packed(each(max, 2, (True, True))(a, b))),
    ("vset4.u32.u32.lt %x0, %a, %b, %c;", (32,) * 3, 32, lambda a, b, c: packed(each(lambda x, y: x < y, 4)(a, b))),
    ("dp2a.lo.s32.s32 %x0, %a, %b, %c;", (32,) * 3, 32, lambda a, b, c: dp2a(a, b, c, False, True, True)),
    ("dp2a.hi.u32.s32 %x0, %a, %b, %c;", (32,) * 3, 32, lambda a, b, c: dp2a(a, b, c, True, False, True)),
    (
        "{.reg .b32 n; .reg .b32 o; and.b32 n, %b, 31; and.b32 o, %c, 15; sub.s32 o, o, 7; fns.b32 %x0, %a, n, o;}",
        (32,) * 3,
        32,
        lambda a, b, c: nth_set(a, b, (c & 15) - 7),
    ),
]


@pytest.mark.parametrize(
    ("body", "operands", "result", "reference"), CASES, ids=[c[0].split("%")[0] + str(i) for i, c in enumerate(CASES)]
)
def test_against_python_integers(lab, body, operands, result, reference):
    inputs = [values(bits, 7 + i) for i, bits in enumerate(operands)]
    (got,) = lab.run(body, inputs, [result])
    mask = (1 << result) - 1
    want = [reference(*(int(x[t]) for x in inputs)) & mask for t in range(THREADS)]
    wrong = [
        (tuple(hex(int(x[t])) for x in inputs), hex(int(got[t])), hex(want[t]))
        for t in range(THREADS)
        if int(got[t]) != want[t]
    ]
    assert not wrong, wrong[:3]


COMPARISONS = {
    "eq.s32": lambda a, b: a == b,
    "ne.u32": lambda a, b: a != b,
    "lt.s32": S(lambda a, b: a < b, 32),
    "lt.u32": lambda a, b: a < b,
    "le.s32": S(lambda a, b: a <= b, 32),
    "gt.u32": lambda a, b: a > b,
    "ge.s32": S(lambda a, b: a >= b, 32),
    "lo.u32": lambda a, b: a < b,
    "hs.u32": lambda a, b: a >= b,
}


@pytest.mark.parametrize("name", COMPARISONS)
def test_comparisons_select_and_combine(lab, name):
    a, b = values(32, 1), values(32, 2)
    b[::3] = a[::3]
    op, kind = name.split(".")
    body = f"""setp.{name} %p1, %a, %b; selp.b32 %x0, 5, 9, %p1;
      setp.{op}.and.{kind} %p2, %a, %b, !%p1; selp.b32 %x1, 1, 0, %p2;"""
    got, never = lab.run(body, [a, b], [32, 32], extra=".reg .pred %p<4>;")
    want = [5 if COMPARISONS[name](int(x), int(y)) else 9 for x, y in zip(a, b, strict=True)]
    assert got.tolist() == want
    assert not never.any()


def test_packing_and_unpacking(lab):
    a = values(64, 3)
    body = "mov.b64 {%lo, %hi}, %a; mov.b64 %x0, {%hi, %lo}; mov.b32 {%h0, %h1}, %lo; mov.b32 %x1, {%h1, %h0};"
    swapped, halves = lab.run(body, [a], [64, 32], extra=".reg .b32 %lo; .reg .b32 %hi; .reg .b16 %h0; .reg .b16 %h1;")
    assert swapped.tolist() == [(int(x) >> 32 | int(x) << 32) & (2**64 - 1) for x in a]
    assert halves.tolist() == [(int(x) >> 16 & 0xFFFF) | (int(x) << 16 & 0xFFFF0000) for x in a]


def test_guarded_writes_keep_the_old_value(lab):
    a = values(32, 4)
    body = "setp.lt.u32 %p1, %a, 100; mov.b32 %x0, 7; @%p1 mov.b32 %x0, %a; @!%p1 add.s32 %x0, %x0, 1;"
    (got,) = lab.run(body, [a], [32], extra=".reg .pred %p<2>;")
    assert got.tolist() == [int(x) if x < 100 else 8 for x in a]


def test_divergent_loop_and_branches(lab):
    a = values(32, 5) % np.uint32(50)
    body = """
      mov.b32 %x0, 0; mov.b32 %i, 0;
    L: setp.ge.u32 %p1, %i, %a; @%p1 bra E;
      and.b32 %o, %i, 1; setp.eq.u32 %p2, %o, 0; @%p2 bra V;
      add.u32 %x0, %x0, %i; bra N;
    V: sub.u32 %x0, %x0, 1;
    N: add.u32 %i, %i, 1; bra L;
    E: add.u32 %x0, %x0, 1000;
    """
    (got,) = lab.run(body, [a], [32], extra=".reg .b32 %i; .reg .b32 %o; .reg .pred %p<3>;")
    want = [(1000 + sum(i if i & 1 else -1 for i in range(int(n)))) & 0xFFFFFFFF for n in a]
    assert got.tolist() == want


def test_jump_table(lab):
    a = values(32, 6) % np.uint32(3)
    body = """
    T: .branchtargets A0, A1, A2;
      brx.idx %a, T;
    A0: mov.b32 %x0, 10; bra E;
    A1: mov.b32 %x0, 11; bra E;
    A2: mov.b32 %x0, 12;
    E: add.u32 %x0, %x0, 1;
    """
    (got,) = lab.run(body, [a], [32])
    assert got.tolist() == [int(x) + 11 for x in a]


WIDE = """{.reg .b128 q, p; .reg .b64 l, h;
  mov.b128 q, {%a, %b}; st.shared.b128 [slot], q; ld.shared.b128 p, [slot]; mov.b128 {l, h}, p;
  mov.b64 %x0, h; mov.b128 q, p; mov.b128 {%x1, _}, q;}"""


def test_registers_of_128_bits(lab):
    a, b = values(64, 1)[:1], values(64, 2)[:1]
    high, low = lab.run(WIDE, [a, b], [64, 64], extra=".shared .align 16 .b8 slot[16];")
    assert (high, low) == (b, a)


def test_a_misaligned_access_of_128_bits(lab):
    body = WIDE.replace("[slot]", "[slot+8]")
    lab.run(body, [values(64, 1)[:1], values(64, 2)[:1]], [64, 64], extra=".shared .align 16 .b8 slot[32];", ok=False)
    assert "CB514" in {f.code for f in lab.findings}


# A compare that differs in the high half alone does not swap.
WIDE_ATOMICS = """{.reg .b128 q, p, n; mov.b128 q, {%a, 1}; mov.b128 n, {5, 6};
  st.shared.b128 [slot], q; atom.shared.exch.b128 p, [slot], n; mov.b128 {%x0, %x1}, p;
  mov.b128 p, {5, 7}; atom.shared.cas.b128 q, [slot], p, p; ld.shared.b64 %x2, [slot+8];
  atom.shared.cas.b128 q, [slot], n, p; ld.shared.b64 %x3, [slot+8];}"""


def test_atomics_of_128_bits(lab):
    a = values(64, 3)[:1]
    got = lab.run(WIDE_ATOMICS, [a], [64] * 4, extra=".shared .align 16 .b8 slot[16];")
    assert [int(x[0]) for x in got] == [int(a[0]), 1, 6, 7]
