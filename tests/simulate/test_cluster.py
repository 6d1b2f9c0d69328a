"""Writes into other CTAs' shared memory, bulk reductions, im2col copies, many mbarriers.

Each against NumPy under every schedule, then with a fault.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest

from cubridge_engine import simulate
from cubridge_engine.simulate import SCHEDULES, Buffer, Im2colMap, Schedule, TensorMap
from tests.simulate.conftest import one_instruction

TEXT = (Path(__file__).parent / "kernels/cluster.cu").read_text()
COLUMNS = tuple(f"columns<{rank}>" for rank in (3, 4, 5))


@pytest.fixture
def cluster(build):
    def make(*defines: str):
        return build(TEXT, "cluster.cu", arch="sm_90a", names=COLUMNS, defines=defines)

    return make


def kernel(module, name: str) -> str:
    return next(k for k in module.kernels if name in k)


def statement(text: str, line: int) -> str:
    """A line with those before it: the compiler places inline assembly anywhere in its statement."""
    return "\n".join(text.split("\n")[max(line - 2, 0) : line + 1])


def words(seed: int, count: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**32, count, dtype=np.uint64).astype(np.uint32)


def combine(op: str, kind: str, old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Bits of old (op) new, element by element in Python or float64."""
    if kind in ("f16", "bf16", "f32", "f64"):
        a, b = (floats(x, kind) for x in (old, new))
        result = {"add": a + b, "min": np.minimum(a, b), "max": np.maximum(a, b)}[op]
        return bits(result, kind)
    size = int(kind[1:]) // 8
    a, b = (x.view(f"{'i' if kind[0] == 's' else 'u'}{size}").tolist() for x in (old, new))
    functions = {
        "add": lambda x, y: x + y,
        "min": min,
        "max": max,
        "and": lambda x, y: x & y,
        "or": lambda x, y: x | y,
        "xor": lambda x, y: x ^ y,
        "inc": lambda x, y: 0 if x >= y else x + 1,
        "dec": lambda x, y: y if x == 0 or x > y else x - 1,
    }
    mask = (1 << 8 * size) - 1
    result = [functions[op](x, y) & mask for x, y in zip(a, b, strict=True)]
    return np.array(result, f"u{size}").view(np.uint32)


