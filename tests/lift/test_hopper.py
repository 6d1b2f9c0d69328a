"""Hopper: TMA copies, mbarriers, wgmma, a producer and consumers; what is not that is not claimed."""

from __future__ import annotations

import numpy as np
import pytest

from cubridge_engine.ir.interp import execute
from cubridge_engine.ir.nodes import Copy, CpWait, Mma
from cubridge_engine.lift.units import operations
from tests.lift.conftest import SM90, STYLES, assert_attention, edited, lift_text

RING = STYLES["tma_wgmma"]


@pytest.mark.parametrize("mode", ["early", "late"])
@pytest.mark.parametrize(("shape", "flag"), [((1, 2, 1, 70, 300), True), ((2, 4, 2, 140, 40), False)])
def test_warp_specialised_kernel_is_attention(shape, flag, mode):
    lifted = lift_text(SM90)
    assert lifted.coverage.complete
    assert_attention(lifted.kernel, shape, flag=flag, mode=mode)


@pytest.mark.parametrize(("shape", "flag"), [((1, 4, 2, 70, 150), True), ((1, 1, 1, 3, 1), False)])
def test_kernel_without_roles_is_attention(shape, flag):
    assert_attention(lift_text(RING).kernel, shape, flag=flag)


def test_wider_heads_are_two_boxes():
    kernel = lift_text(SM90, instantiation={"D": 128, "T": "bfloat16"}).kernel
    assert (kernel.D, kernel.Br, kernel.Bc, kernel.threads) == (128, 128, 128, 384)
    assert_attention(kernel, (1, 2, 1, 33, 140))


def test_copies_belong_to_the_barrier_that_is_waited_for():
    body = operations(lift_text(SM90).kernel.body)
    copies = [op for op in body if isinstance(op, Copy)]
    assert [op.tensor for op in copies] == ["q", "k", "v"]
    assert all(op.signal is not None and op.is_async for op in copies)
    assert {op.signal for op in copies} == {op.signal for op in body if isinstance(op, CpWait)}
    assert {op.atom for op in body if isinstance(op, Mma)} == {"wgmma"}


# A fault in the text -> the finding when the program is executed.
FAULTS = {
    "K is not waited for": ("barrier_wait(k_full + 8 * stage, parity);", "", "CB502"),
    "K's product waits for V": ("barrier_wait(k_full + 8 * stage, parity);", "barrier_wait(v_full, 0);", "CB502"),
    "a stage is not waited for": ("        barrier_wait(k_empty + 8 * stage, parity);\n", "", "CB501"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_synchronisation_is_found(fault):
    old, new, code = FAULTS[fault]
    changed = edited(SM90, (old, new))
    if code == "CB501":
        changed = edited(changed, ("        barrier_wait(v_empty + 8 * stage, parity);\n", ""))
    kernel = lift_text(changed).kernel
    rng = np.random.default_rng(1)
    tensors = {n: rng.standard_normal((1, 1, s, 64)) for n, s in (("q", 128), ("k", 520), ("v", 520))}
    sizes = {"B": 1, "H": 1, "Hkv": 1, "Sq": 128, "Sk": 520}
    out = execute(kernel, tensors, sizes, {"scale_log2": 0.18, "causal": False})
    assert code in {f.code for f in out.findings}


# What the text no longer says, and the reason given.
REFUSED = {
    "every thread starts the copies": (
        SM90, "    if (threadIdx.x == 0) {\n      load_tile", "    if (true) {\n      load_tile",
        "not started by exactly one thread",
    ),
    "the producer walks other tiles": (
        SM90, "tile < n_tiles; ++tile) {\n        barrier_wait(k_empty",
        "tile < n_tiles + 1; ++tile) {\n        barrier_wait(k_empty", "does not walk the tiles",
    ),
    "no swizzle": (SM90, " | 1ull << 62", "", "128-byte swizzle"),
    "nothing is announced": (RING, "expect(q_full, kTile);", "", "expects no bytes"),
    "a map that is no parameter": (
        RING, "tma(smem_q, &q_map, q_full", "tma(smem_q, (const TensorMap*)O, q_full", "no parameter of the kernel",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_understood_is_said(name):
    text, old, new, why = REFUSED[name]
    lifted = lift_text(edited(text, (old, new)))
    assert not lifted.coverage.complete
    said = " ".join(d.message + " ".join(r.message for r in d.related) for d in lifted.diagnostics)
    assert why in said, said


def test_scores_without_a_wait_for_their_product_are_no_scores():
    wait = '    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");\n\n    if (kv0'
    assert not lift_text(edited(RING, (wait, "\n    if (kv0"))).coverage.complete


def test_v_read_along_its_rows_is_no_product_with_v():
    assert not lift_text(edited(RING, ("%36, 1, 1, 1, 1;", "%36, 1, 1, 1, 0;"))).coverage.complete
