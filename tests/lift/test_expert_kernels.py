"""The expert kernels and kernels of other authors: golden programs that execute to attention."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cubridge_engine.ir.text import parse_kernel, print_kernel
from cubridge_engine.ir.validate import validate
from tests.lift.conftest import SCALAR, SM80, SM90, STYLES, assert_attention, lift_text

GOLDEN = Path(__file__).parent / "golden"
SOURCES = {"flash_fwd_sm80": SM80, "flash_fwd_scalar": SCALAR, "flash_fwd_sm90_plain": SM90, **STYLES}


@pytest.mark.parametrize("name", SOURCES)
def test_golden_program(name):
    lifted = lift_text(SOURCES[name])
    assert lifted.coverage.complete, (lifted.coverage.missing, [d.message for d in lifted.diagnostics])
    assert lifted.kernel is not None
    text = print_kernel(lifted.kernel)
    path = GOLDEN / f"{name}.cuir"
    if os.environ.get("CUBRIDGE_UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()
    assert parse_kernel(text) == lifted.kernel
    assert validate(lifted.kernel) == ()


@pytest.mark.parametrize("mode", ["early", "late"])
@pytest.mark.parametrize("flag", [False, True])
@pytest.mark.parametrize("shape", [(1, 2, 2, 64, 64), (2, 4, 2, 37, 100), (1, 2, 1, 130, 70), (1, 1, 1, 3, 1)])
def test_sm80_is_attention(sm80, shape, flag, mode):
    assert_attention(sm80.kernel, shape, flag=flag, mode=mode)


@pytest.mark.parametrize("shape", [(1, 2, 2, 32, 32), (2, 4, 2, 37, 100), (1, 2, 1, 70, 33)])
def test_scalar_is_attention(scalar, shape):
    assert_attention(scalar.kernel, shape)


@pytest.mark.parametrize(
    ("name", "shape", "flag"),
    [
        ("rows", (2, 2, 2, 70, 40), False),
        ("block2d", (2, 2, 2, 33, 40), False),
        ("mma_padded", (1, 4, 2, 100, 100), False),
        ("mma_padded", (1, 4, 2, 100, 100), True),
    ],
)
def test_other_styles_are_attention(name, shape, flag):
    lifted = lift_text(STYLES[name])
    assert lifted.kernel is not None
    assert_attention(lifted.kernel, shape, flag=flag)


@pytest.mark.parametrize(("text", "dims"), [(SM80, (64, 128)), (SCALAR, (32, 64))])
def test_head_dimensions(text, dims):
    for d in dims:
        lifted = lift_text(text, instantiation={"D": d})
        assert lifted.kernel is not None
        assert lifted.coverage.complete
        assert d == lifted.kernel.D
        assert_attention(lifted.kernel, (1, 2, 1, 33, 40))


def test_bfloat16_differs_only_in_its_name():
    half = lift_text(SM80, instantiation={"T": "float16"}).kernel
    bf16 = lift_text(SM80, instantiation={"T": "bfloat16"}).kernel
    assert half is not None
    assert bf16 is not None
    assert half.instantiation["T"] == "float16"
    assert bf16.instantiation["T"] == "bfloat16"
    assert half.body == bf16.body


def test_roles_and_grid(sm80):
    roles = {p.name: p.role for p in sm80.kernel.params}
    assert roles["k_stride_h"] == "stride:k.h"
    assert roles["o_stride_row"] == "stride:o.row"
    assert (roles["sq"], roles["sk"], roles["heads"], roles["kv_heads"]) == ("Sq", "Sk", "H", "Hkv")
    assert (roles["scale_log2"], roles["causal"]) == ("scale_log2", "flag")


def test_every_operation_has_its_line(sm80):
    from cubridge_engine.lift.units import operations

    for op in operations(sm80.kernel.body):
        if type(op).__name__ != "Alloc":
            assert op.origin.span is not None, op
    line = SM80[: SM80.index("s[nb][e] = exp2_approx")].count("\n")
    assert "Map" in {type(op).__name__ for op in sm80.ops_at(line)}