def floats(x: np.ndarray, kind: str) -> np.ndarray:
    if kind == "bf16":
        return (x.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return x.view({"f16": "f2", "f32": "f4", "f64": "f8"}[kind]).astype(np.float64)


def bits(x: np.ndarray, kind: str) -> np.ndarray:
    """Values that are exact in the type."""
    if kind == "bf16":
        return np.ascontiguousarray((x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)).view(np.uint32)
    return x.astype({"f16": "f2", "f32": "f4", "f64": "f8"}[kind]).view(np.uint32)


TO_CTA = ["add.u32", "min.s32", "max.u32", "inc.u32", "dec.u32", "and.b32", "or.b32", "xor.b32", "add.u64"]


def run_send(module, op: int, schedule: Schedule):
    data = words(3, 2 * 2 * 256)
    args = [Buffer(data, "in", "in"), Buffer(np.zeros((4, 416), np.uint32), "out", "out"), op]
    return module.launch(kernel(module, "send"), (4,), (128,), args, schedule=schedule), data.reshape(4, 256)


def sent(data: np.ndarray, name: str) -> np.ndarray:
    """What every CTA of `send` has in its memory afterwards."""
    want = np.zeros((4, 416), np.uint32)
    for block in range(4):
        source, rank = data[block ^ 1], block % 2 ^ 1
        for t in range(32):
            want[block, 4 * t : 4 * t + 4] = (4 * t + 7, 4 * t + 8, 4 * t + 9, t + 1000 * rank)
            want[block, 128 + t] = 1000 + t + (t + 1) + (t + 33)
        want[block, 160:288] = source[:128]
        old = np.arange(1032, 1160).astype(np.uint32)
        want[block, 288:] = combine(*name.split("."), old, source[128:])
    return want


@pytest.mark.parametrize("op", range(len(TO_CTA)))
def test_a_pair_of_ctas_writes_into_each_other(cluster, op):
    for schedule in SCHEDULES if op == 0 else SCHEDULES[:1]:
        run, data = run_send(cluster(), op, schedule)
        assert run.ok, [(f.code, f.message) for f in run.findings]
        assert not run.findings
        assert (run.outputs["out"] == sent(data, TO_CTA[op])).all()


# define -> (codes of which one is found under each schedule)
SEND_FAULTS = {
    "NO_WAIT": {"CB517", "CB518"},
    "EARLY_REUSE": {"CB517"},
    "NO_FENCE": {"CB530"},
    "BYTES=(512+512+512)": {"CB520"},
    "BYTES=(4*512)": {"CB520"},
}


@pytest.mark.parametrize("define", SEND_FAULTS)
def test_faults_between_ctas(cluster, define):
    for schedule in SCHEDULES:
        if define == "EARLY_REUSE" and schedule.async_ == "early":
            continue  # the copy has landed by then
        run, _ = run_send(cluster(define), 0, schedule)
        found = {f.code for f in run.findings}
        assert found & SEND_FAULTS[define], (schedule, [(f.code, f.message) for f in run.findings])
        assert not run.ok


@pytest.mark.parametrize("fence", [True, False])
def test_an_mbarrier_of_another_cta_must_be_published(cluster, fence):
    run, _ = run_send(cluster("RELAXED", *(() if fence else ("NO_INIT_FENCE",))), 0, Schedule())
    found = [f for f in run.findings if f.code == "CB543"]
    assert bool(found) == (not fence)
    if found:
        assert "async" in statement(TEXT, found[0].span.line)
        assert "mbarrier.init" in statement(TEXT, found[0].related[0].span.line)
    # A releasing arrival at the cluster barrier publishes it too.
    run, _ = run_send(cluster("NO_INIT_FENCE"), 0, Schedule())
    assert "CB543" not in {f.code for f in run.findings}


TO_GLOBAL = [
    "add.f16", "min.f16", "add.bf16", "max.bf16", "add.f32", "add.f64", "min.s32", "max.u64", "and.b32", "or.b64",
    "xor.b32", "inc.u32", "dec.u32", "add.u64", "min.s64",
]  # fmt: skip


def reduction_operands(name: str) -> tuple[np.ndarray, np.ndarray]:
    """512 bytes twice: floats whose sums are exact, or any bits (small ones for inc and dec)."""
    op, kind = name.split(".")
    if kind in ("f16", "bf16", "f32", "f64"):
        count = 512 // {"f16": 2, "bf16": 2, "f32": 4, "f64": 8}[kind]
        rng = np.random.default_rng(5)
        old, new = (bits(rng.integers(-60, 61, count).astype(np.float64), kind) for _ in range(2))
        return old, new
    old, new = words(1, 128), words(2, 128)
    return (old % 5, new % 5) if op in ("inc", "dec") else (old, new)


@pytest.mark.parametrize("op", range(len(TO_GLOBAL)))
def test_bulk_reductions_to_global_memory(cluster, op):
    old, new = reduction_operands(TO_GLOBAL[op])
    module = cluster()
    for schedule in SCHEDULES[:2]:
        args = [Buffer(new, "in", "in"), Buffer(old, "inout", "out"), op]
        run = module.launch(kernel(module, "reduce"), (1,), (128,), args, schedule=schedule)
        assert not run.findings, [(f.code, f.message) for f in run.findings]
        assert (run.outputs["out"] == combine(*TO_GLOBAL[op].split("."), old, new)).all()


def test_a_bulk_copy_to_all_ctas_of_a_cluster(cluster):
    module = cluster()
    data = words(9, 8 * 32)
    for schedule in SCHEDULES:
        args = [Buffer(data, "in", "in"), Buffer(np.zeros((8, 128), np.uint32), "out", "out")]
        run = module.launch(kernel(module, "multicast"), (8,), (128,), args, schedule=schedule)
        assert not run.findings, [(f.code, f.message) for f in run.findings]
        for block in range(8):
            want = data[block // 4 * 128 : block // 4 * 128 + 128].copy()
            if block % 4 == 1:
                want.reshape(4, 32)[[0, 1, 3]] = 0
            assert (run.outputs["out"][block] == want).all()


# -- im2col
# dims (C, W, H, D, N), lower, upper, channels, pixels, swizzle, start (C, W, H, D, N), offsets (W, H, D)
COLUMN_CASES = [
    ((16, 9, 3), (-1,), (-1,), 8, 12, 0, (0, -1, 0), (0,)),
    ((16, 9, 3), (-1,), (-1,), 8, 12, 0, (8, 3, 1), (2,)),
    ((16, 7, 5, 3), (-1, -1), (-1, -1), 16, 40, 0, (0, -1, -1, 0), (0, 0)),
    ((16, 7, 5, 3), (-1, -1), (-1, -1), 8, 40, 32, (8, 2, 3, 1), (2, 1)),
    ((32, 7, 5, 3), (0, 0), (-2, -2), 32, 32, 128, (0, 1, 1, 2), (2, 2)),
    ((8, 7, 5, 3), (-2, 0), (1, -1), 8, 64, 0, (0, 5, 0, 0), (1, 1)),
    ((8, 5, 4, 3, 2), (-1, 0, -1), (0, -1, -1), 8, 48, 0, (0, 2, 1, -1, 0), (1, 0, 2)),
    ((12, 5, 4, 3, 2), (-1, 0, -1), (0, -1, -1), 8, 24, 0, (8, 0, 0, 0, 1), (0, 1, 1)),
]


def column(data: np.ndarray, case: tuple) -> np.ndarray:
    """(pixels, channels) of a column, pixel by pixel; data is (N, ..., C)."""
    dims, lower, upper, channels, pixels, _, start, offsets = case
    spatial = len(dims) - 2
    box = [range(low, dims[1 + i] + high) for i, (low, high) in enumerate(zip(lower, upper, strict=True))]
    places = [
        (n, *reversed(p)) for n in range(dims[-1] + 60) for p in (q[::-1] for q in product(*reversed(box)))
    ]  # W fastest, as (N, D, H, W)
    first = places.index((start[-1], *reversed(start[1:-1])))
    result = np.zeros((pixels, channels), np.float32)
    for row, (n, *place) in enumerate(places[first : first + pixels]):
        moved = [p + o for p, o in zip(place, reversed(offsets), strict=True)]
        inside = n < dims[-1] and all(0 <= m < dims[spatial - i] for i, m in enumerate(moved))
        for c in range(channels):
            if inside and start[0] + c < dims[0]:
                result[row, c] = data[(n, *moved, start[0] + c)]
    return result


def column_launch(case: tuple, data: np.ndarray):
    """Arguments of ``columns`` and bytes of dynamic shared memory."""
    dims, lower, upper, channels, pixels, swizzle, start, offsets = case
    strides = tuple(int(np.prod(dims[: i + 1])) * 4 for i in range(len(dims) - 1))
    tensor = Im2colMap(Buffer(data, "in", "x"), dims, strides, lower, upper, channels, pixels, swizzle)
    count = channels * pixels
    c, *place, n = start
    numbers = [count, c, *place, *[0] * (3 - len(place)), n, *offsets, *[0] * (3 - len(offsets))]
    return [tensor, Buffer(np.zeros(count, np.float32), "out", "out"), *map(np.int32, numbers)], 4 * count


def swizzled(x: np.ndarray, span: int) -> np.ndarray:
    """Floats as they lie in shared memory."""
    at = np.arange(x.size) * 4
    mask = {0: 0, 32: 1, 64: 3, 128: 7}[span]
    result = np.zeros(x.size, np.float32)
    result[(at ^ ((at >> 7 & mask) << 4)) // 4] = x.ravel()
    return result


def image(dims: tuple[int, ...], seed: int = 4) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, 1000, dims[::-1]).astype(np.float32)


@pytest.mark.parametrize("number", range(len(COLUMN_CASES)))
def test_columns_of_a_convolution(cluster, number):
    case = COLUMN_CASES[number]
    module, data = cluster(), image(case[0])
    args, shared = column_launch(case, data)
    name = kernel(module, f"columnsILi{len(case[0])}E")
    for schedule in SCHEDULES[:2]:
        run = module.launch(name, (1,), (64,), args, dynamic_shared=shared, schedule=schedule)
        assert not run.findings, [(f.code, f.message) for f in run.findings]
        assert (run.outputs["out"] == swizzled(column(data, case), case[5])).all()


def test_stores_of_columns_are_refused():
    """An H200 stops at them with coordinates that the manual allows: what it refuses is not known."""
    text = one_instruction(
        "cp.async.bulk.tensor.3d.global.shared::cta.im2col_no_offs.bulk_group [%a, {%b, %b, %b}], [%b];",
        [(64, 1), (32, 1)],
        [],
    )
    module = simulate.load(text)
    (finding,) = module.kernel("k").unsupported
    assert finding.code == "CB510"
    assert "im2col" in finding.message


def test_a_map_of_the_wrong_mode(cluster):
    module, case = cluster(), COLUMN_CASES[2]
    args, shared = column_launch(case, image(case[0]))
    tiles = TensorMap(args[0].buffer, case[0], args[0].strides, (16, 40, 1, 1))
    run = module.launch(kernel(module, "columnsILi4E"), (1,), (64,), [tiles, *args[1:]], dynamic_shared=shared)
    assert any(f.code == "CB533" and "another mode" in f.message for f in run.findings)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"lower": (-1,)}, "corner"),
        ({"lower": (-200, 0)}, "corners from"),
        ({"upper": (-9, 0)}, "not empty"),
        ({"pixels": 1025}, "pixels"),
        ({"channels": 3}, "inner box"),
    ],
)
def test_column_maps_that_the_driver_refuses(change, text):
    base = {"lower": (-1, -1), "upper": (-1, -1), "channels": 16, "pixels": 40}
    buffer = Buffer(np.zeros((3, 5, 7, 16), np.float32))
    with pytest.raises(ValueError, match=text):
        Im2colMap(buffer, (16, 7, 5, 3), (64, 448, 2240), **{**base, **change})


