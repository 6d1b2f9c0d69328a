"""Names and the order of parameters never matter."""

from __future__ import annotations

import re

import pytest

from cubridge_engine.ir.text import print_kernel
from tests.lift.conftest import SCALAR, SM80, SM90, STYLES, edited, lift_text
from tests.lift.renamer import renamed

SM90_DEVICE = SM90[: SM90.rindex("#ifndef __CUDACC_RTC__")]  # without the launcher, which is full of the driver's names


def _semantic(text: str, names: dict[str, str] | None = None) -> str:
    """The program without its parameter list and name, parameters named by position."""
    lifted = lift_text(text)
    assert lifted.kernel is not None, [d.message for d in lifted.diagnostics]
    printed = print_kernel(lifted.kernel)
    for p in lifted.kernel.params:
        if p.role in ("q", "k", "v", "o", "lse"):
            continue  # never named in an expression, but perhaps like a tile
        printed = re.sub(rf"\b{re.escape(p.name)}\b", f"<{p.role}>", printed)
    printed = re.sub(r"^kernel \w+", "kernel", printed, flags=re.M)
    printed = re.sub(r"^  set .*$\n", "", printed, flags=re.M)
    return "\n".join(line for line in printed.splitlines() if not line.startswith("  param"))


@pytest.mark.parametrize("text", [SM80, SCALAR, SM90_DEVICE, *STYLES.values()], ids=["sm80", "scalar", "sm90", *STYLES])
def test_renaming_everything_changes_nothing(text):
    other, names = renamed(text)
    assert len(names) > 30
    assert "zz" in other
    assert _semantic(other) == _semantic(text)


def test_order_of_parameters_changes_nothing():
    moved = edited(
        SCALAR,
        (
            "float* __restrict__ LSE, long long q_stride_b, long long q_stride_h,",
            "long long q_stride_h, long long q_stride_b,",
        ),
        (
            "int sq, int sk, int heads, int kv_heads,\n                     float scale)",
            "int kv_heads, float scale, int sk, int heads, float* __restrict__ LSE,\n                     int sq)",
        ),
    )
    assert _semantic(moved) == _semantic(SCALAR)


def test_swapping_the_block_axes_is_seen_in_the_grid():
    swapped = edited(
        SCALAR,
        ("const int h = blockIdx.y;", "const int h = blockIdx.z;"),
        ("const int b = blockIdx.z;", "const int b = blockIdx.y;"),
    )
    lifted = lift_text(swapped)
    assert lifted.kernel is not None
    text = print_kernel(lifted.kernel)
    assert "grid b = by" in text
    assert "grid h = bz" in text
