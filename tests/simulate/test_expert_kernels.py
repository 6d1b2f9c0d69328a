"""The expert kernels, executed under every schedule: numbers against float64, and not one finding."""

from __future__ import annotations

import pytest

from cubridge_engine.simulate import SCHEDULES, Schedule

from .conftest import ROOT, Attended, Shape, launch_attention  # type: ignore[import-not-found]

SHAPES = [
    Shape(sq=64, sk=64),
    Shape(sq=100, sk=200, causal=1),
    Shape(sq=200, sk=77, causal=1),  # rows that see no key
    Shape(h=4, hkv=2, sq=65, sk=130),
    Shape(b=2, sq=1, sk=1),
    Shape(sq=33, sk=0),
    Shape(sq=70, sk=333, causal=1),
]


def clean(result: Attended) -> None:
    assert result.run.ok, [(f.code, f.message, str(f.span)) for f in result.run.findings]
    assert not result.run.findings


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_flash_fwd_sm80(flash80, shape):
    errors = []
    for schedule in SCHEDULES:
        result = flash80(shape, schedule)
        clean(result)
        errors.append((result.error, result.lse_error))
    assert max(e for e, _ in errors) < 8e-3
    assert max(e for _, e in errors) < 1e-5
    assert len(set(errors)) == 1, "a correct kernel gives the same under every schedule"


@pytest.mark.parametrize(
    "shape", [Shape(d=32, sq=50, sk=70), Shape(d=32, h=4, hkv=2, sq=33, sk=32), Shape(d=32, sq=5, sk=0)], ids=str
)
def test_flash_fwd_scalar(scalar, shape):
    for schedule in SCHEDULES:
        result = scalar(shape, schedule, row_pad=3)
        clean(result)
        assert result.error < 1e-5
        assert result.lse_error < 1e-5


@pytest.mark.parametrize("d", [64, 128])
def test_bf16_and_wide_heads(build, d):
    text = (ROOT / "expert_kernels/flash_fwd_sm80/kernel.cu").read_text()
    module = build(text, "flash.cu", names=(f"flash_fwd_sm80<__nv_bfloat16, {d}>",))
    shape = Shape(sq=70, sk=70, d=d)
    for schedule in SCHEDULES:
        result = launch_attention(
            module, shape, tile=64, dtype="bfloat16", shared=5 * 64 * d * 2, schedule=schedule, log2=True, flag=True
        )
        clean(result)
        assert result.error < 3e-2
        assert result.lse_error < 1e-4


def test_shared_memory_is_free_of_bank_conflicts(flash80):
    result = flash80(Shape(), Schedule())
    assert result.run.bank_lines
    assert max(site.ways for site in result.run.bank_lines.values()) == 1.0


def test_the_same_kernel_without_its_swizzle_has_conflicts(flash80):
    edit = ("(chunk ^ (row / (8 / kSwaps) & (kSwaps - 1))) * 16", "chunk * 16")
    result = flash80(Shape(), Schedule(), edits=(edit,))
    clean(result)
    assert max(site.ways for site in result.run.bank_lines.values()) == 8.0
