"""Rare forms of instructions, hints, and what is refused: against Python integers or NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from cubridge_engine import simulate
from cubridge_engine.simulate import Buffer

THREADS = 256


def words(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**32, THREADS, dtype=np.uint64).astype(np.uint32)


# mode -> bytes of b:a for the selectors 0 to 3, lowest byte of the result first (the manual writes the highest first)
PERMUTATIONS = {
    "f4e": ["0123", "1234", "2345", "3456"],
    "b4e": ["0765", "1076", "2107", "3210"],
    "rc8": ["0000", "1111", "2222", "3333"],
    "ecl": ["0123", "1123", "2223", "3333"],
    "ecr": ["0000", "0111", "0122", "0123"],
    "rc16": ["0101", "2323", "0101", "2323"],
}


@pytest.mark.parametrize("mode", PERMUTATIONS)
def test_permutations_by_mode(lab, mode):
    a, b, c = words(1), words(2), words(3)
    (got,) = lab.run(f"prmt.b32.{mode} %x0, %a, %b, %c;", [a, b, c], [32])
    for t in range(THREADS):
        data = (int(b[t]) << 32 | int(a[t])).to_bytes(8, "little")
        chosen = PERMUTATIONS[mode][int(c[t]) & 3]
        assert int(got[t]) == int.from_bytes(bytes(data[int(i)] for i in chosen), "little")


def mask(position: int, width: int, clamp: bool) -> int:
    """Bits from `position` on, one by one."""
    if clamp:
        return sum(1 << i for i in range(32) if position <= i < position + width)
    position, width = position & 31, width & 31
    return sum(1 << i for i in range(32) if position <= i < position + width)


@pytest.mark.parametrize("mode", ["clamp", "wrap"])
def test_masks_of_bits(lab, mode):
    a, b = (np.random.default_rng(s).integers(0, 45, THREADS).astype(np.uint32) for s in (1, 2))
    (got,) = lab.run(f"bmsk.{mode}.b32 %x0, %a, %b;", [a, b], [32])
    assert got.tolist() == [mask(int(x), int(y), mode == "clamp") for x, y in zip(a, b, strict=True)]


@pytest.mark.parametrize("mode", ["clamp", "wrap"])
@pytest.mark.parametrize("kind", ["u32", "s32"])
def test_extending_some_bits(lab, mode, kind):
    a, b = words(5), np.random.default_rng(2).integers(0, 45, THREADS).astype(np.uint32)
    (got,) = lab.run(f"szext.{mode}.{kind} %x0, %a, %b;", [a, b], [32])
    for t in range(THREADS):
        width = int(b[t]) if mode == "clamp" else int(b[t]) & 31
        value = int(a[t]) % (1 << min(width, 32))
        if kind == "s32" and 0 < width < 32 and value >> (width - 1):
            value -= 1 << width
        assert int(got[t]) == value % 2**32


@pytest.mark.parametrize(("kind", "low", "high"), [("s8", -128, 127), ("u8", 0, 255), ("s16", -(2**15), 2**15 - 1)])
def test_packing_with_saturation(lab, kind, low, high):
    a, b, c = words(1) >> np.uint32(22), words(2), words(3)
    wide = kind.endswith("16")
    operands = "%a, %b" if wide else "%a, %b, %c"
    (got,) = lab.run(f"cvt.pack.sat.{kind}.s32{'' if wide else '.b32'} %x0, {operands};", [a, b, c], [32])
    width = 16 if wide else 8
    for t in range(THREADS):
        first, second = (max(low, min(high, int(x[t : t + 1].view(np.int32)[0]))) % (1 << width) for x in (a, b))
        upper = 0 if wide else (int(c[t]) & 0xFFFF) << 16
        assert int(got[t]) == first << width | second | upper


def test_int8_products_saturate(lab):
    """The largest int32 plus a positive product stays, where the plain form wraps."""
    ones = np.full((32, 4), 0x01010101, np.uint32)
    top = np.full((32, 4), 2**31 - 1, np.uint32)
    lists = "{%x0, %x1, %x2, %x3}, {%a0, %a1, %a2, %a3}, {%b0, %b1}, {%c0, %c1, %c2, %c3};"
    for form, want in ((".satfinite", 2**31 - 1), ("", (2**31 - 1 + 32) % 2**32)):
        body = f"mma.sync.aligned.m16n8k32.row.col{form}.s32.s8.s8.s32 {lists}"
        assert set(lab.run(body, [ones, ones[:, :2].copy(), top], [32] * 4)[0].tolist()) == {want}


@pytest.mark.parametrize("kind", ["s8", "u8"])
def test_wmma_of_bytes(build, kind):
    element = "signed char" if kind == "s8" else "unsigned char"
    text = f"""#include <mma.h>
