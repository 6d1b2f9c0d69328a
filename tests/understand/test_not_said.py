"""A wrong sentence is worse than none: each kind is said of one kernel and must not be said of an edit of it."""

from __future__ import annotations

import pytest

from tests.understand.kernels import SCALAR, SM80, STYLES, edited, explained

COPY_TAIL = "q0 + i < sq ? q[(q0 + i) * q_stride_row + d] : 0.f"
TAIL = """      if (col >= sk) {
        s[i] = -INFINITY;
      }
"""
Change = tuple[str, str]

# what is said -> (the kernel, the edit after which it is wrong, what is said instead, if something is)
CASES: dict[str, tuple[str, str, tuple[Change, ...], str]] = {
    "computes softmax attention": (
        "computes softmax attention, O = softmax(x) V",
        SCALAR,
        (
            (
                "out[row * o_stride_row + part + kQuad * i] = o[i] * inv_l;",
                "out[row * o_stride_row + part + kQuad * i] = 2.f * o[i] * inv_l;",
            ),
        ),
        "stores O = ",
    ),
    "every key": (
        "Every key is attended.",
        SCALAR,
        (("if (col >= sk) {", "if (col >= sk || col > row) {"),),
        "The mask is causal: key j counts for query i where j <= i.",
    ),
    "aligned to the bottom": (
        "causal (bottom-right)",
        SM80,
        (
            ("col > row + sk - sq", "col > row"),
            ("kv_end = min(sk, q0 + Br + sk - sq);", "kv_end = min(sk, q0 + Br);"),
            ("kv0 + Bc - 1 > q0 + sk - sq", "kv0 + Bc - 1 > q0"),
        ),
        "the mask is causal: key j counts for query i where j <= i",
    ),
    "the caller gives the scale": (
        "The caller passes the scale as scale, in natural units.",
        SCALAR,
        (("s[i] *= scale;", "s[i] *= 0.125f;"),),
        "The scale is a number of the kernel's own, 0.125, that is 1 / sqrt(64).",
    ),
    "one over the root of D": (
        "that is 1 / sqrt(64)",
        edited(SCALAR, ("s[i] *= scale;", "s[i] *= 0.125f;")),
        (("s[i] *= 0.125f;", "s[i] *= 0.25f;"),),
        "0.25; 1 / sqrt(D) would be 0.125",
    ),
    "in natural units": (
        "in natural units",
        SCALAR,
        (
            ("const float correction = expf(m - m_safe);", "const float correction = exp2f(m - m_safe);"),
            ("const float p = expf(s[i] - m_safe);", "const float p = exp2f(s[i] - m_safe);"),
            ("m + logf(l)", "m * 0.6931471805599453f + logf(l)"),
        ),
        "The caller passes the scale as scale, times log2(e).",
    ),
    "natural logarithm": (
        "the natural logarithm of the sum",
        SCALAR,
        (("m + logf(l)", "(m + logf(l)) * 1.4426950408889634f"),),
        "LSE in base 2",
    ),
    "an LSE at all": (
        "It also returns LSE",
        SCALAR,
        (("m + logf(l)", "l"),),
        "It also stores a value for each row: another value than m + log(l).",
    ),
    "shared KV heads": (
        "GQA",
        SCALAR,
        (("const int hk = h / (heads / kv_heads);", "const int hk = h;"),),
        "Every query head has a KV head of its own.",
    ),
    "which KV head": (
        "h // (H // Hkv)",
        SCALAR,
        (("const int hk = h / (heads / kv_heads);", "const int hk = h % kv_heads;"),),
        "Query head h reads KV head h % Hkv.",
    ),
    "any length of keys": (
        "Neither Sq nor Sk has to be a multiple",
        SCALAR,
        ((TAIL, ""),),
        "Sk has to be a multiple of 32",
    ),
    "a row without keys gives 0": (
        "A row without keys gives 0",
        SCALAR,
        (("const float inv_l = l == 0.f ? 0.f : 1.f / l;", "const float inv_l = 1.f / l;"),),
        "A row without keys gives NaN",
    ),
    "minus infinity for its LSE": (
        "(LSE -inf)",
        SCALAR,
        (("lse[row] = l == 0.f ? -INFINITY : m + logf(l);", "lse[row] = l == 0.f ? 0.f : m + logf(l);"),),
        "(LSE finite)",
    ),
    "no tile for nothing": (
        "none was masked as a whole",
        SM80,
        (("    kv_end = min(sk, q0 + Br + sk - sq);\n", ""),),
        "held no key that counts",
    ),
    "first to last": (
        "first to last",
        SCALAR,
        (("for (int kv0 = 0; kv0 < sk; kv0 += Bc) {", "for (int kv0 = (sk - 1) / Bc * Bc; kv0 >= 0; kv0 -= Bc) {"),),
        "last to first",
    ),
    "a tile ahead": (
        "1 tile ahead",
        SM80,
        (
            ("    cp_async_wait<0>();\n    __syncthreads();\n    if (tile + 1 < n_tiles) {\n", "    {\n"),
            (
                "v_stride_row, tile + 1, sk);\n    }\n    cp_async_commit();\n",
                "v_stride_row, tile, sk);\n    }\n    cp_async_commit();\n    cp_async_wait<0>();\n"
                "    __syncthreads();\n",
            ),
        ),
        "through 2 stages.",
    ),
    "not negative": (
        "The scale is not negative",
        SM80,
        (),
        "",
    ),
    "three barriers": (
        "passes 3 CTA barriers",
        SCALAR,
        (("    __syncthreads();\n\n    // O = correction * O + P V", "\n    // O = correction * O + P V"),),
        "passes 2 CTA barriers",
    ),
    "one length": (
        "There are as many keys as queries",
        STYLES["thread_per_row"],
        (),
        "",
    ),
}
ELSEWHERE = {  # said of the kernel above, wrong of this one
    "not negative": SCALAR,
    "one length": SCALAR,
}


