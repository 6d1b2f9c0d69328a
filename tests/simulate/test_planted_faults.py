"""Faults planted in the source of flash_fwd_sm80: which are found by a checker, which by numbers, and on which line.

The table at the end of the file is the expectation; a checker that gets blind, or a line that moves, fails here.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from cubridge_engine.simulate import SCHEDULES

from .conftest import Shape  # type: ignore[import-not-found]

SHAPE = Shape(h=4, hkv=2, sq=70, sk=200)
TOLERANCE = 8e-3


@dataclass(frozen=True)
class Fault:
    """An edit, the codes that must be among the findings of every schedule, and a text of the line they point at."""

    edits: tuple[tuple[str, str], ...]
    codes: tuple[str, ...]
    numbers: bool  # the numbers are wrong in at least one schedule
    line: str = ""
    offset: int = 0


LOOP_BARRIER = "cp_async_wait<0>();\n    __syncthreads();"
FAULTS = {
    "missing barrier": Fault(
        (("cp_async_wait<1>();\n  __syncthreads();", "cp_async_wait<1>();"),), ("CB516",), True, "cp_async_16("
    ),
    "reuse without barrier": Fault(((LOOP_BARRIER, "cp_async_wait<0>();"),), ("CB516",), True, "cp_async_16("),
    "wait off by one": Fault((("cp_async_wait<0>();\n", "cp_async_wait<1>();\n"),), ("CB517",), True, "cp_async_16("),
    "missing commit": Fault(
        (
            ("    cp_async_commit();\n\n    const int stage", "\n    const int stage"),
            ("cp_async_wait<0>();\n", "cp_async_wait<1>();\n"),
        ),
        ("CB517",),
        True,
        "cp_async_16(",
    ),
    "tail read out of bounds": Fault(
        (("in ? 16 : 0", "16"),),
        ("CB513",),
        True,
        "cp.async.cg",
    ),
    "misaligned 16-byte load": Fault((), ("CB514",), True, "cp.async.cg", offset=2),
    "uninitialised shared read": Fault(
        (("i < Bc * kGroup / kThreads", "i < Bc * kGroup / kThreads - 1"),), ("CB518",), True, "ldmatrix"
    ),
    "return before barrier": Fault(
        (("  // Prologue: Q", "  if (q0 + 16 * warp >= sq) return;\n  // Prologue: Q"),),
        ("CB520",),
        True,
        "__syncthreads",
    ),
    "shuffle with absent lanes": Fault(
        (
            (
                "m_new[r] = fmaxf(m_new[r], __shfl_xor_sync(0xffffffffu, m_new[r], 2));",
                "if (lane != 5) m_new[r] = fmaxf(m_new[r], __shfl_xor_sync(0xffffffffu, m_new[r], 2));",
            ),
        ),
        ("CB521",),
        True,
        "__shfl_xor_sync",
    ),
    "unwritten output rows": Fault((("    if (row < sq) {", "    if (row < sq - 1) {"),), ("CB523",), True),
    "wrong head of the output": Fault(
        (("T* out = O + b * o_stride_b + h * o_stride_h", "T* out = O + b * o_stride_b + hk * o_stride_h"),),
        ("CB523", "CB524"),
        True,
    ),
    "wrong head map": Fault((("hk = h / (heads / kv_heads)", "hk = h % kv_heads"),), (), True),
    "missing rescale": Fault((("o[db][e] *= correction[e / 2];", ""),), (), True),
    "stage never flips": Fault(
        (("    const int stage = tile & 1;\n    const int kv0", "    const int stage = 0;\n    const int kv0"),),
        ("CB517",),
        True,
    ),
    "too little shared memory": Fault(
        (("  const unsigned smem_v = smem_k + kStages", "  const unsigned smem_v = 128 + smem_k + kStages"),),
        ("CB515",),
        True,
        "cp.async.cg",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault(flash80, name):
    fault = FAULTS[name]
    wrong = False
    text = ""
    for schedule in SCHEDULES:
        result = flash80(SHAPE, schedule, fault.edits, offset=fault.offset)
        codes = {f.code for f in result.run.findings}
        assert set(fault.codes) <= codes, (schedule, codes)
        assert fault.codes or not codes, (schedule, codes)
        wrong |= result.error > TOLERANCE
        if fault.line:
            text = text or _edited(fault)
            for code in fault.codes:
                finding = next(f for f in result.run.findings if f.code == code)
                spans = [finding.span, *(r.span for r in finding.related)]
                lines = [text.split("\n")[s.line] for s in spans if s is not None]
                assert any(fault.line in line for line in lines), (schedule, finding.message, lines)
    assert wrong == fault.numbers


def _edited(fault: Fault) -> str:
    from .conftest import ROOT  # type: ignore[import-not-found]

    text = (ROOT / "expert_kernels/flash_fwd_sm80/kernel.cu").read_text()
    for old, new in fault.edits:
        text = text.replace(old, new)
    return text


def test_the_unedited_kernel_is_clean_at_this_shape(flash80):
    for schedule in SCHEDULES:
        result = flash80(SHAPE, schedule)
        assert not result.run.findings
        assert result.error < TOLERANCE