using namespace nvcuda;
__global__ void k(int* o, const {element}* a, const {element}* b) {{
  wmma::fragment<wmma::matrix_a, 16, 16, 16, {element}, wmma::row_major> fa;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, {element}, wmma::col_major> fb;
  wmma::fragment<wmma::accumulator, 16, 16, 16, int> fc;
  wmma::load_matrix_sync(fa, a, 16);
  wmma::load_matrix_sync(fb, b, 32);
  wmma::load_matrix_sync(fc, o, 16, wmma::mem_row_major);
  wmma::mma_sync(fc, fa, fb, fc);
  wmma::store_matrix_sync(o, fc, 16, wmma::mem_row_major);
}}"""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, 256, shape, dtype=np.uint8) for shape in ((16, 16), (16, 32)))
    start = rng.integers(-(2**30), 2**30, (16, 16)).astype(np.int32)
    module = build(text, "bytes.cu")
    run = module.launch(module.kernels[0], (1,), (32,), [Buffer(start, "inout", "o"), Buffer(a), Buffer(b)])
    assert run.ok, [f.message for f in run.findings]
    left, right = (x.view(np.int8 if kind == "s8" else np.uint8).astype(np.int64) for x in (a, b[:, :16]))
    assert (run.outputs["o"] == start + left @ right.T).all()


HINTS = """.version 9.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 p0) {
  .reg .b64 %rd<4>; .reg .b32 %r<4>;
  ld.param.u64 %rd0, [p0];
  prefetch.global.L2 [%rd0]; applypriority.global.L2::evict_normal [%rd0], 128; nanosleep.u32 20;
  LINE
  ret;
}"""


def test_hints_are_counted_and_change_nothing():
    data = np.arange(64, dtype=np.uint32)
    module = simulate.load(HINTS.replace("LINE", ""))
    run = module.launch("k", (1,), (32,), [Buffer(data, "inout", "x")])
    assert not run.findings
    assert run.counts.instructions["hint"] == 3 * 32
    assert (run.outputs["x"] == data).all()


def test_a_discarded_line_is_undefined():
    data = np.arange(64, dtype=np.uint32)
    module = simulate.load(HINTS.replace("LINE", "discard.global.L2 [%rd0+128], 128;"))
    run = module.launch("k", (1,), (1,), [Buffer(data, "inout", "x")])
    assert (run.outputs["x"][:32] == data[:32]).all()
    assert (run.outputs["x"][32:] == 2**32 - 1).all()
    run = module.launch("k", (1,), (1,), [Buffer(data, "in", "x")])
    assert "CB522" in {f.code for f in run.findings}


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("multimem.red.relaxed.sys.global.add.u32 [%rd0], %r1;", "several GPUs"),
        ("redux.sync.min.f32 %r1, %r2, 0xffffffff;", "redux"),
        ("tcgen05.wait::ld.sync.aligned;", "no such row"),
    ],
)
def test_unknown_instructions_name_themselves(line, text):
    (finding,) = simulate.load(HINTS.replace("LINE", line)).kernel("k").unsupported
    assert finding.code == "CB510"
    assert text in finding.message
    assert line.split(" ")[0].rstrip(";") in finding.message
    assert "PTX line 8" in finding.message


IGNORE_SOURCE = """.version 9.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 p0, .param .u64 p1) {
  .reg .b64 %rd<8>; .reg .b32 %r<8>; .reg .pred %p<2>; .shared .align 16 .b8 s[512];
  ld.param.u64 %rd0, [p0]; ld.param.u64 %rd1, [p1]; mov.u32 %r0, %tid.x; mul.wide.u32 %rd2, %r0, 16;
  add.s64 %rd0, %rd0, %rd2; add.s64 %rd1, %rd1, %rd2; mov.u32 %r1, s; shl.b32 %r2, %r0, 4; add.u32 %r1, %r1, %r2;
  setp.ge.u32 %p1, %r0, 5;
  cp.async.cg.shared.global [%r1], [%rd0], 16, %p1; cp.async.wait_all;
  ld.shared.v4.b32 {%r3, %r4, %r5, %r6}, [%r1]; st.global.v4.b32 [%rd1], {%r3, %r4, %r5, %r6};
  ret;
}"""


def test_copies_that_ignore_their_source():
    """Lanes from 5 on read nothing, which would be out of bounds, and write zeros."""
    data = np.arange(1, 21, dtype=np.uint32)
    args = [Buffer(data, "in", "from"), Buffer(np.zeros((32, 4), np.uint32), "out", "to")]
    run = simulate.load(IGNORE_SOURCE).launch("k", (1,), (32,), args)
    assert not run.findings, [f.message for f in run.findings]
    assert run.outputs["to"].ravel().tolist() == [*range(1, 21), *[0] * 108]


def test_pending_arrivals_of_a_state(lab):
    body = """{.reg .b64 s; .reg .b32 a; mov.u32 a, bar;
      @%p1 mbarrier.init.shared.b64 [a], 64; bar.sync 0;
      @%p1 mbarrier.arrive.shared.b64 s, [a], 5; @%p1 mbarrier.arrive.shared.b64 s, [a];
      mov.b32 %x0, 0; @%p1 mbarrier.pending_count.b64 %x0, s;}"""
    extra = ".shared .align 8 .b8 bar[8]; .reg .pred %p<2>;"
    (got,) = lab.run("setp.eq.u32 %p1, %a, 0;" + body, [np.arange(32, dtype=np.uint32)], [32], extra=extra)
    assert int(got[0]) == 59
