"""Kernels that update the softmax once per key, and those with the KV loop around the loop over query tiles."""

from __future__ import annotations

from pathlib import Path

import pytest

from cubridge_engine.ir.nodes import RowMap
from cubridge_engine.lift.units import operations
from tests.lift.conftest import STYLES, assert_attention, edited, lift_text

PER_KEY = STYLES["per_key"]
KV_OUTER = (Path(__file__).parents[1] / "faults" / "kernels" / "kv_outer.cu").read_text()
SHAPE = (1, 2, 2, 80, 80)
MAXIMUM = "      float mn = fmaxf(m, s);\n"


def read(text):
    return lift_text(text, anchors=False, remember=False)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("l = l * a + p;", "l = l + p;"),  # the row sum is not corrected
        ("p * sv[j][d]", "p * sv[(j + 1) % BC][d]"),  # another key's value
        ("__expf(m - mn), p", "__expf(s - mn), p"),  # corrected by the score
    ],
)
def test_other_steps_are_not_taken_for_those_of_a_tile(old, new):
    assert not read(edited(PER_KEY, (old, new))).coverage.complete


def test_what_is_added_once_per_tile_is_noticed():
    again = "    l += __expf(-m);\n    __syncthreads();\n  }\n  if"
    assert not read(edited(PER_KEY, ("    __syncthreads();\n  }\n  if", again))).coverage.complete


def test_two_keys_at_a_time_are_a_tile():
    text = edited(
        PER_KEY,
        ("j < BC && t + j < N; j++) {\n      float s = 0.f;", "j < BC; j += 2) {\n      float s = 0.f, u = 0.f;"),
        ("s += q[d] * sk[j][d];", "{ s += q[d] * sk[j][d]; u += q[d] * sk[j + 1][d]; }"),
        ("fmaxf(m, s);", "fmaxf(m, fmaxf(s, u));"),
        ("p = __expf(s - mn);", "p = __expf(s - mn), r = __expf(u - mn);"),
        ("l * a + p;", "l * a + p + r;"),
        ("p * sv[j][d];", "p * sv[j][d] + r * sv[j + 1][d];"),
    )
    lifted = read(text)
    assert lifted.coverage.complete, [d.message for d in lifted.diagnostics]
    assert_attention(lifted.kernel, SHAPE)


def test_a_masked_first_key_is_nan_for_one_key_at_a_time():
    masked = f"      if (t + j < row - 5) s = -INFINITY;\n{MAXIMUM}"
    lifted = read(edited(PER_KEY, (MAXIMUM, masked)))
    assert not lifted.coverage.complete
    assert any("taken one by one from a maximum of -inf" in d.message for d in lifted.diagnostics)


def test_skipped_keys_are_no_nan():
    lifted = read(edited(PER_KEY, (MAXIMUM, f"      if (t + j < row - 5) continue;\n{MAXIMUM}")))
    assert lifted.coverage.complete, [d.message for d in lifted.diagnostics]
    assert any(isinstance(op, RowMap) and op.role == "guard" for op in operations(lifted.kernel.body))


def test_rows_that_the_host_starts_are_noted():
    text = edited(KV_OUTER, ("j0 == 0 ? -INFINITY : m[i]", "m[i]"), ("j0 == 0 ? 0.f : l[i]", "l[i]"))
    lifted = read(text)
    assert lifted.coverage.complete, [d.message for d in lifted.diagnostics]
    assert [d.code for d in lifted.diagnostics] == ["CB136"]
    assert_attention(lifted.kernel, (1, 2, 2, 70, 40))
    assert {p.name: p.role for p in lifted.kernel.params}["row_max"] == "scratch"


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("m[i] = m_new", "m[i + 1] = m_new", "not read where the KV tile before has stored it"),
        ("i0 < len_q; i0 += BLOCK", "i0 < len_k; i0 += BLOCK", "does not visit each of them once"),
        ("for (int i0 = 0;", "for (int i0 = j0;", "does not stand alone in it"),
    ],
)
def test_other_loops_over_query_tiles_are_refused(old, new, why):
    lifted = read(edited(KV_OUTER, (old, new)))
    assert lifted.kernel is None
    assert any(why in d.message for d in lifted.diagnostics), [d.message for d in lifted.diagnostics]
