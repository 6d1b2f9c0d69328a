"""TMA, mbarriers, wgmma, clusters.

Small kernels against NumPy under every schedule, then the same kernels with faults.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from cubridge_engine.simulate import SCHEDULES, Buffer, Schedule, TensorMap

TEXT = (Path(__file__).parent / "kernels/hopper.cu").read_text()
PRODUCTS = tuple(f"product<{a}, {b}>" for a in (0, 1) for b in (0, 1))
RNG = np.random.default_rng(0)


def bf16(x: np.ndarray) -> np.ndarray:
    """float -> bits; the low half is cut off, so the values are exact."""
    return (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def value(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


@pytest.fixture
def hopper(build):
    def make(*defines: str):
        return build(TEXT, "hopper.cu", arch="sm_90a", names=PRODUCTS, defines=defines)

    return make


def kernel(module, name: str) -> str:
    return next(k for k in module.kernels if name in k)


SPANS = {0: 16, 32: 32, 64: 64, 128: 128}
MODES = {0: 0, 128: 1, 64: 2, 32: 3}


def operand(matrix: np.ndarray, swizzle: int, mn_major: bool, name: str) -> tuple[TensorMap, bytes]:
    """The 64 x 64 matrix (MN, K) as a tensor map, and the Operand struct of the kernel, from the manual's tables."""
    stored = np.ascontiguousarray(matrix.T if mn_major else matrix)
    row = SPANS[swizzle]  # bytes of a row of a box
    per = row // 2
    boxes = 64 // per
    tensor = TensorMap(Buffer(stored, "in", name), (64, 64), (128,), (per, 64), swizzle)
    box = 64 * row
    if mn_major:
        step = [16 * row * k for k in range(4)]
        lbo, sbo = (8 * row, box) if swizzle == 0 else (box, 8 * row)
    else:
        step = [(k * 32 // row) * box + k * 32 % row for k in range(4)]
        lbo, sbo = (box if swizzle == 0 else 16), 8 * row
    return tensor, struct.pack("<3i3I4i", boxes, box, per, lbo, sbo, MODES[swizzle], *step)


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize(("ta", "tb"), [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_wgmma_of_every_swizzle_and_major(hopper, swizzle, ta, tb):
    module = hopper()
    a, b = bf16(RNG.standard_normal((64, 64))), bf16(RNG.standard_normal((64, 64)))
    map_a, op_a = operand(a, swizzle, bool(ta), "A")
    map_b, op_b = operand(b, 128 if swizzle == 32 else swizzle, bool(tb), "B")
    out = Buffer(np.zeros((64, 64), np.float32), "out", "D")
    name = next(k for k in module.kernels if f"productILi{ta}ELi{tb}E" in k)
    run = module.launch(name, (1,), (128,), [map_a, map_b, out, op_a, op_b], dynamic_shared=16384)
    assert run.ok, [(f.code, f.message) for f in run.findings]
    np.testing.assert_allclose(run.outputs["D"], value(a) @ value(b).T, rtol=1e-4, atol=1e-4)


def run_ring(module, nk: int, schedule: Schedule):
    a, b = bf16(RNG.standard_normal((64, 64 * nk))), bf16(RNG.standard_normal((64, 64 * nk)))
    maps = [TensorMap(Buffer(x, "in", n), (64 * nk, 64), (128 * nk,), (64, 64), 128) for x, n in ((a, "A"), (b, "B"))]
    out = Buffer(np.zeros((64, 64), np.float32), "out", "C")
    run = module.launch(kernel(module, "ring"), (1,), (256,), [*maps, out, nk], dynamic_shared=32768, schedule=schedule)
    want = value(a) @ value(b).T
    wrong = not run.outputs or not np.allclose(run.outputs["C"], want, rtol=1e-3, atol=1e-3)
    return run, wrong


@pytest.mark.parametrize("nk", [1, 2, 5])
def test_ring(hopper, nk):
    for schedule in SCHEDULES:
        run, wrong = run_ring(hopper(), nk, schedule)
        assert run.ok, [(f.code, f.message) for f in run.findings]
        assert not wrong


# fault -> (defines, codes of which one is found under every schedule, whether the numbers show it under some schedule)
FAULTS = {
    "no wait for an empty stage": (("NO_EMPTY_WAIT",), {"CB516", "CB517"}, True),
    "half of the bytes expected": (("BYTES=8192",), {"CB516", "CB517"}, True),
    "twice the bytes expected": (("BYTES=32768",), {"CB520"}, True),
    "wrong phase": (("PHASE=((k>>1)+1)&1",), {"CB517", "CB518", "CB516", "CB520"}, True),
    "released before wgmma.wait": (("EARLY_RELEASE",), {"CB516", "CB517"}, False),
}


@pytest.mark.parametrize("name", FAULTS)
def test_ring_faults(hopper, name):
    defines, codes, numbers = FAULTS[name]
    seen_wrong = False
    for schedule in SCHEDULES:
        run, wrong = run_ring(hopper(*defines), 6, schedule)
        found = {f.code for f in run.findings}
        assert found & codes, (schedule, [(f.code, f.message) for f in run.findings])
        assert not run.ok
        seen_wrong |= wrong
    assert seen_wrong == numbers


@pytest.mark.parametrize("fence", [True, False])
def test_operand_a_from_registers(hopper, fence):
    module = hopper(*(() if fence else ("NO_FENCE",)))
    a, b = bf16(RNG.standard_normal((64, 64))), bf16(RNG.standard_normal((64, 64)))
    for schedule in SCHEDULES:
        out = Buffer(np.zeros((64, 64), np.float32), "out", "D")
        args = [Buffer(a, "in", "a"), Buffer(b, "in", "b"), out]
        run = module.launch(
            kernel(module, "from_registers"), (1,), (128,), args, dynamic_shared=8192, schedule=schedule
        )
        assert {f.code for f in run.findings} == (set() if fence else {"CB530"}), [f.message for f in run.findings]
        np.testing.assert_allclose(run.outputs["D"], value(a) @ value(b).T + 1, rtol=1e-4, atol=1e-4)


def run_through(module, x: int, y: int, to: tuple[int, int], add: int, schedule: Schedule):
    """Load a box of 32 x 16 at (x, y), add one, store it at `to` or add it there; the right contents too."""
    source = RNG.standard_normal((40, 100)).astype(np.float32)
    target = RNG.standard_normal((40, 100)).astype(np.float32)
    buffers = Buffer(source, "in", "from"), Buffer(target, "inout", "to")
    maps = [TensorMap(b, (100, 40), (400,), (32, 16), 0) for b in buffers]
    run = module.launch(
        kernel(module, "through"), (1,), (64,), [*maps, x, y, *to, add], dynamic_shared=2048, schedule=schedule
    )
    want = target.copy()
    padded = np.zeros((40 + 32, 100 + 64), np.float32)
    padded[16:56, 32:132] = source
    for j in range(to[1], min(to[1] + 16, 40)):
        for i in range(to[0], min(to[0] + 32, 100)):
            loaded = padded[y + j - to[1] + 16, x + i - to[0] + 32]
            want[j, i] = loaded + 1 + (target[j, i] if add else 0)
    return run, want


BOXES = [(0, 0, (0, 0), 0), (80, 30, (80, 30), 0), (-4, -3, (8, 0), 0), (16, 8, (16, 8), 1), (88, 39, (88, 39), 1)]


@pytest.mark.parametrize(("x", "y", "to", "add"), BOXES)
def test_boxes_at_the_edge(hopper, x, y, to, add):
    for schedule in SCHEDULES:
        run, want = run_through(hopper(), x, y, to, add, schedule)
        assert run.ok, [(f.code, f.message) for f in run.findings]
        np.testing.assert_allclose(run.outputs["to"], want, rtol=1e-6)


@pytest.mark.parametrize(("define", "code"), [("NO_FENCE", "CB530"), ("NO_READ_WAIT", "CB517")])
def test_faults_of_bulk_stores(hopper, define, code):
    for schedule in SCHEDULES:
        run, _ = run_through(hopper(define), 0, 0, (0, 0), 0, schedule)
        assert code in {f.code for f in run.findings}


@pytest.mark.parametrize(("x", "to"), [(2, (0, 0)), (-5, (0, 0)), (0, (2, 0)), (0, (-4, 0)), (0, (0, -3))])
def test_coordinates_that_stop_the_hardware(hopper, x, to):
    """Seen on an H200: illegal instruction."""
    run, _ = run_through(hopper(), x, 0, to, 0, Schedule())
    assert "CB533" in {f.code for f in run.findings}


def test_elements_outside_are_zero_or_nan(hopper):
    module = hopper()
    for nan in (False, True):
        data = Buffer(np.ones((40, 100), np.float32), "in", "from")
        out = Buffer(np.zeros((40, 132), np.float32), "inout", "to")
        source = TensorMap(data, (100, 40), (400,), (32, 16), 0, fill_nan=nan)
        target = TensorMap(out, (132, 40), (528,), (32, 16), 0)
        run = module.launch(
            kernel(module, "through"), (1,), (64,), [source, target, 88, 0, 88, 0, 0], dynamic_shared=2048
        )
        assert run.ok
        outside = run.outputs["to"][:16, 100:120]
        assert np.isnan(outside).all() if nan else (outside == 1).all()
        assert (run.outputs["to"][:16, 88:100] == 2).all()


def test_plain_bulk_copies(hopper):
    module = hopper()
    x = RNG.standard_normal(256).astype(np.float32)
    for schedule in SCHEDULES:
        args = [Buffer(x, "in", "in"), Buffer(np.zeros_like(x), "out", "out"), 256]
        run = module.launch(kernel(module, "plain_bulk"), (1,), (64,), args, dynamic_shared=1024, schedule=schedule)
        assert run.ok, [(f.code, f.message) for f in run.findings]
        assert (run.outputs["out"] == 2 * x).all()
    short = [Buffer(x[:200].copy(), "in", "in"), Buffer(np.zeros_like(x), "out", "out"), 256]
    run = module.launch(kernel(module, "plain_bulk"), (1,), (64,), short, dynamic_shared=1024)
    assert "CB513" in {f.code for f in run.findings}


@pytest.mark.parametrize("fault", [False, True])
def test_clusters_multicast_and_remote_reads(hopper, fault):
    module = hopper(*(("NO_CLUSTER_WAIT",) if fault else ()))
    x = RNG.integers(0, 50, (16, 32)).astype(np.float32)
    for schedule in SCHEDULES:
        data = Buffer(x, "in", "x")
        out = Buffer(np.zeros((4, 128), np.float32), "out", "out")
        box = TensorMap(data, (32, 16), (128,), (32, 4), 0)
        run = module.launch(kernel(module, "pair"), (4,), (128,), [box, out], dynamic_shared=2048, schedule=schedule)
        if fault:
            assert {"CB516", "CB518"} & {f.code for f in run.findings}
            continue
        assert run.ok, [(f.code, f.message) for f in run.findings]
        for block in range(4):
            first = block // 2 * 8
            rows = x[first : first + 8].reshape(2, 128)
            want = rows[0] + 1000 * rows[1] + (block % 2 ^ 1)
            assert (run.outputs["out"][block] == want).all()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"box": (300, 1)}, "256"),
        ({"strides": (100,)}, "multiples of 16"),
        ({"box": (3, 16)}, "inner box"),
        ({"swizzle": 48}, "swizzle"),
        ({"swizzle": 32, "box": (32, 4)}, "no longer"),
        ({"dims": (1,) * 6}, "dimensions"),
    ],
)
def test_maps_that_the_driver_refuses(change, text):
    base = {"dims": (100, 40), "strides": (400,), "box": (32, 16), "swizzle": 0}
    with pytest.raises(ValueError, match=text):
        TensorMap(Buffer(np.zeros((40, 100), np.float32)), **{**base, **change})