# -- many mbarriers
@pytest.mark.parametrize("count", [10, 65, 200])
def test_many_mbarriers_are_told_apart(cluster, count):
    data = words(8, 4 * count)
    for schedule in SCHEDULES[:2]:
        args = [Buffer(data, "in", "in"), Buffer(np.zeros_like(data), "out", "out"), count]
        module = cluster()
        run = module.launch(kernel(module, "many"), (2,), (64,), args, dynamic_shared=24 * count, schedule=schedule)
        assert {f.code for f in run.findings} <= {"CB524"}, [(f.code, f.message) for f in run.findings]
        assert (run.outputs["out"] == data).all()
    module = cluster("WHICH=(i+n-1)%n")
    run = module.launch(kernel(module, "many"), (1,), (64,), args, dynamic_shared=24 * count)
    assert "CB517" in {f.code for f in run.findings}


@pytest.mark.parametrize("defines", [(), ("NO_INIT_FENCE",), ("NO_INIT_FENCE", "LATE_INIT_FENCE")])
def test_the_copy_engine_must_see_an_mbarrier(build, defines):
    from tests.simulate.test_hopper import PRODUCTS
    from tests.simulate.test_hopper import TEXT as HOPPER

    module = build(HOPPER, "hopper.cu", arch="sm_90a", names=PRODUCTS, defines=defines)
    x = np.arange(256, dtype=np.float32)
    args = [Buffer(x, "in", "in"), Buffer(np.zeros_like(x), "out", "out"), 256]
    run = module.launch(kernel(module, "plain_bulk"), (1,), (64,), args, dynamic_shared=1024)
    assert [f.code for f in run.findings] == (["CB545"] if defines == ("NO_INIT_FENCE",) else [])
    for finding in run.findings:
        assert "mbarrier.init" in statement(HOPPER, finding.related[0].span.line)
        assert "cp.async.bulk" in statement(HOPPER, finding.span.line)
