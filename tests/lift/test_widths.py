"""Widths: D of Q and K, Dv of V and O, each a template parameter; which is which is read off what the kernel does."""

from __future__ import annotations

import pytest

from cubridge_engine.compile import read_contract
from cubridge_engine.ir.text import parse_kernel, print_kernel
from cubridge_engine.pipeline.widths import fit_widths, lift_at
from cubridge_engine.source import parse
from tests.lift.conftest import ROOT, SCALAR, SM80, assert_attention, edited

SOURCES = {"flash_fwd_sm80": SM80, "flash_fwd_scalar": SCALAR}


def _fit(text: str, want: tuple[int, int], kernel: str = "", arch: str = "sm_80"):
    source = parse("kernel.cu", text.encode())
    contract = read_contract(ROOT / "expert_kernels" / kernel / "contract.toml")[0] if kernel else None
    return fit_widths(source, lift_at(source, None, None), contract, want, arch)


@pytest.mark.parametrize(
    ("kernel", "widths"),
    [("flash_fwd_sm80", (48, 32)), ("flash_fwd_sm80", (32, 80)), ("flash_fwd_scalar", (34, 20))],
)
def test_a_kernel_of_two_widths_is_attention(kernel: str, widths: tuple[int, int]) -> None:
    lifted = lift_at(parse("kernel.cu", SOURCES[kernel].encode()), None, widths)
    assert lifted.coverage.complete
    assert (lifted.kernel.D, lifted.kernel.Dv) == widths
    assert_attention(lifted.kernel, (1, 2, 1, 70, 67))
    text = print_kernel(lifted.kernel)
    assert f"D={widths[0]} Dv={widths[1]}" in text
    assert parse_kernel(text) == lifted.kernel


def test_which_parameter_is_which_width_does_not_follow_from_names_or_order() -> None:
    swapped = SCALAR.replace("DV", "W").replace("int D, int W = D", "int W, int D")
    lifted = lift_at(parse("kernel.cu", swapped.encode()), None, (64, 32))
    assert (lifted.kernel.D, lifted.kernel.Dv) == (64, 32)
    assert lifted.kernel.instantiation == {"W": 32, "D": 64}


def test_columns_that_no_thread_computes_are_no_width() -> None:
    # 34 columns of V over the four threads of a row: two are copied and never used.
    lifted = lift_at(parse("kernel.cu", SCALAR.encode()), None, (64, 34))
    assert (lifted.kernel.D, lifted.kernel.Dv) == (64, 64)


@pytest.mark.parametrize(
    ("kernel", "want", "have", "padded"),
    [
        ("flash_fwd_sm80", (96, 96), (96, 96), ""),
        ("flash_fwd_sm80", (40, 40), (48, 48), "padded 40 -> 48:"),
        ("flash_fwd_sm80", (192, 120), (192, 128), "padded v 120 -> 128:"),
        ("flash_fwd_scalar", (34, 34), (34, 36), "padded v 34 -> 36:"),
    ],
)
def test_the_least_wasteful_widths_are_taken(
    kernel: str, want: tuple[int, int], have: tuple[int, int], padded: str
) -> None:
    lifted, found = _fit(SOURCES[kernel], want, kernel)
    assert (lifted.kernel.D, lifted.kernel.Dv) == have
    assert [d.code for d in found] == (["CB029"] if padded else [])
    assert not padded or found[0].message.startswith(padded)


def test_what_does_not_fit_is_refused_with_the_bytes() -> None:
    _, found = _fit(SM80, (192, 128), "flash_fwd_sm80", "sm_86")
    assert [d.code for d in found] == ["CB021"]
    assert str(64 * (3 * 192 + 2 * 128) * 2) in found[0].message
    _, found = _fit(SCALAR, (300, 300), "flash_fwd_scalar", "sm_90")
    assert [d.code for d in found] == ["CB022"]


def test_a_kernel_without_a_contract_is_padded_to_its_own_width() -> None:
    fixed = edited(SCALAR, ("template <int D, int DV = D>\n__global__", "constexpr int D = 64, DV = 64;\n__global__"))
    fixed = fixed[: fixed.index("#ifndef __CUDACC_RTC__\n\n// Instantiate")]
    lifted, found = _fit(fixed, (40, 40))
    assert (lifted.kernel.D, lifted.kernel.Dv) == (64, 64)
    assert [d.code for d in found] == ["CB029"]
    assert found[0].message.startswith("padded 40 -> 64:")
    assert [d.code for d in _fit(fixed, (80, 80))[1]] == ["CB022"]
    # Two widths are left to transfer, which refuses them and names kernels that have two (CB302).
    assert _fit(fixed, (40, 24))[1] == ()
