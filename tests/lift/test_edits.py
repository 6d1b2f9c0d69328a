"""Edits as people (and lowering) make them lift to exactly what they mean; wrong ones come out different."""

from __future__ import annotations

import pytest

from cubridge_engine.ir.nodes import For, If, Mask, RowMap, Score
from cubridge_engine.ir.text_expr import print_expr
from cubridge_engine.lift.units import operations
from tests.lift.conftest import SCALAR, SM80, assert_attention, edited, lift_text

PARAMS = (
    "float scale_log2, int causal) {",
    "float scale_log2, int causal, const float* __restrict__ xt, int w, float cap) {",
)
BEFORE_MASK = "    // S = -inf where j >= Sk or, when causal"
BEFORE_MAX = "    // m_new = max(m, rowmax(S))"
CONDITION = "col >= sk || (causal && col > row + sk - sq)"
NEST = """    for (int nb = 0; nb < Bc / 8; ++nb) {
      for (int e = 0; e < 4; ++e) {
        const int row = q0 + warp * 16 + lane / 4 + 8 * (e / 2);
        const int col = kv0 + nb * 8 + 2 * (lane % 4) + (e & 1);
        BODY
      }
    }
"""
BASE = "j < Sk & (!causal | j <= Sk + i - Sq)"


def at_scores(statement: str) -> str:
    """sm80 with an element statement between Q K^T and the mask."""
    return edited(SM80, PARAMS, (BEFORE_MASK, NEST.replace("BODY", statement) + BEFORE_MASK))


def with_condition(condition: str) -> str:
    """sm80 with another mask condition."""
    return edited(SM80, PARAMS, (CONDITION, condition))


def element_ops(text: str) -> list[str]:
    """Score and mask operations in order."""
    lifted = lift_text(text)
    assert lifted.kernel is not None, [d.message for d in lifted.diagnostics]
    assert lifted.coverage.complete, [d.message for d in lifted.diagnostics]
    found: list[str] = []
    for op in operations(lifted.kernel.body):
        if isinstance(op, Score):
            found.append("score " + print_expr(op.expr))
        elif isinstance(op, Mask):
            found.append(f"mask {print_expr(op.keep)} : {print_expr(op.fill)}")
    return found


MASK = f"mask {BASE} : -inf"
SCORES = {
    "s[nb][e] = cap * tanhf(s[nb][e] / cap);": "cap * tanh(s / cap)",
    "s[nb][e] += xt[h] * (col - row);": "s + xt[h] * (j - i)",
    "s[nb][e] += xt[h] * (row - col);": "s + xt[h] * (i - j)",
    "s[nb][e] -= xt[b * heads + h] * (float)(row - col);": "s - xt[b, h] * (i - j)",
    "s[nb][e] += xt[h] * abs(col - row);": "s + xt[h] * abs(j - i)",
    "if (w > 0) s[nb][e] *= 2.f;": "s * 2.0",
    "if (row < sq && col < sk) { s[nb][e] += xt[(size_t)h * sq * sk + (size_t)row * sk + col]; }": (
        "where(i < Sq & j < Sk, s + xt[h, i, j], s)"
    ),
    "s[nb][e] += (row < sq && col < sk) ? xt[((long long)(b * heads + h) * sq + row) * sk + col] : 0.f;": (
        "s + where(i < Sq & j < Sk, xt[b, h, i, j], 0.0)"
    ),
    "s[nb][e] += xt[h * (2 * w + 1) + min(max(col - row, -w), w) + w];": ("s + xt[h, min(max(j - i, -w), w) + w]"),
    "{ const float x = s[nb][e] * scale_log2 / cap;\n const float t = exp2f(2.f * x);\n"
    " s[nb][e] = cap * (1.f - 2.f / (t + 1.f)); }": ("cap * (1.0 - 2.0 / (exp2(2.0 * (s * scale_log2 / cap)) + 1.0))"),
}


@pytest.mark.parametrize(("statement", "meaning"), SCORES.items())
def test_score_change(statement, meaning):
    assert element_ops(at_scores(statement)) == [f"score {meaning}", MASK]


CONDITIONS = {
    CONDITION + " || row - col >= w": BASE + " & i - j < w",
    CONDITION + " || row - col > w": BASE + " & i - j <= w",
    CONDITION + " || col < row + sk - sq - w": BASE + " & j >= Sk + i - Sq - w",
    "col >= sk || (causal && col > row + sk - sq && col >= w)": "j < Sk & (!causal | j <= Sk + i - Sq | j < w)",
    CONDITION + " || (row - col) % w != 0": BASE + " & (i - j) % w == 0",
    "col >= sk || (causal && col > row)": "j < Sk & (!causal | j <= i)",
    "col >= sk || xt[b * sk + col] == 0.f": "j < Sk & xt[b, j] != 0.0",
    "!(col < sk)": "j < Sk",
}