@pytest.mark.parametrize(
    ("define", "text"), [("", ""), ("FAULT_TOUCH", "before wgmma.wait_group"), ("FAULT_NOFENCE", "no wgmma.fence")]
)
def test_registers_in_flight(hopper, define, text):
    module = hopper(*((define,) if define else ()))
    out = Buffer(np.zeros((64, 64), np.float32), "out", "D")
    run = module.launch(kernel(module, "in_flight"), (1,), (128,), [out], dynamic_shared=16384)
    assert {f.code for f in run.findings} == ({"CB529"} if define else set()), [f.message for f in run.findings]
    if define:
        assert any(text in f.message for f in run.findings)
        assert all(f.span is not None for f in run.findings)
    else:
        assert (run.outputs["D"] == 2 * (16 + np.arange(64)[:, None] * 0 + tid_of_elements())).all()


@pytest.mark.parametrize("warp", [0, 2])
def test_a_product_waits_for_the_last_warp_of_its_warpgroup(hopper, warp):
    module = hopper(f"LATE_WARP={warp}")
    for schedule in SCHEDULES:
        out = Buffer(np.zeros((64, 64), np.float32), "out", "D")
        name = kernel(module, "one_warp_late")
        run = module.launch(name, (1,), (256,), [out], dynamic_shared=16384, schedule=schedule)
        assert run.ok, [(f.code, f.message) for f in run.findings]
        assert (run.outputs["D"] == 16).all()


def tid_of_elements() -> np.ndarray:
    """The thread that holds each element of a 64 x 64 accumulator."""
    tid = np.zeros((64, 64), int)
    for t in range(128):
        for i in range(32):
            tid[t // 32 * 16 + t % 32 // 4 + i // 2 % 2 * 8, i // 4 * 8 + t % 4 * 2 + i % 2] = t
    return tid


def test_bulk_copies_of_two_ctas_that_share_a_buffer(hopper):
    """Both double the same floats in place: each reads what the other writes, and both write it."""
    module = hopper()
    both = Buffer(np.ones(256, np.float32), "inout", "both")
    for ctas, codes in ((1, set()), (2, {"CB524", "CB540"})):
        run = module.launch(kernel(module, "plain_bulk"), (ctas,), (64,), [both, both, 256], dynamic_shared=1024)
        assert {f.code for f in run.findings} == codes, [f.message for f in run.findings]
