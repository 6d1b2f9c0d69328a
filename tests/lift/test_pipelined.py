"""The fast Hopper kernel: methods, items of persistent CTAs, a pipelined walk, a softmax without a running maximum."""

from __future__ import annotations

import math
import re
from functools import cache

import pytest

from cubridge_engine.ir.evaluate import evaluate
from cubridge_engine.ir.nodes import For, RowReduce
from cubridge_engine.ir.text_expr import print_expr
from cubridge_engine.lift.units import operations
from cubridge_engine.transfer.semantics import semantics_of
from tests.lift.conftest import ROOT, assert_attention, edited, lift_text

FAST = (ROOT / "expert_kernels" / "flash_fwd_sm90" / "kernel.cu").read_text()


@cache
def lifted(D: int = 64, DV: int = 64, dtype: str = "float16"):
    return lift_text(FAST, instantiation={"T": dtype, "D": D, "DV": DV})


@pytest.mark.parametrize(
    ("shape", "flag", "mode"), [((1, 2, 1, 70, 300), True, "late"), ((2, 2, 1, 140, 40), False, "early")]
)
def test_it_is_attention(shape, flag, mode):
    assert lifted().coverage.complete
    assert_attention(lifted().kernel, shape, flag=flag, mode=mode)


@pytest.mark.parametrize(("D", "DV", "dtype"), [(192, 128, "bfloat16")])
def test_other_instances_are_read_too(D, DV, dtype):
    kernel = lifted(D, DV, dtype).kernel
    assert (kernel.D, kernel.Dv, kernel.Br, kernel.threads) == (D, DV, 128, 384)
    assert_attention(kernel, (1, 2, 1, 40, 200), flag=True)


def test_the_rotated_loop_is_read_as_the_plain_one():
    loops = [op for op in operations(lifted().kernel.body) if isinstance(op, For)]
    assert [(loop.role, loop.step) for loop in loops] == [("kv_loop", -1)]
    kinds = [op.role for op in operations(loops[0].body) if isinstance(op, RowReduce)]
    assert kinds == ["row_max", "row_sum"], "the tile that is done again is not there twice"


def test_what_it_means():
    sem = semantics_of(lifted().kernel)
    assert print_expr(lifted().kernel.grid.h) == "by_item % H"
    assert lifted().anchors.setup_names.text["h"] == "(item.bh % p.heads)"
    assert (sem.normaliser, sem.lse, sem.empty_rows, sem.issues) == ("softmax", "ln", "zero", ())
    assert sem.empty_tile_safe
    assert sem.sink is None


_NAMES = re.findall(
    r"\w+",
    "Consumer Producer Shared Ring Item Problem Tiles Element Head work_item mask_scores first_softmax next_softmax "
    "raise_references "
    "exponentials row_maxima reference correction grew prob prob_next item kv_lo kv_hi q0 bh stage parity next kv_end "
    "produce run finish smem p s o l group lane first within size index tile q_full k_full v_full",
)


def test_names_do_not_matter():
    text = FAST
    for number, name in enumerate(_NAMES):
        text = re.sub(rf"\b{name}\b(?=[^\"\n]*(?:\"[^\"\n]*\"[^\"\n]*)*$)", f"zz{number}", text, flags=re.M)
    other = lift_text(text)
    assert other.coverage.complete, [d.message for d in other.diagnostics]


# What the text no longer does -> why it is not read.
REFUSED = {
    "l is not corrected": ("      l[r] *= correction[r];\n", "", "does not leave what it would have left"),
    "O is not corrected": ("          o[db][e] *= correction[e / 2];\n", "", "does not leave what it would have left"),
    "the correction is turned round": (
        "exp2_approx(old - reference[r])", "exp2_approx(reference[r] - old)", "does not leave what it would have left",
    ),
    "another bit votes": ("0x40004000u", "0x20002000u", "top exponent bit"),
    "half of P votes": (
        "    for (int k = 0; k < Bc / 4; ++k) {\n      bits", "    for (int k = 0; k < Bc / 8; ++k) {\n      bits",
        "every P",
    ),
    "the first tile is weighed otherwise": (
        "raise_references();\n    float sum[2];\n    exponentials(sum);\n",
        "raise_references();\n    float sum[2];\n    exponentials(sum);\n    sum[0] *= 2.f;\n",
        "are not weighed as the loop",
    ),
    "a Q tile is left out": (
        "(q_tiles - 1 - within / size) * Br", "(q_tiles - 1 - within / size / 2) * Br", "exactly once",
    ),
    "a head is left out": ("first + within % size;", "first + within % size / 2;", "head"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_it_must_not_be_read_as(case):
    old, new, why = REFUSED[case]
    found = lift_text(edited(FAST, (old, new)))
    assert not found.coverage.complete
    assert any(why in d.message for d in found.diagnostics), [d.message for d in found.diagnostics]


def test_a_log_sum_exp_of_another_reference_is_seen():
    kernel = lift_text(edited(FAST, ("reference[r] * kLn2 + __logf(", "reference[r] + __logf("))).kernel
    assert semantics_of(kernel).lse == "it is not m + log(l)"


def test_what_the_rows_start_from_is_read_where_it_is_written():
    start = (
        "      reference[r] = -3e38f;\n      l[r] = 0.f;\n",
        "      reference[r] = 4.f * scale_log2;\n      l[r] = lane % 4 ? 0.f : 1.f;\n",
    )
    found = lift_text(edited(FAST, start))
    assert found.coverage.complete, [d.message for d in found.diagnostics]
    sem = semantics_of(found.kernel, {"scale_log2": 0.5})
    assert sem.sink is not None
    assert evaluate(sem.sink, {}) == pytest.approx(2.0 * math.log(2.0))
    assert [float(evaluate(sem.l_init, {"lane": lane})) for lane in range(4)] == [1.0, 0.0, 0.0, 0.0]
    sites = {site.role: found.source.data[site.value.start : site.value.end] for site in found.anchors.state}
    assert sites == {"m": b"4.f * scale_log2", "l": b"lane % 4 ? 0.f : 1.f"}