@pytest.mark.parametrize(("condition", "keep"), CONDITIONS.items())
def test_mask_change(condition, keep):
    assert element_ops(with_condition(condition)) == [f"mask {keep} : -inf"]


def test_finite_fill():
    assert element_ops(edited(SM80, ("s[nb][e] = -INFINITY", "s[nb][e] = -10000.f"))) == [f"mask {BASE} : -10000.0"]


def test_conditional_expression_as_mask():
    start = SM80.index("          if (col >= sk")
    end = SM80.index("          }\n", start) + len("          }\n")
    text = (
        SM80[:start] + "s[nb][e] = col < sk && (!causal || col <= row + sk - sq) ? s[nb][e] : -INFINITY;\n" + SM80[end:]
    )
    assert element_ops(text) == [MASK]


def test_order_of_score_and_mask_is_visible():
    softcap = "s[nb][e] = cap * tanhf(s[nb][e] / cap);"
    after = edited(SM80, PARAMS, (BEFORE_MAX, NEST.replace("BODY", softcap) + BEFORE_MAX))
    assert element_ops(after) == [MASK, "score cap * tanh(s / cap)"]
    assert element_ops(at_scores(softcap)) == ["score cap * tanh(s / cap)", MASK]


def test_two_changes_compose_in_order():
    first, second = "s[nb][e] = cap * tanhf(s[nb][e] / cap);", "s[nb][e] += xt[h];"
    both = edited(SM80, PARAMS, (BEFORE_MASK, NEST.replace("BODY", first) + NEST.replace("BODY", second) + BEFORE_MASK))
    assert element_ops(both) == ["score cap * tanh(s / cap)", "score s + xt[h]", MASK]


def test_scalar_kernel_changes():
    text = edited(
        SCALAR,
        ("float scale) {", "float scale, float cap, const float* xt) {"),
        (
            "s[i] *= scale;",
            "s[i] *= scale;\n      s[i] = cap * tanhf(s[i] / cap) + xt[h] * float(kv0 + part + kQuad * i - row);",
        ),
        ("if (col >= sk) {", "if (col >= sk || col > row + sk - sq) {"),
    )
    assert element_ops(text) == [
        "score s * scale",
        "score cap * tanh(s / cap) + xt[h] * (j - i)",
        "mask j < Sk & j <= Sk + i - Sq : -inf",
    ]


def _init(text: str) -> dict[str, str]:
    lifted = lift_text(text)
    assert lifted.kernel is not None
    return {op.row: print_expr(op.expr) for op in lifted.kernel.body if isinstance(op, RowMap) and op.role == "init"}


SINK_M = ("m[r] = NEG;", "m[r] = xt[h] / (scale_log2 * kLn2);")


def _sink(start_of_l: str) -> str:
    at = SM80.index("m[r] = ")
    text = SM80[:at] + "m[r] = xt[h] / scale_log2;" + SM80[SM80.index("\n", at) :]
    return edited(text, PARAMS, ("l[r] = 0.f;", start_of_l))


def test_sink_starts_on_one_lane():
    assert _init(_sink("l[r] = lane % 4 == 0 ? 1.f : 0.f;")) == {
        "m": "xt[h] / scale_log2",
        "l": "where(lane == 0, 1.0, 0.0)",
    }
    assert _init(_sink("l[r] = 1.f;"))["l"] == "1.0"


def test_head_map():
    assert print_expr(lift_text(edited(SM80, ("h / (heads / kv_heads)", "h % kv_heads"))).kernel.grid.hk) == "h % Hkv"
    assert (
        print_expr(lift_text(edited(SM80, ("h / (heads / kv_heads)", "h * kv_heads / heads"))).kernel.grid.hk)
        == "h * Hkv // H"
    )


def _bounds(text: str) -> tuple[str, str, str]:
    """(lower bound of the loop, first tile's row, first tile's slot)."""
    kernel = lift_text(text).kernel
    assert kernel is not None
    loop = next(op for op in kernel.body if isinstance(op, For))
    copy = next(op for op in kernel.body if type(op).__name__ == "Copy" and op.tensor == "k")
    return print_expr(loop.lo), print_expr(copy.row0), print_expr(copy.slot)