def said(text: str) -> str:
    found = explained(text)
    return "\n".join((found.title, *(s.text for s in found.sentences)))


@pytest.mark.parametrize("name", CASES)
def test_it_is_said_where_it_is_true_and_only_there(name: str) -> None:
    words, text, changes, instead = CASES[name]
    assert words in said(text)
    other = ELSEWHERE[name] if name in ELSEWHERE else edited(text, *changes)
    after = said(other)
    assert words not in after
    assert instead in after


def test_a_running_maximum_from_minus_infinity_has_no_floor() -> None:
    assert "running maximum starts" not in said(SCALAR)
    assert "running maximum starts at 0.0" in said(edited(SCALAR, ("float m = -INFINITY;", "float m = 0.f;")))


def test_a_causal_range_for_the_other_alignment_is_not_taken_for_whole_tiles() -> None:
    """The mask counts from the top left, the range from the bottom right: they agree where Sq = Sk only."""
    found = explained(edited(SM80, ("col > row + sk - sq", "col > row")))
    assert "reads as if" in found.paragraph
    assert not [s for s in found.sentences if s.topic == "tails"]


def test_a_correction_that_is_wrong_from_the_second_tile_on_is_seen() -> None:
    found = explained(edited(SCALAR, ("l = correction * l + row_sum;", "l = l + row_sum;")))
    assert "reads as if" in found.paragraph
    assert not [s for s in found.sentences if s.topic == "tails"]


def test_strides_of_another_tensor_are_not_called_its_own() -> None:
    def layout(text: str) -> str:
        return next(f.value for f in explained(text).facts if f.key == "layout")

    assert "among them" not in layout(SCALAR)
    wrong = edited(SCALAR, ("v[(kv0 + j) * v_stride_row + d]", "v[(kv0 + j) * k_stride_row + d]"))
    assert "that of K's row among them" in layout(wrong)


def test_tiles_that_are_left_out_are_not_taken_for_a_mask() -> None:
    """The last tile is left out unless it is whole: nothing may be said of ragged lengths but that they are wrong."""
    found = explained(edited(SM80, ("const int n_tiles = (kv_end + Bc - 1) / Bc;", "const int n_tiles = kv_end / Bc;")))
    assert "Neither Sq nor Sk has to be a multiple" not in found.paragraph
    assert "Sk has to be a multiple of 64" in found.paragraph
    assert any("the tiles that it visits or tests disagree" in s.text for s in found.unknown)


def test_a_program_that_disagrees_with_its_formula_is_not_called_attention() -> None:
    """The first KV tile is never visited: on whole tiles, too, something else is computed."""
    found = explained(
        edited(SCALAR, ("for (int kv0 = 0; kv0 < sk; kv0 += Bc) {", "for (int kv0 = Bc; kv0 < sk; kv0 += Bc) {"))
    )
    assert "reads as if it computes" in found.paragraph
    assert "reads like" in found.title
    assert "flash_fwd_scalar computes softmax attention" not in found.paragraph
    assert not [s for s in found.sentences if s.topic == "tails"]
    assert any("gives something else than this formula" in s.text for s in found.unknown)


def test_a_race_is_not_passed_over() -> None:
    """Without the barrier before the next copy, a stage is overwritten while it may still be read."""
    found = explained(edited(SCALAR, ("    __syncthreads();  // the next tile overwrites Ks, Vs and Ps\n", "")))
    assert any("Executing it finds" in s.text and s.spans for s in found.unknown)


def test_a_kernel_that_is_not_understood_gets_no_formula() -> None:
    found = explained("__global__ void scale(float* x, int n) { int i = threadIdx.x; if (i < n) x[i] *= 2.f; }")
    assert found.equations == ()
    assert "attention" in found.title
    assert "understood" in found.title
    assert not [s for s in found.sentences if s.topic in ("mask", "score", "tails", "empty_rows")]


def test_what_is_not_found_is_said_with_its_line() -> None:
    """A call of a function that the file does not have, where the scores are scaled."""
    found = explained(edited(SCALAR, ("s[i] *= scale;", "s[i] = mystery(s[i], scale);")))
    assert found.equations == ()
    assert any("mystery" in s.text and s.spans for s in found.unknown)
    assert not [s for s in found.sentences if s.evidence == "executed"]
