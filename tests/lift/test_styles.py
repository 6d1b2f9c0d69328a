"""Kernels as other authors write them: read right, or refused at the line that is not understood."""

from __future__ import annotations

from pathlib import Path

import pytest

from cubridge_engine.ir.nodes import Copy, For, Map, Mask
from cubridge_engine.ir.text_expr import print_expr
from cubridge_engine.lift.units import operations
from cubridge_engine.transfer.semantics import semantics_of
from tests.lift.conftest import SCALAR, STYLES, assert_attention, edited, lift_text

REFUSED = {path.stem: path.read_text() for path in sorted((Path(__file__).parent / "refused").glob("*.cu"))}

RAGGED = (2, 2, 2, 70, 40)
ONE_LENGTH = (2, 2, 2, 100, 100)  # one parameter is both lengths
WHOLE_TILES = (1, 2, 2, 128, 128)  # a kernel without tails


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("thread_per_row", ONE_LENGTH),
        ("register_tiles", RAGGED),
        ("half2_math", (1, 4, 2, 70, 40)),
        ("normalised_steps", ONE_LENGTH),
        ("warp_per_row", RAGGED),
        ("mma_macros", WHOLE_TILES),
        ("mma_three_stages", ONE_LENGTH),
        ("rows_in_shared", ONE_LENGTH),
        ("per_key", ONE_LENGTH),
        ("struct_parameters", (2, 4, 2, 70, 40)),
    ],
)
def test_style_is_attention(name, shape):
    lifted = lift_text(STYLES[name])
    assert lifted.coverage.complete, [d.message for d in lifted.diagnostics]
    for mode in ("early", "late"):
        assert_attention(lifted.kernel, shape, mode=mode)


@pytest.mark.parametrize("shape", [(1, 2, 2, 100, 100), (1, 2, 2, 40, 150), (1, 1, 1, 130, 70)])
def test_descending_causal_kernel_is_attention(shape):
    lifted = lift_text(STYLES["mma_descending"])
    assert lifted.coverage.complete
    assert_attention(lifted.kernel, shape, flag=True)


def test_a_natural_scale_times_log2e_is_a_natural_scale():
    kernel = lift_text(STYLES["mma_descending"]).kernel
    assert {p.name: p.role for p in kernel.params}["softmax_scale"] == "scale"


def test_a_kernel_without_tails_says_so():
    kernel = lift_text(STYLES["mma_macros"]).kernel
    copies = [op for op in operations(kernel.body) if isinstance(op, Copy)]
    assert [op.limit for op in copies] == [None] * 3
    with pytest.raises(AssertionError):
        assert_attention(kernel, ONE_LENGTH)


def test_row_factor_of_the_product_goes_onto_p():
    kernel = lift_text(STYLES["normalised_steps"]).kernel
    maps = [print_expr(op.expr) for op in operations(kernel.body) if isinstance(op, Map) and op.role != "exp"]
    assert maps == ["s * (l * corr / r)", "s * (corr2 / r)"]


@pytest.mark.parametrize("step", ["acc[d] = (l * a * acc[d] - b * pv) / l_new;", "acc[d] = (l * a + b * pv) / l_new;"])
def test_other_combinations_of_output_and_product_are_not_taken(step):
    old = "acc[d] = (l * a * acc[d] + b * pv) / l_new;"
    assert not lift_text(edited(STYLES["normalised_steps"], (old, step))).coverage.complete


@pytest.mark.parametrize(
    ("written", "is_maximum"),
    [
        ("if (sum > m_new)\r\n\t\t\t\tm_new = sum;", True),
        ("m_new = sum >= m_new ? sum : m_new;", True),
        ("m_new = m_new < sum ? sum : m_new;", True),
        ("if (sum < m_new)\r\n\t\t\t\tm_new = sum;", False),
    ],
)
def test_maximum_written_as_a_comparison(written, is_maximum):
    text = STYLES["thread_per_row"]
    old = "if (sum > m_new)\n\t\t\t\tm_new = sum;"
    lifted = lift_text(edited(text, (old, written.replace("\r\n", "\n"))))
    assert lifted.coverage.complete == is_maximum


def test_a_shuffle_brings_the_element_of_its_lane():
    """A probability taken from the wrong lane meets the wrong row of V."""
    text = STYLES["warp_per_row"]
    assert not lift_text(
        edited(text, ("__shfl_sync(0xffffffff, p, j)", "__shfl_sync(0xffffffff, p, j ^ 1)"))
    ).coverage.complete