def test_lower_bound_moves_loop_prologue_and_slot():
    declare = (
        "const int n_tiles = (kv_end + Bc - 1) / Bc;",
        "const int n_tiles = (kv_end + Bc - 1) / Bc;\n  const int kv_begin = max(0, q0 + sk - sq - w + 1) / Bc;",
    )
    start, prologue = (
        ("int tile = 0;", "int tile = kv_begin;"),
        ("v_stride_row, 0, sk);", "v_stride_row, kv_begin, sk);"),
    )
    tile = "max(0, Sk + q0 - Sq - w + 1) // 64"
    assert _bounds(edited(SM80, PARAMS, declare, start, prologue)) == (tile, f"{tile} * 64", f"{tile} % 2")
    assert _bounds(edited(SM80, PARAMS, declare, start)) == (tile, "0", "0")  # the prologue was forgotten


def test_a_shuffle_that_misses_lanes_is_no_row_maximum():
    line = next(x for x in SM80.splitlines() if "m_new[r] = fmaxf" in x and ", 2)" in x)
    lifted = lift_text(edited(SM80, (line + "\n", "")))
    assert not lifted.coverage.complete
    assert any("2 of the 4 lanes" in d.message for d in lifted.diagnostics)


def test_pointers_that_walk_with_the_loop():
    """K and V advanced by pointer increments instead of a row index mean the same."""
    text = edited(
        SCALAR,
        ("k[(kv0 + j) * k_stride_row + d]", "k[j * k_stride_row + d]"),
        ("v[(kv0 + j) * v_stride_row + d]", "v[j * v_stride_row + d]"),
        (
            "    __syncthreads();  // the next tile overwrites Ks, Vs and Ps\n",
            "    __syncthreads();\n    k += Bc * k_stride_row;\n    v += Bc * v_stride_row;\n",
        ),
    )
    lifted = lift_text(text)
    assert lifted.coverage.complete, [d.message for d in lifted.diagnostics]
    assert lifted.kernel is not None
    assert lifted.kernel.body == lift_text(SCALAR).kernel.body


def test_stage_counters():
    """A stage that is toggled, or counted with wrap-around, is the tile's number modulo the stages."""
    declared = (
        "  for (int tile = 0; tile < n_tiles; ++tile) {",
        "  int st = 0;\n  for (int tile = 0; tile < n_tiles; ++tile) {",
    )
    used = ("    const int stage = tile & 1;\n    const int kv0", "    const int stage = st;\n    const int kv0")
    plain = lift_text(SM80).kernel
    assert plain is not None
    for step in (
        "st ^= 1;",
        "st = 1 - st;",
        "st = (st + 1) % 2;",
        "st = st + 1 == 2 ? 0 : st + 1;",
        "if (++st == kStages) st = 0;",
    ):
        text = edited(SM80, declared, used, ("    // O = correction * O\n", f"    {step}\n    // O = correction * O\n"))
        kernel = lift_text(text).kernel
        assert kernel is not None, step
        assert kernel.body == plain.body, step


def _complete(text: str):
    lifted = lift_text(text)
    assert lifted.coverage.complete, [d.message for d in lifted.diagnostics]
    assert lifted.kernel is not None
    return lifted.kernel


@pytest.mark.parametrize("flag", [False, True])
def test_descending_loop(flag):
    text = edited(
        SM80,
        ("for (int tile = 0; tile < n_tiles; ++tile) {", "for (int tile = n_tiles - 1; tile >= 0; --tile) {"),
        ("v_stride_row, 0, sk);", "v_stride_row, n_tiles - 1, sk);"),
        ("if (tile + 1 < n_tiles) {", "if (tile > 0) {"),
        ("v_stride_row, tile + 1, sk);", "v_stride_row, tile - 1, sk);"),
    )
    assert_attention(_complete(text), (1, 2, 1, 70, 150), flag=flag)


def test_old_maximum_kept_in_a_variable():
    text = edited(
        SCALAR,
        ("    float m_new = m;", "    const float m_old = m;\n    float m_new = m;"),
        (
            "const float correction = expf(m - m_safe);\n    m = m_new;",
            "m = m_new;\n    const float correction = expf(m_old - m_safe);",
        ),
    )
    assert_attention(_complete(text), (1, 2, 1, 40, 70))


