"""Two kernels compared: the same where both formulas and executions agree, and only there."""

from __future__ import annotations

import pytest

from cubridge_engine.understand.compare import compare
from tests.understand.kernels import ADAPTED, SCALAR, SM80, STYLES, adapted, edited, kernel

Change = tuple[str, str]


def comparison(a: str, b: str):
    return compare(kernel(a), kernel(b))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (SM80, STYLES["tma_wgmma"]),
        (STYLES["rows"], STYLES["thread_per_row"]),
        (STYLES["warp_per_row"], STYLES["register_tiles"]),
    ],
)
def test_kernels_of_other_families_compute_the_same(a: str, b: str) -> None:
    found = comparison(a, b)
    assert found.same is True, [d.sentence for d in found.semantic]
    assert found.semantic == ()
    assert found.orchestration  # and go about it otherwise
    assert "executions" in found.why


SAME_FUNCTION: dict[str, tuple[str, tuple[Change, ...], str]] = {
    "one stage fewer ahead": (
        SM80,
        (
            ("    cp_async_wait<0>();\n    __syncthreads();\n    if (tile + 1 < n_tiles) {\n", "    {\n"),
            (
                "v_stride_row, tile + 1, sk);\n    }\n    cp_async_commit();\n",
                "v_stride_row, tile, sk);\n    }\n    cp_async_commit();\n    cp_async_wait<0>();\n"
                "    __syncthreads();\n",
            ),
        ),
        "ahead:k",
    ),
    "last tile first": (
        SCALAR,
        (("for (int kv0 = 0; kv0 < sk; kv0 += Bc) {", "for (int kv0 = (sk - 1) / Bc * Bc; kv0 >= 0; kv0 -= Bc) {"),),
        "order",
    ),
}


@pytest.mark.parametrize("name", SAME_FUNCTION)
def test_a_change_of_orchestration_is_one_and_nothing_else(name: str) -> None:
    text, changes, key = SAME_FUNCTION[name]
    found = comparison(text, edited(text, *changes))
    assert found.same is True, [d.sentence for d in found.semantic]
    assert key in {c.key for c in found.orchestration}


OTHER_FUNCTION: dict[str, tuple[str, Change, str]] = {
    "mask": (SCALAR, ("if (col >= sk) {", "if (col >= sk || col > row) {"), "mask"),
    "alignment": (SM80, ("col > row + sk - sq", "col > row"), "mask"),
    "scale": (SCALAR, ("s[i] *= scale;", "s[i] *= 0.5f * scale;"), "score"),
    "head": (SCALAR, ("const int hk = h / (heads / kv_heads);", "const int hk = h % kv_heads;"), "heads"),
    "log": (SCALAR, ("m + logf(l)", "(m + logf(l)) * 1.4426950408889634f"), "lse"),
    "one more weight": (SCALAR, ("float l = 0.f;", "float l = 1.f;"), "sink"),
    "twice": (SCALAR, ("o[i] * inv_l;", "o[i] * inv_l * 2.f;"), "weights"),
    "rows without keys": (SCALAR, ("l == 0.f ? 0.f : 1.f / l;", "1.f / l;"), "empty_rows"),
    "last tile": (SM80, ("(kv_end + Bc - 1) / Bc", "kv_end / Bc"), "mask"),
    "tail": (
        SCALAR,
        ("      if (col >= sk) {\n        s[i] = -INFINITY;\n      }\n", ""),
        "output",
    ),
}


@pytest.mark.parametrize("name", OTHER_FUNCTION)
def test_a_change_of_the_function_is_named_and_shown(name: str) -> None:
    text, change, part = OTHER_FUNCTION[name]
    found = comparison(text, edited(text, change))
    assert found.same is False
    assert part in {d.part for d in found.semantic}, [d.sentence for d in found.semantic]


@pytest.mark.parametrize("name", ADAPTED)
def test_an_adapted_kernel_differs_from_its_original_where_it_was_adapted(name: str) -> None:
    found = comparison(SM80, adapted(name))
    parts = {d.part for d in found.semantic}
    wanted = {"adapted_softcap_window": {"mask", "score"}, "adapted_sink": {"sink"}, "adapted_alibi": {"score"}}[name]
    assert found.same is False
    assert wanted <= parts
    assert not {c.key for c in found.orchestration} - {"parameters"}


def test_a_switch_that_only_one_has_is_said_with_the_setting_at_which_they_agree() -> None:
    found = comparison(SCALAR, SM80)
    assert found.same is False
    assert found.setting == "with causal = 0 their formulas agree"


def test_tensors_are_matched_by_what_they_do_not_by_their_names() -> None:
    before = adapted("adapted_alibi")
    found = comparison(before, before.replace("slopes", "gradients"))
    assert found.same is True
    assert "gradients" in found.why
