"""Warp instructions and tensor-core fragments, each against a loop over the lanes written from the PTX manual."""

from __future__ import annotations

import numpy as np
import pytest

from cubridge_engine import simulate
from cubridge_engine.simulate import Buffer

W = 64  # threads: two warps


def words(seed: int, shape=(W,)) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**32, shape, dtype=np.uint64).astype(np.uint32)


def shuffled(mode: str, x: np.ndarray, lane: int, warp: int, b: int, c: int) -> tuple[int, bool]:
    clamp, segment = c & 31, c >> 8 & 31
    low = lane & segment
    high = low | (clamp & ~segment & 31)
    j = {"up": lane - b, "down": lane + b, "bfly": lane ^ b, "idx": low | (b & ~segment & 31)}[mode]
    ok = j >= high if mode == "up" else j <= high
    return int(x[warp * 32 + (j if ok else lane)]), ok


@pytest.mark.parametrize(
    ("mode", "c"),
    [("bfly", 31), ("up", 0), ("down", 31), ("idx", 31), ("idx", 0x181F), ("up", 0x1800), ("down", 0x181F)],
)
def test_shfl(lab, mode, c):
    x, b = words(1), words(2) % np.uint32(32)
    body = f"shfl.sync.{mode}.b32 %x0|%p1, %a, %b, {c}, 0xffffffff; selp.b32 %x1, 1, 0, %p1;"
    got, ok = lab.run(body, [x, b], [32, 32], extra=".reg .pred %p<2>;")
    for t in range(W):
        want = shuffled(mode, x, t % 32, t // 32, int(b[t]), c)
        assert (int(got[t]), bool(ok[t])) == want, t


def test_votes_and_masks(lab):
    x = words(3) % np.uint32(3)
    x[32:] = 1
    body = """setp.eq.u32 %p1, %a, 1; vote.sync.ballot.b32 %x0, %p1, 0xffffffff;
      vote.sync.all.pred %p2, %p1, 0xffffffff;
      vote.sync.any.pred %p3, %p1, 0xffffffff; selp.b32 %x1, 1, 0, %p2; selp.b32 %x2, 1, 0, %p3; activemask.b32 %x3;"""
    ballot, every, some, active = lab.run(body, [x], [32] * 4, extra=".reg .pred %p<4>;")
    for warp in (0, 1):
        bits = sum(1 << i for i in range(32) if x[warp * 32 + i] == 1)
        assert set(ballot[warp * 32 : warp * 32 + 32].tolist()) == {bits}
        assert set(every[warp * 32 : warp * 32 + 32].tolist()) == {int(bits == 2**32 - 1)}
        assert set(some[warp * 32 : warp * 32 + 32].tolist()) == {int(bits != 0)}
    assert set(active.tolist()) == {2**32 - 1}


@pytest.mark.parametrize("op", ["add.u32", "min.s32", "max.u32", "and.b32", "or.b32", "xor.b32"])
def test_redux(lab, op):
    x = words(4)
    (got,) = lab.run(f"redux.sync.{op} %x0, %a, 0xffffffff;", [x], [32])
    name, kind = op.split(".")
    for warp in (0, 1):
        v = x[warp * 32 : warp * 32 + 32]
        v = [int(i) for i in (v.view(np.int32) if kind == "s32" else v)]
        total = v[0]
        for i in v[1:]:
            total = {
                "add": total + i,
                "min": min(total, i),
                "max": max(total, i),
                "and": total & i,
                "or": total | i,
                "xor": total ^ i,
            }[name]
        assert set(got[warp * 32 : warp * 32 + 32].tolist()) == {total & 0xFFFFFFFF}


def test_match_and_elect(lab):
    x = words(5) % np.uint32(4)
    body = """match.any.sync.b32 %x0, %a, 0xffffffff; mov.b32 %x1, 4; mov.b32 %x2, 0;
      and.b32 %t3, %t0, 31; setp.lt.u32 %p0, %t3, 4; @%p0 bra E;
      elect.sync %x1|%p1, 0xfffffff0; selp.b32 %x2, 1, 0, %p1; E:"""
    got, leader, chosen = lab.run(body, [x], [32] * 3, extra=".reg .pred %p<2>;")
    for t in range(W):
        base = t // 32 * 32
        assert int(got[t]) == sum(1 << i for i in range(32) if x[base + i] == x[t])
    assert set(leader.tolist()) == {4}
    assert chosen.tolist() == [int(t % 32 == 4) for t in range(W)]


def test_special_registers(lab):
    names = ["%tid.x", "%laneid", "%warpid", "%ntid.x", "%lanemask_lt", "%ctaid.x"]
    body = " ".join(f"mov.u32 %x{i}, {n};" for i, n in enumerate(names))
    got = lab.run(body, [words(6, (256,))], [32] * 6)
    t = np.arange(256)
    assert (got[0] == t % 128).all()
    assert (got[1] == t % 32).all()
    assert (got[2] == t % 128 // 32).all()
    assert (got[3] == 128).all()
    assert (got[4] == (1 << t % 32) - 1).all()
    assert (got[5] == t // 128).all()


def half(bits: int, kind: str) -> float:
    if kind == "f16":
        return float(np.array([bits], np.uint16).view(np.float16)[0])
    return float(np.array([bits << 16], np.uint32).view(np.float32)[0])


def element(registers: np.ndarray, index: int, kind: str) -> float:
    """Element `index` of a lane's registers."""
    if kind == "tf32":
        return float(np.array([registers[index] & 0xFFFFE000], np.uint32).view(np.float32)[0])
    if kind in ("s8", "u8"):
        byte = int(registers[index // 4]) >> 8 * (index % 4) & 0xFF
        return float(byte - 256 if kind == "s8" and byte > 127 else byte)
    return half(int(registers[index // 2]) >> 16 * (index % 2) & 0xFFFF, kind)


def matrix_a(registers: np.ndarray, kind: str, k: int) -> np.ndarray:
    """Operand A of m16n8 by the manual's formulas: registers (32, n)."""
    per = {"tf32": 1, "s8": 4, "u8": 4}.get(kind, 2)
    a = np.zeros((16, k))
    for lane in range(32):
        group, thread = lane >> 2, lane & 3
        for i in range(registers.shape[1] * per):
            r = i // per
            row = group + (8 if r % 2 else 0)
            column = thread * per + i % per + (4 * per if r >= 2 else 0)
            a[row, column] = element(registers[lane], i, kind)
    return a


def matrix_b(registers: np.ndarray, kind: str, k: int) -> np.ndarray:
    per = {"tf32": 1, "s8": 4, "u8": 4}.get(kind, 2)
    b = np.zeros((k, 8))
    for lane in range(32):
        group, thread = lane >> 2, lane & 3
        for i in range(registers.shape[1] * per):
            b[thread * per + i % per + 4 * per * (i // per), group] = element(registers[lane], i, kind)
    return b


def fragments(kind: str, count: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if kind in ("s8", "u8"):
        return rng.integers(0, 256, (W, count * 4), dtype=np.uint8).view(np.uint32)
    x = rng.standard_normal((W, count * (1 if kind == "tf32" else 2))).astype(np.float32)
    if kind == "tf32":
        return x.view(np.uint32)
    if kind == "f16":
        return x.astype(np.float16).view(np.uint32)
    return np.ascontiguousarray((x.view(np.uint32) >> 16).astype(np.uint16)).view(np.uint32)


MMA = [
    ("m16n8k16.row.col.f32.f16.f16.f32", "f16", 16, 4, 2, "f32"),
    ("m16n8k8.row.col.f32.f16.f16.f32", "f16", 8, 2, 1, "f32"),
    ("m16n8k16.row.col.f32.bf16.bf16.f32", "bf16", 16, 4, 2, "f32"),
    ("m16n8k16.row.col.f16.f16.f16.f16", "f16", 16, 4, 2, "f16"),
    ("m16n8k8.row.col.f32.tf32.tf32.f32", "tf32", 8, 4, 2, "f32"),
    ("m16n8k4.row.col.f32.tf32.tf32.f32", "tf32", 4, 2, 1, "f32"),
    ("m16n8k32.row.col.s32.s8.s8.s32", "s8", 32, 4, 2, "s32"),
    ("m16n8k16.row.col.s32.u8.u8.s32", "u8", 16, 2, 1, "s32"),
]


@pytest.mark.parametrize(("shape", "kind", "k", "na", "nb", "result"), MMA, ids=[m[0] for m in MMA])
def test_mma(lab, shape, kind, k, na, nb, result):
    a, b = fragments(kind, na, 1), fragments(kind, nb, 2)
    nc = 2 if result == "f16" else 4
    rng = np.random.default_rng(3)
    if result == "s32":
        c = rng.integers(-1000, 1000, (W, 4)).astype(np.int32).view(np.uint32)
    elif result == "f16":
        c = rng.standard_normal((W, 4)).astype(np.float16).view(np.uint32)
    else:
        c = rng.standard_normal((W, 4)).astype(np.float32).view(np.uint32)

    def group(name: str, n: int) -> str:
        return "{" + ", ".join(f"%{name}{i}" if n > 1 or name == "x" else f"%{name}" for i in range(n)) + "}"

    body = f"mma.sync.aligned.{shape} {group('x', nc)}, {group('a', na)}, {group('b', nb)}, {group('c', nc)};"
    got = np.stack(lab.run(body, [a if na > 1 else a[:, 0], b if nb > 1 else b[:, 0], c], [32] * nc), 1)
    for warp in (0, 1):
        part = slice(warp * 32, warp * 32 + 32)
        product = matrix_a(a[part], kind, k) @ matrix_b(b[part], kind, k)
        for lane in range(32):
            for i in range(4):
                row, column = (lane >> 2) + 8 * (i // 2), 2 * (lane & 3) + i % 2
                if result == "f16":
                    have = half(int(got[part][lane, i // 2]) >> 16 * (i % 2) & 0xFFFF, "f16")
                    add = half(int(c[part][lane, i // 2]) >> 16 * (i % 2) & 0xFFFF, "f16")
                    assert abs(have - (product[row, column] + add)) < 0.02
                elif result == "s32":
                    assert int(got[part].view(np.int32)[lane, i]) == int(product[row, column]) + int(
                        c[part].view(np.int32)[lane, i]
                    )
                else:
                    add = float(c[part].view(np.float32)[lane, i])
                    assert abs(float(got[part].view(np.float32)[lane, i]) - (product[row, column] + add)) < 1e-4


MATRIX = """
.version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 src, .param .u64 dst) {{
 .reg .b64 %rd<6>; .reg .b32 %r<12>;
 .shared .align 16 .b8 sm[1024];
 ld.param.u64 %rd0, [src]; ld.param.u64 %rd1, [dst];
 mov.u32 %r0, %tid.x;
 mul.wide.u32 %rd2, %r0, 16; add.u64 %rd3, %rd0, %rd2; add.u64 %rd4, %rd1, %rd2;
 mov.u32 %r1, sm; shl.b32 %r2, %r0, 4; add.u32 %r3, %r1, %r2;
 {code}
 st.global.v4.b32 [%rd4], {{%r4, %r5, %r6, %r7}};
 ret;
}}
"""


@pytest.mark.parametrize("trans", ["", ".trans"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_ldmatrix(count, trans):
    registers = "{" + ", ".join(f"%r{4 + i}" for i in range(count)) + "}"
    code = f"""ld.global.v4.b32 {{%r4, %r5, %r6, %r7}}, [%rd3];
      st.shared.v4.b32 [%r3], {{%r4, %r5, %r6, %r7}}; bar.sync 0;
      mov.b32 %r4, 0; mov.b32 %r5, 0; mov.b32 %r6, 0; mov.b32 %r7, 0;
      ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {registers}, [%r3];"""
    src = np.random.default_rng(1).integers(0, 2**16, (32, 8), dtype=np.uint16)  # row t: 8 halves
    module = simulate.load(MATRIX.format(code=code))
    run = module.launch("k", (1,), (32,), [Buffer(src), Buffer(np.zeros((32, 4), np.uint32), "out", "dst")])
    assert run.ok, run.findings
    for lane in range(32):
        for i in range(4):
            want = 0
            if i < count:
                m = src[8 * i : 8 * i + 8].T if trans else src[8 * i : 8 * i + 8]
                pair = m[lane // 4, 2 * (lane % 4) : 2 * (lane % 4) + 2]
                want = int(pair[0]) | int(pair[1]) << 16
            assert int(run.outputs["dst"][lane, i]) == want


@pytest.mark.parametrize("trans", ["", ".trans"])
def test_stmatrix_is_the_inverse_of_ldmatrix(trans):
    code = f"""ld.global.v4.b32 {{%r4, %r5, %r6, %r7}}, [%rd3];
      st.shared.v4.b32 [%r3], {{%r4, %r5, %r6, %r7}}; bar.sync 0;
      ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {{%r4, %r5, %r6, %r7}}, [%r3]; bar.sync 0;
      stmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 [%r3+512], {{%r4, %r5, %r6, %r7}}; bar.sync 0;
      ld.shared.v4.b32 {{%r4, %r5, %r6, %r7}}, [%r3+512];"""
    src = np.random.default_rng(2).integers(0, 2**16, (32, 8), dtype=np.uint16)
    run = simulate.load(MATRIX.format(code=code)).launch(
        "k", (1,), (32,), [Buffer(src), Buffer(np.zeros((32, 4), np.uint32), "out", "dst")]
    )
    assert run.ok, run.findings
    assert (run.outputs["dst"].view(np.uint16) == src).all()


def test_a_lane_that_its_own_mask_leaves_out_is_found(lab):
    lab.run("shfl.sync.bfly.b32 %x0, %a, 1, 31, 0x0000ffff;", [np.arange(32, dtype=np.uint32)], [32], ok=False)
    (finding,) = lab.findings
    assert finding.code == "CB541"
    assert "lane 16" in finding.message
    assert "0x0000ffff" in finding.message


def test_halves_of_a_warp_may_each_name_themselves(lab):
    body = """setp.lt.u32 %p1, %a, 16; selp.b32 %t3, 0x0000ffff, 0xffff0000, %p1;
      shfl.sync.bfly.b32 %x0, %a, 1, 31, %t3;"""
    (got,) = lab.run(body, [np.arange(32, dtype=np.uint32)], [32], extra=".reg .pred %p<2>;")
    assert got.tolist() == [t ^ 1 for t in range(32)]


def test_shuffle_with_absent_lanes_is_found(lab):
    body = """setp.lt.u32 %p1, %a, 16; @!%p1 bra E;
      shfl.sync.bfly.b32 %x0, %a, 1, 31, 0xffffffff;
      E: mov.b32 %x0, 1;"""
    lab.run(body, [np.arange(32, dtype=np.uint32)], [32], extra=".reg .pred %p<2>;", ok=False)
    (finding,) = lab.findings
    assert finding.code == "CB521"
    assert "0xffffffff" in finding.message
    assert "0x0000ffff" in finding.message


def test_movmatrix_transposes(lab):
    x = words(9)
    (got,) = lab.run("movmatrix.sync.aligned.m8n8.trans.b16 %x0, %a;", [x], [32])
    for warp in (0, 1):
        source = x[warp * 32 : warp * 32 + 32].view(np.uint16).reshape(8, 8)
        assert (got[warp * 32 : warp * 32 + 32].view(np.uint16).reshape(8, 8) == source.T).all()