def test_tiles_skipped_by_continue():
    text = edited(
        SCALAR,
        (
            "    // Load the K and V tiles;",
            "    if (kv0 > q0 + Br - 1 + sk - sq) continue;\n    // Load the K and V tiles;",
        ),
        ("if (col >= sk) {", "if (col >= sk || col > row + sk - sq) {"),
    )
    kernel = _complete(text)
    loop = next(op for op in kernel.body if isinstance(op, For))
    assert [type(op).__name__ for op in loop.body] == ["Let", "If"]


def test_score_change_under_a_flag():
    text = edited(
        SCALAR,
        ("float scale) {", "float scale, bool soft, float cap) {"),
        (
            "    // S = -inf where j >= Sk",
            "    if (soft) {\n for (int i = 0; i < Bc / kQuad; ++i) s[i] = cap * tanhf(s[i] / cap);\n }\n"
            "    // S = -inf where j >= Sk",
        ),
    )
    kernel = _complete(text)
    (branch,) = [op for op in operations(kernel.body) if isinstance(op, If)]
    assert print_expr(branch.cond) == "soft"
    assert [print_expr(op.expr) for op in branch.body if isinstance(op, Score)] == ["cap * tanh(s / cap)"]
    assert {p.name: p.role for p in kernel.params}["soft"] == "flag"


UNSIGNED = {
    "col >= sk || (unsigned)(row - col) >= (unsigned)w": "j < Sk & (i - j >= 0 & i - j < w)",
    "(unsigned)(col - (row - w)) > 5u || col >= sk": "j + w - i >= 0 & j + w - i <= 5 & j < Sk",
    "col >= sk || (unsigned)col - row < 3": "j < Sk & (j - i < 0 | j - i >= 3)",
    "col >= sk || static_cast<uint32_t>(row - col) >= w": "j < Sk & (i - j >= 0 & i - j < w)",
    "col >= sk || (int)(unsigned)(row - col) >= w": "j < Sk & i - j < w",
}


@pytest.mark.parametrize(("condition", "keep"), UNSIGNED.items())
def test_unsigned_comparison_wraps_around(condition, keep):
    assert element_ops(with_condition(condition)) == [f"mask {keep} : -inf"]


@pytest.mark.parametrize(
    "statement",
    [
        "s[nb][e] += xt[h] * (float)((unsigned)col - row);",
        "s[nb][e] += xt[h] * ((unsigned)col - row);",
        "if ((unsigned)(col - row) / 4 > 2) s[nb][e] = 0.f;",
        "if (max(0u, (unsigned)col - row) > w) s[nb][e] = 0.f;",
    ],
)
def test_unsigned_numbers_that_may_have_wrapped_are_refused(statement):
    lifted = lift_text(at_scores(statement))
    assert not lifted.coverage.complete
    assert any("unsigned" in d.message for d in lifted.diagnostics), [d.message for d in lifted.diagnostics]


def test_prologue_row_of_sizes_alone():
    declare = (
        "const int n_tiles = (kv_end + Bc - 1) / Bc;",
        "const int n_tiles = (kv_end + Bc - 1) / Bc;\n  const int kv_begin = max(0, sq - sk + 16) / Bc;",
    )
    start, prologue = (
        ("int tile = 0;", "int tile = kv_begin;"),
        ("v_stride_row, 0, sk);", "v_stride_row, kv_begin, sk);"),
    )
    tile = "max(0, Sq - Sk + 16) // 64"
    assert _bounds(edited(SM80, PARAMS, declare, start, prologue)) == (tile, f"{tile} * 64", f"{tile} % 2")


def test_a_condition_around_a_test_is_part_of_the_mask():
    for condition in ("xt[h] > 0.f", "xt[b] > 0.f"):
        text = at_scores(f"if ({condition}) {{ if (col > row) s[nb][e] = -INFINITY; }}")
        read = "xt[h]" if "h" in condition else "xt[b]"
        assert element_ops(text) == [f"mask {read} <= 0.0 | j <= i : -inf", MASK]


def test_a_tile_condition_after_a_score_is_its_guard():
    body = "s[nb][e] = cap * tanhf(s[nb][e] / cap);\n if (kv0 + Bc > w) { if (col > row) s[nb][e] = -INFINITY; }"
    lifted = lift_text(at_scores(body))
    assert lifted.kernel is not None
    masks = [op for op in operations(lifted.kernel.body) if isinstance(op, Mask)]
    assert next(print_expr(op.guard) for op in masks if op.guard is not None) == "kv0 + 64 > w"
    assert element_ops(at_scores(body)) == ["score cap * tanh(s / cap)", "mask j <= i : -inf", MASK]