REFUSALS = {
    "kv_outer": ("Kj[(tx * d) + x] =", "known only at run time"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_is_not_understood_is_refused_at_its_line(name):
    lifted = lift_text(REFUSED[name])
    assert not lifted.coverage.complete
    assert not any(d.code == "CB127" for d in lifted.diagnostics)
    text, words = REFUSALS[name]
    if words:
        line = REFUSED[name][: REFUSED[name].index(text)].count("\n")
        assert any(d.span.line == line and words in d.message for d in lifted.diagnostics), lifted.diagnostics


ROWS_IN_SHARED = edited(
    SCALAR,
    ("  float m = -INFINITY;\n", "  __shared__ float ms[Br];\n  ms[r] = -INFINITY;\n  __syncthreads();\n"),
    ("    float m_new = m;\n", "    const float m = ms[r];\n    float m_new = m;\n"),
    ("    m = m_new;\n", "    __syncthreads();\n    ms[r] = m_new;\n"),
    ("m + logf(l)", "ms[r] + logf(l)"),
)


def test_a_row_maximum_in_shared_memory_is_a_state():
    lifted = lift_text(ROWS_IN_SHARED)
    assert lifted.coverage.complete, [d.message for d in lifted.diagnostics]
    assert_attention(lifted.kernel, (2, 4, 2, 70, 40))
    assert_attention(lifted.kernel, (1, 2, 2, 40, 100))


@pytest.mark.parametrize(
    "stored",
    [
        "ms[r] = 0.f * m_new;",  # nothing of the maximum is left
        "ms[r ^ 1] = m_new;",  # another row's
        "if (t > 0) ms[r] = m_new;",  # not in every trip
        "if (r > 0) ms[r] = m_new;",  # not of every row
    ],
)
def test_another_row_state_in_shared_memory_is_not_taken(stored):
    text = edited(ROWS_IN_SHARED, ("    ms[r] = m_new;\n", f"    {stored}\n"))
    lifted = lift_text(text)
    assert not lifted.coverage.complete or not _computes_attention(lifted.kernel)


def _computes_attention(kernel):
    try:
        assert_attention(kernel, (2, 4, 2, 70, 40))
    except AssertionError:
        return False
    return True


def test_neighbouring_elements_may_not_be_mixed():
    mixed = "s[i] *= scale;\n      if (i + 1 < Bc / kQuad) s[i] = s[i + 1];"
    assert not lift_text(edited(SCALAR, ("s[i] *= scale;", mixed))).coverage.complete


def _loop(kernel):
    return next(op for op in operations(kernel.body) if isinstance(op, For))


def test_masks_of_the_styles():
    for name in ("warp_per_row", "register_tiles", "mma_three_stages", "thread_per_row"):
        kernel = lift_text(STYLES[name]).kernel
        assert [print_expr(op.keep) for op in operations(_loop(kernel).body) if isinstance(op, Mask)] == ["j < Sk"], (
            name
        )


def test_a_finite_start_of_the_row_maximum_is_no_sink():
    for name in ("register_tiles", "warp_per_row", "normalised_steps"):
        assert semantics_of(lift_text(STYLES[name]).kernel).sink is None, name


@pytest.mark.parametrize(
    ("name", "before", "element", "column"),
    [
        ("thread_per_row", "if (j * TILE + y >= N)", "sum", "(j * TILE + y)"),
        ("warp_per_row", "if (start + lane >= kv_len) s =", "s", "(start + lane)"),
    ],
)
def test_score_site_inside_a_loop_that_also_masks_and_folds(name, before, element, column):
    text = STYLES[name]
    (site,) = lift_text(text).anchors.score
    assert text.encode()[: site.offset].count(b"\n") == text[: text.index(before)].count("\n")
    assert (site.nest.element, site.nest.row, site.nest.col, site.nest.headers) == (element, "row", column, ())


@pytest.mark.parametrize(
    ("name", "element", "raw"),
    [
        ("half2_math", "s[j]", "acc * sm_scale"),
        ("normalised_steps", "s[j]", "s[j] * scale"),
        ("register_tiles", "s[i][j]", "s[i][j] * scale"),
        ("mma_padded", "s[n][e]", "s[n][e] * softmax_scale"),
    ],
)
def test_a_statement_that_scales_and_masks_is_taken_apart(name, element, raw):
    text = STYLES[name]
    (site,) = lift_text(text).anchors.score
    assert (site.nest.element, site.nest.headers) == (element, ())
    assert text.encode()[site.raw.start : site.raw.end].decode() == raw
    statement = text.encode()[site.offset : site.raw.end].decode()
    assert statement.lstrip().startswith(f"{element} = ")


def test_a_row_is_spelled_with_every_subscript():
    """No variable holds it, and the first two elements of the nest do not differ in i."""
    (site,) = lift_text(STYLES["register_tiles"]).anchors.score
    assert site.nest.row == "(q_start + tid / 16 * 4 + i)"
    assert site.nest.col == "(int)(k_start + threadIdx.x + j * 16)", "unsigned, and compared with what may be negative"


def test_a_column_that_starts_at_the_tile_is_not_taken_for_it():
    """j is 0 at the first element, so ``kv`` has the value of the column there."""
    (mask,) = lift_text(STYLES["half2_math"]).anchors.mask
    assert mask.nest.col == "(kv + j)"
