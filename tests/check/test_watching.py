"""`check --watch`: the simulator's findings, one per cause, and wrong numbers traced to their line by the products of
the execution where the program cannot be read.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from cubridge_engine.check.model import Finding
from cubridge_engine.check.watching import watch_findings
from cubridge_engine.simulate import SCHEDULES, Schedule

from .planted import SCALAR, SM80, ready, text_of

ONE = (Schedule("late", "forward"),)
pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")


@dataclass(frozen=True)
class Fault:
    """An edit; the finding's code, a text on its line, and words of its sentence."""

    kernel: str
    old: str
    new: str
    code: str
    marker: str
    words: tuple[str, ...]


FAULTS = {
    "V not transposed": Fault(
        SM80, "ldmatrix_x4_trans(vf", "ldmatrix_x4(vf", "CB880", "ldmatrix_x4(vf", ("fragment of V", "transposed")
    ),
    "K transposed": Fault(
        SM80, "ldmatrix_x4(kf", "ldmatrix_x4_trans(kf", "CB880", "ldmatrix_x4_trans(kf", ("fragment of K", "transposed")
    ),
    "halves of B exchanged": Fault(
        SM80, "(s[2 * np], qf[kk], kf[0], kf[1])", "(s[2 * np], qf[kk], kf[1], kf[0])", "CB880", "kf[1], kf[0]",
        ("S = Q K^T", "halves of the B fragment are exchanged"),
    ),
    "half of B twice": Fault(
        SM80, "(s[2 * np], qf[kk], kf[0], kf[1])", "(s[2 * np], qf[kk], kf[0], kf[2])", "CB880", "kf[0], kf[2]",
        ("columns 8..15", "the same half twice"),
    ),
    "halves of a packed P": Fault(
        SM80, "pack2<T>(s[2 * kk][0], s[2 * kk][1])", "pack2<T>(s[2 * kk][1], s[2 * kk][0])", "CB880",
        "mma_m16n8k16<T>(o[2 * np]", ("exchanged in register 0",),
    ),
    "all packed P": Fault(
        SM80, ': "f"(hi), "f"(lo));\n  return r;\n}\n\ntemplate <>\n__device__ __forceinline__ unsigned pack2<__nv_b',
        ': "f"(lo), "f"(hi));\n  return r;\n}\n\ntemplate <>\n__device__ __forceinline__ unsigned pack2<__nv_b',
        "CB880", "mma_m16n8k16<T>(o[2 * np]", ("P V", "neighbouring keys are exchanged"),
    ),
    "V without its swizzle": Fault(
        SM80, "v_tile + swizzle<DV>(kk * 16 + lane % 16, np * 2 + lane / 16)",
        "v_tile + (kk * 16 + lane % 16) * (DV * 2) + (np * 2 + lane / 16) * 16", "CB880", "ldmatrix_x4_trans(vf",
        ("the V tile", "address or swizzle"),
    ),
    "columns of O": Fault(
        SM80, "const int d = db * 8 + 2 * (lane % 4);", "const int d = db * 8 + 2 * (lane % 4 ^ 1);", "CB880",
        "reinterpret_cast<unsigned*>(out", ("column 0 of O holds what belongs into column 2",),
    ),
    "maximum of half a quad": Fault(
        SM80, "      m_new[r] = fmaxf(m_new[r], __shfl_xor_sync(0xffffffffu, m_new[r], 2));\n", "", "CB880",
        "__shfl_xor_sync(0xffffffffu, m_new[r], 1)", ("running maximum", "2 of the 4 lanes"),
    ),
    "half of the columns": Fault(
        SCALAR, "for (int d = 0; d < D; ++d)", "for (int d = 0; d < D / 2; ++d)", "CB880", "s[i] += Qs",
        ("columns 32..63 of Q and K are never multiplied",),
    ),
    "row of V shifted": Fault(
        SCALAR, "v[(kv0 + j) * v_stride_row + d]", "v[(kv0 + j + 1 < sk ? kv0 + j + 1 : 0) * v_stride_row + d]",
        "CB880", "Vs[j * kLd<DV>", ("V tile", "row j +1 of V"),
    ),
    "last tile left out": Fault(
        SCALAR, "kv0 < sk; kv0 += Bc", "kv0 + Bc <= sk; kv0 += Bc", "CB880", "kv0 + Bc <= sk", ("never visited",)
    ),
    "sum over other rows": Fault(
        SCALAR, "__shfl_xor_sync(0xffffffffu, row_sum, 2)", "__shfl_xor_sync(0xffffffffu, row_sum, 8)", "CB880",
        "row_sum, 8", ("sums of different rows",),
    ),
    "scale twice": Fault(
        SCALAR, "s[i] *= scale;", "s[i] *= scale * scale;", "CB880", "scale * scale", ("multiplied in twice",)
    ),
    "V by the stride of K": Fault(
        SCALAR, "v[(kv0 + j) * v_stride_row + d]", "v[(kv0 + j) * k_stride_row + d]", "CB513", "k_stride_row + d]", (),
    ),
    "wait for all but one": Fault(
        SM80, "cp_async_wait<0>();", "cp_async_wait<1>();", "CB517", "ldmatrix_x4(kf", ("has completed",)
    ),
}  # fmt: skip


def _watched(kernel: str, text: str, schedules: tuple[Schedule, ...] = ONE) -> tuple[Finding, ...]:
    return watch_findings(ready(kernel, text), schedules=schedules).findings


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_one_finding_on_its_line(name: str) -> None:
    fault = FAULTS[name]
    text = text_of(fault.kernel, (fault.old, fault.new))
    found = _watched(fault.kernel, text)
    assert [f.code for f in found] == [fault.code], [f.diagnostic.message for f in found]
    first = found[0]
    assert first.method == "watching"
    for words in fault.words:
        assert words in first.diagnostic.message, first.diagnostic.message
    assert first.span is not None
    assert first.span.path == "kernel.cu"
    if fault.marker:
        assert fault.marker in text.split("\n")[first.span.line], text.split("\n")[first.span.line]


@pytest.mark.parametrize("kernel", [SCALAR, SM80])
def test_a_clean_kernel_has_no_finding(kernel: str) -> None:
    report = watch_findings(ready(kernel, text_of(kernel)), schedules=ONE)
    assert report.findings == ()
    assert report.notes == ()
    assert report.launches == len(report.cases) - sum("no-queries" in name for name in report.cases)


def test_a_race_is_one_finding_with_both_lines_and_the_smallest_problem() -> None:
    barrier = "    __syncthreads();  // the next tile overwrites Ks, Vs and Ps\n"
    text = text_of(SCALAR, (barrier, ""))
    found = _watched(SCALAR, text, tuple(s for s in SCHEDULES if s.async_ == "late"))
    assert [f.code for f in found] == ["CB516"]
    lines = text.split("\n")
    places = [found[0].span, *(r.span for r in found[0].diagnostic.related)]
    named = " ".join(lines[p.line] for p in places if p is not None)
    assert "Vs[j * kLd<DV>" in named
    assert "o[i] += Ps" in named
    assert "first in case 'decode'" in found[0].diagnostic.message


def test_progress_can_cancel() -> None:
    class Cancelled(Exception):
        pass

    seen: list[float] = []

    def progress(share: float, text: str) -> None:
        seen.append(share)
        if share > 0.1:
            raise Cancelled

    with pytest.raises(Cancelled):
        watch_findings(ready(SCALAR, text_of(SCALAR)), progress=progress)
    assert seen == sorted(seen)
    assert seen[-1] < 0.5
