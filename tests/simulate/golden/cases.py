"""What is compared with a real GPU: single instructions on many values, fragments, and the small Hopper kernels.

Inputs come from fixed seeds, so only what the GPU answered is stored. Matrix products use small integers: exact in any
order of summation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cubridge_engine.simulate import Buffer, TensorMap
from tests.simulate import test_cluster as between
from tests.simulate import test_exact_ops as exactly
from tests.simulate import test_float_ops as floats
from tests.simulate import test_hopper as hopper
from tests.simulate import test_integer_ops as integers
from tests.simulate import test_warp_ops as warps
from tests.simulate.conftest import UNSIGNED, one_instruction

KERNELS = Path(__file__).parents[1] / "kernels"
HOPPER = (KERNELS / "hopper.cu").read_text()
SOURCES = {"hopper": HOPPER, "cluster": (KERNELS / "cluster.cu").read_text()}


@dataclass
class Case:
    """One launch. `args` are Buffers, TensorMaps, numbers and bytes; outputs are the out and inout buffers.

    `ptx` is the module, or '' for a kernel of `file` (a key of SOURCES). `tolerance` is relative (0: bit for bit).
    """

    name: str
    kernel: str
    ptx: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    args: list[Any]
    shared: int = 0
    tolerance: float = 0.0
    file: str = "hopper"

    @property
    def floats(self) -> bool:
        """True when 32-bit outputs are float32."""
        return "f32" in self.name and not any(t in self.name for t in ("s32", "setp", "16x2"))


def single(
    name: str, body: str, inputs: list[np.ndarray], outputs: list[int], extra: str = "", tolerance: float = 0.0
) -> Case:
    """A kernel around one instruction."""
    spec = [(8 * x.itemsize, 1 if x.ndim == 1 else x.shape[1]) for x in inputs]
    threads = len(inputs[0])
    block = min(threads, 128)
    ins = [Buffer(x, "in", f"in{i}") for i, x in enumerate(inputs)]
    outs = [Buffer(np.zeros(threads, UNSIGNED[bits]), "out", f"out{j}") for j, bits in enumerate(outputs)]
    text = one_instruction(body, spec, outputs, extra)
    return Case(name, "k", text, (threads // block,), (block,), [*ins, *outs], tolerance=tolerance)


def arithmetic() -> Iterator[Case]:
    """Integer instructions, roundings, halves, conversions, comparisons."""
    for i, (body, operands, result, _) in enumerate(integers.CASES):
        yield single(
            f"int {i} {body.split('%')[0].strip()}",
            body,
            [integers.values(b, 7 + j) for j, b in enumerate(operands)],
            [result],
        )
    a, b, c = (floats.floats32(s).view(np.uint32) for s in (1, 2, 3))
    for mode in ("rn", "rz", "rm", "rp"):
        yield single(f"add.{mode}.f32", f"add.{mode}.f32 %x0, %a, %b;", [a, b], [32])
        yield single(f"mul.{mode}.f32", f"mul.{mode}.f32 %x0, %a, %b;", [a, b], [32])
        yield single(f"fma.{mode}.f32", f"fma.{mode}.f32 %x0, %a, %b, %c;", [a, b, c], [32])
    for body in floats.ELEMENTARY:
        yield single(body, body, [a, b] if "%b" in body else [a], [32])
    for kind in ("f16", "bf16"):
        h = [floats.halves(s, kind) for s in (1, 2, 3)]
        for op in ("add", "sub", "mul", "max", "min"):
            yield single(f"{op}.{kind}", f"{op}.{kind} %x0, %a, %b;", h[:2], [16])
        yield single(f"fma.rn.{kind}", f"fma.rn.{kind} %x0, %a, %b, %c;", h, [16])
        yield single(f"cvt.rn.{kind}.f32", f"cvt.rn.{kind}.f32 %x0, %a;", [a], [16])
        yield single(f"cvt.rz.{kind}.f32", f"cvt.rz.{kind}.f32 %x0, %a;", [a], [16])
        yield single(f"cvt.rn.{kind}x2.f32", f"cvt.rn.{kind}x2.f32 %x0, %a, %b;", [a, b], [32])
    for kind in ("e4m3", "e5m2"):
        body = f"cvt.rn.satfinite.{kind}x2.f32 %x0, %a, %b; cvt.rn.f16x2.{kind}x2 %x1, %x0;"
        yield single(f"cvt {kind}", body, [a, b], [16, 32])
    yield single("cvt.rna.tf32.f32", "cvt.rna.tf32.f32 %x0, %a;", [a], [32])
    for mode in ("rni", "rzi", "rmi", "rpi"):
        yield single(f"cvt.{mode}.s32.f32", f"cvt.{mode}.s32.f32 %x0, %a;", [a], [32])
        yield single(f"cvt.{mode}.u64.f32", f"cvt.{mode}.u64.f32 %x0, %a;", [a], [64])
    for op in floats.COMPARE:
        body = f"setp.{op}.f32 %p1, %a, %b; selp.b32 %x0, 1, 0, %p1;"
        yield single(f"setp.{op}.f32", body, [a, b], [32], extra=".reg .pred %p<2>;")


def approximations() -> Iterator[Case]:
    """Functions that the hardware approximates, and their special values."""
    special = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 1e-40, 2.0**-126, 3e38, 128, -150], np.float32)
    for op, (_, (low, high)) in floats.APPROXIMATE.items():
        x = np.linspace(low, high, floats.THREADS - 16).astype(np.float32)
        # Far from 0, sin and cos of the hardware have few right bits: PTX promises nothing there.
        edges = special[np.abs(special) < 2] if op[:3] in ("sin", "cos") else special
        x = np.concatenate([x, np.resize(edges, 16)])
        yield single(
            op,
            f"{op} %x0, %a;",
            [x.view(np.uint32)],
            [32],
            tolerance={"tan": 2e-3, "sin": 1e-3, "cos": 1e-3}.get(op[:3], 1e-5),
        )


def fragments() -> Iterator[Case]:
    """mma, shuffles, votes, matrices in shared memory."""
    rng = np.random.default_rng(11)
    for shape, kind, _, na, nb, result in warps.MMA:
        a, b = (small_integers(rng, kind, n) for n in (na, nb))
        nc = 2 if result == "f16" else 4
        c = rng.integers(-8, 9, (warps.W, 4))
        c = (
            c.astype(np.int32).view(np.uint32)
            if result == "s32"
            else c.astype(np.float16 if result == "f16" else np.float32).view(np.uint32)
        )
        lists = [
            "{" + ", ".join(f"%{p}{i}" if n > 1 or p == "x" else f"%{p}" for i in range(n)) + "}"
            for p, n in (("x", nc), ("a", na), ("b", nb), ("c", nc))
        ]
        inputs = [x if x.shape[1] > 1 else x[:, 0] for x in (a, b, c)]
        yield single(f"mma {shape}", f"mma.sync.aligned.{shape} {', '.join(lists)};", inputs, [32] * nc)
    x, lane = warps.words(1), warps.words(2) % np.uint32(32)
    for mode, c in (
        ("bfly", 31),
        ("up", 0),
        ("down", 31),
        ("idx", 31),
        ("idx", 0x181F),
        ("up", 0x1800),
        ("down", 0x181F),
    ):
        body = f"shfl.sync.{mode}.b32 %x0|%p1, %a, %b, {c}, 0xffffffff; selp.b32 %x1, 1, 0, %p1;"
        yield single(f"shfl {mode} {c}", body, [x, lane], [32, 32], extra=".reg .pred %p<2>;")
    for op in ("add.u32", "min.s32", "max.u32", "and.b32", "or.b32", "xor.b32"):
        yield single(f"redux {op}", f"redux.sync.{op} %x0, %a, 0xffffffff;", [x], [32])
    body = "match.any.sync.b32 %x0, %a, 0xffffffff; elect.sync %x1|%p1, 0xffffffff; selp.b32 %x2, 1, 0, %p1;"
    yield single("match and elect", body, [x % np.uint32(4)], [32] * 3, extra=".reg .pred %p<2>;")
    yield single("movmatrix", "movmatrix.sync.aligned.m8n8.trans.b16 %x0, %a;", [x], [32])
    rows = rng.integers(0, 2**16, (32, 8), dtype=np.uint16)
    for trans in ("", ".trans"):
        for count in (1, 2, 4):
            registers = "{" + ", ".join(f"%r{4 + i}" for i in range(count)) + "}"
            code = f"""ld.global.v4.b32 {{%r4, %r5, %r6, %r7}}, [%rd3]; st.shared.v4.b32 [%r3], {{%r4, %r5, %r6, %r7}};
              bar.sync 0; mov.b32 %r4, 0; mov.b32 %r5, 0; mov.b32 %r6, 0; mov.b32 %r7, 0;
              ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {registers}, [%r3];"""
            out = Buffer(np.zeros((32, 4), np.uint32), "out", "dst")
            yield Case(
                f"ldmatrix x{count}{trans}", "k", warps.MATRIX.format(code=code), (1,), (32,), [Buffer(rows), out]
            )


def small_integers(rng: np.random.Generator, kind: str, count: int) -> np.ndarray:
    """Fragment registers (threads, count) of integers from -3 to 3 (from 0 for u8)."""
    per = {"tf32": 1, "s8": 4, "u8": 4}.get(kind, 2)
    x = rng.integers(0 if kind == "u8" else -3, 4, (warps.W, count * per))
    if kind in ("s8", "u8"):
        return x.astype(np.int8).view(np.uint32)
    if kind == "tf32":
        return x.astype(np.float32).view(np.uint32)
    if kind == "f16":
        return x.astype(np.float16).view(np.uint32)
    return np.ascontiguousarray((x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)).view(np.uint32)


def tma_and_wgmma() -> Iterator[Case]:
    """Every swizzle and major, A from registers, boxes at the edges, reductions, the ring, clusters."""
    rng = np.random.default_rng(12)

    def matrix(*shape: int) -> np.ndarray:
        return hopper.bf16(rng.integers(-3, 4, shape).astype(np.float32))

    for swizzle in (0, 32, 64, 128):
        for ta, tb in ((0, 0), (1, 0), (0, 1), (1, 1)):
            map_a, op_a = hopper.operand(matrix(64, 64), swizzle, bool(ta), "A")
            map_b, op_b = hopper.operand(matrix(64, 64), swizzle, bool(tb), "B")
            out = Buffer(np.zeros((64, 64), np.float32), "out", "D")
            yield Case(
                f"wgmma {swizzle} {ta}{tb}",
                f"productILi{ta}ELi{tb}E",
                "",
                (1,),
                (128,),
                [map_a, map_b, out, op_a, op_b],
                16384,
            )
    args = [
        Buffer(matrix(64, 64), "in", "a"),
        Buffer(matrix(64, 64), "in", "b"),
        Buffer(np.zeros((64, 64), np.float32), "out", "D"),
    ]
    yield Case("wgmma rs", "from_registers", "", (1,), (128,), args, 8192)
    for nk in (1, 5):
        maps = [
            TensorMap(Buffer(matrix(64, 64 * nk), "in", n), (64 * nk, 64), (128 * nk,), (64, 64), 128) for n in "AB"
        ]
        yield Case(
            f"ring {nk}",
            "ring",
            "",
            (1,),
            (256,),
            [*maps, Buffer(np.zeros((64, 64), np.float32), "out", "C"), nk],
            32768,
        )
    for x, y, to, add in hopper.BOXES:
        source, target = (rng.integers(-50, 50, (40, 100)).astype(np.float32) for _ in range(2))
        both = ((source, "in", "from"), (target, "inout", "to"))
        maps = [TensorMap(Buffer(d, r, n), (100, 40), (400,), (32, 16), 0) for d, r, n in both]
        yield Case(f"box {x} {y} {add}", "through", "", (1,), (64,), [*maps, x, y, *to, add], 2048)
    inside = TensorMap(
        Buffer(np.ones((40, 100), np.float32), "in", "from"), (100, 40), (400,), (32, 16), 0, fill_nan=True
    )
    wide = TensorMap(Buffer(np.zeros((40, 132), np.float32), "inout", "to"), (132, 40), (528,), (32, 16), 0)
    yield Case("box filled with nan", "through", "", (1,), (64,), [inside, wide, 88, 0, 88, 0, 0], 2048)
    data = rng.integers(0, 50, 256).astype(np.float32)
    yield Case(
        "bulk",
        "plain_bulk",
        "",
        (1,),
        (64,),
        [Buffer(data, "in", "in"), Buffer(np.zeros_like(data), "out", "out"), 256],
        1024,
    )
    box = TensorMap(Buffer(rng.integers(0, 50, (16, 32)).astype(np.float32), "in", "x"), (32, 16), (128,), (32, 4), 0)
    yield Case("cluster", "pair", "", (4,), (128,), [box, Buffer(np.zeros((4, 128), np.float32), "out", "out")], 2048)


def exact() -> Iterator[Case]:
    """Directed roundings, masks of packed comparisons, 128-bit registers, vector atomics, sparse products."""
    a, b, c = (np.where(np.isfinite(x := exactly.doubles(s)), x, 1.5) for s in (1, 2, 3))
    for mode in ("rz", "rm", "rp"):
        for op in exactly.EXACT:
            given = [a, np.where(b == 0, 1.0, b), c][: 3 if op == "fma" else 2]
            names = ", ".join(f"%{n}" for n in "abc"[: len(given)])
            yield single(f"{op}.{mode}.f64", f"{op}.{mode}.f64 %x0, {names};", [x.view(np.uint64) for x in given], [64])
        yield single(f"sqrt.{mode}.f64", f"sqrt.{mode}.f64 %x0, %a;", [np.abs(a).view(np.uint64)], [64])
    x = floats.floats32(4)
    x = np.where(np.isnan(x), np.float32(1), x).view(np.uint32)
    for mode in ("rm", "rp"):
        yield single(f"cvt.{mode}.f16.f32", f"cvt.{mode}.f16.f32 %x0, %a;", [x], [16])
        for kind in ("f16", "bf16"):
            yield single(f"cvt.{mode}.{kind}.u64", f"cvt.{mode}.{kind}.u64 %x0, %a;", [integers.values(64, 3)], [16])
    words = [warps.words(s) for s in (7, 8)]
    for kind in ("f16x2", "bf16x2"):
        yield single(f"set.le.u32.{kind}", f"set.le.u32.{kind} %x0, %a, %b;", words, [32])
    halves = [integers.values(64, s)[:1] for s in (1, 2)]
    slot = ".shared .align 16 .b8 slot[16];"
    yield single("registers of 128 bits", integers.WIDE, halves, [64, 64], extra=slot)
    yield single("atomics of 128 bits", integers.WIDE_ATOMICS, halves[:1], [64] * 4, extra=slot)
    for name in exactly.VECTORS:
        text, start, addends = exactly.atomic_operands(name)
        text = text.replace("st.global.v4.b32 [%rd2], {%t5, %t6, %t7, %t8};", "")  # the order of threads is open
        buffers = [Buffer(start, "inout", "sum"), Buffer(addends), Buffer(np.zeros((8, 4), np.uint32))]
        yield Case(f"vector atomic {name}", "k", text, (1,), (8,), buffers)
    rng = np.random.default_rng(31)
    for kind in ("f16", "bf16"):
        for shape, k, counts, selectors in exactly.SPARSE:
            for selector in range(selectors):
                *_, metadata = exactly.sparse_operands(kind, k, counts, selector)
                a, b = (small_integers(rng, kind, n) for n in counts)
                c = rng.integers(-8, 9, (warps.W, 4)).astype(np.float32).view(np.uint32)
                body = exactly.sparse_body(kind, shape, counts, selector)
                yield single(f"mma.sp {shape} {kind} {selector}", body, [a, b, c, metadata], [32] * 4)


def clusters() -> Iterator[Case]:
    """Asynchronous writes into other CTAs, bulk reductions, im2col copies, many mbarriers."""

    def case(name: str, kernel: str, grid: int, block: int, args: list[Any], shared: int = 0) -> Case:
        return Case(name, kernel, "", (grid,), (block,), args, shared, file="cluster")

    data = between.words(3, 2 * 2 * 256)
    for op, name in enumerate(between.TO_CTA):
        args = [Buffer(data, "in", "in"), Buffer(np.zeros((4, 416), np.uint32), "out", "out"), op]
        yield case(f"between CTAs {name}", "send", 4, 128, args)
    for op, name in enumerate(between.TO_GLOBAL):
        old, new = between.reduction_operands(name)
        yield case(f"bulk {name}", "reduce", 1, 128, [Buffer(new, "in", "in"), Buffer(old, "inout", "out"), op])
    args = [Buffer(between.words(9, 8 * 32), "in", "in"), Buffer(np.zeros((8, 128), np.uint32), "out", "out")]
    yield case("bulk multicast", "multicast", 8, 128, args)
    args = [Buffer(between.words(8, 800), "in", "in"), Buffer(np.zeros(800, np.uint32), "out", "out"), 200]
    yield case("many mbarriers", "many", 1, 64, args, 24 * 200)
    for number, column in enumerate(between.COLUMN_CASES):
        args, shared = between.column_launch(column, between.image(column[0]))
        yield case(f"im2col {number}", f"columnsILi{len(column[0])}E", 1, 64, args, shared)


def cases() -> Iterator[Case]:
    """All of them; names are unique."""
    yield from arithmetic()
    yield from approximations()
    yield from fragments()
    yield from tma_and_wgmma()
    yield from exact()
    yield from clusters()
