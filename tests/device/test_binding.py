"""Binding tensors to arguments by role, on the CPU: addresses, strides, sizes, units, refusals."""

from __future__ import annotations

import ctypes
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from cubridge_engine.compile import Contract, Parameter, read_contract
from cubridge_engine.device import Argument, bind_arguments, sizes_of

ROOT = Path(__file__).parents[2] / "expert_kernels"
B, H, HKV, SQ, SK, D = 2, 6, 3, 5, 7, 64


@pytest.fixture
def contract() -> Contract:
    found, _ = read_contract(ROOT / "flash_fwd_sm80" / "contract.toml")
    assert found is not None
    return found


@pytest.fixture
def tensors() -> dict[str, Any]:
    half = torch.float16
    return {
        "q": torch.zeros(B, SQ, H, D, dtype=half).transpose(1, 2),
        "k": torch.zeros(B, HKV, SK, D, dtype=half),
        "v": torch.zeros(B, HKV, SK, 2 * D, dtype=half)[..., :D],
        "o": torch.zeros(B, H, SQ, D, dtype=half),
        "lse": torch.zeros(B, H, SQ),
    }


def bound(contract: Contract, tensors: dict[str, Any], **bindings: Any) -> dict[str, Argument]:
    arguments, diagnostics = bind_arguments(contract, tensors, None, bindings)
    assert diagnostics == []
    assert [a.name for a in arguments] == [p.name for p in contract.parameters]
    return {a.name: a for a in arguments}


def codes(contract: Contract, tensors: dict[str, Any], **bindings: Any) -> list[tuple[str, object]]:
    arguments, diagnostics = bind_arguments(contract, tensors, None, bindings)
    assert arguments == []
    return [(d.code, d.data["name"]) for d in diagnostics]


def test_addresses_sizes_strides_and_units(contract: Contract, tensors: dict[str, Any]) -> None:
    got = bound(contract, tensors, scale=0.125, causal=True)
    assert got["Q"].value == tensors["q"].data_ptr()
    assert got["LSE"].value == tensors["lse"].data_ptr()
    assert [got[f"q_stride_{x}"].value for x in ("b", "h", "row")] == [SQ * H * D, D, H * D]
    assert [got[f"k_stride_{x}"].value for x in ("b", "h", "row")] == [HKV * SK * D, SK * D, D]
    assert [got[f"v_stride_{x}"].value for x in ("b", "h", "row")] == [HKV * SK * 2 * D, SK * 2 * D, 2 * D]
    assert [got[x].value for x in ("sq", "sk", "heads", "kv_heads")] == [SQ, SK, H, HKV]
    assert got["scale_log2"].value == pytest.approx(0.125 / math.log(2))
    assert got["causal"].value == 1


def test_types_as_the_driver_takes_them(contract: Contract, tensors: dict[str, Any]) -> None:
    got = bound(contract, tensors, scale=0.5, causal=0)
    kinds = {name: (type(a.ctype()), a.ctype().value) for name, a in got.items()}
    assert kinds["Q"] == (ctypes.c_uint64, tensors["q"].data_ptr())
    assert kinds["k_stride_row"] == (ctypes.c_int64, D)
    assert kinds["sk"] == (ctypes.c_int32, SK)
    assert kinds["scale_log2"][0] is ctypes.c_float


def test_the_scalar_kernel_takes_the_scale_in_natural_units() -> None:
    contract, _ = read_contract(ROOT / "flash_fwd_scalar" / "contract.toml")
    assert contract is not None
    tensors = {n: torch.zeros(B, H, SQ, D) for n in ("q", "k", "v", "o")} | {"lse": torch.zeros(B, H, SQ)}
    assert bound(contract, tensors, scale=0.25)["scale"].value == 0.25


def test_extra_arguments_of_an_adapted_kernel(contract: Contract, tensors: dict[str, Any]) -> None:
    extra = (
        Parameter("slopes", "operand:slopes", "float*"),
        Parameter("bias", "operand:bias", "T*"),
        Parameter("bias_b", "stride:bias.b", "int64"),
        Parameter("bias_row", "stride:bias.row", "int64"),
        Parameter("cap", "scalar:softcap", "float32"),
    )
    bias = torch.zeros(1, H, SQ, SK, dtype=torch.float16)
    slopes = torch.zeros(H)
    adapted = contract.with_parameters(extra)
    got = bound(adapted, tensors, scale=1.0, causal=0, slopes=slopes, bias=bias, softcap=30.0)
    assert got["slopes"].value == slopes.data_ptr()
    assert (got["bias_b"].value, got["bias_row"].value) == (0, SK), "a broadcast batch does not move"
    assert got["cap"].value == 30.0
    missing = codes(adapted, tensors, scale=1.0, causal=0, slopes=slopes)
    assert missing == [("CB645", "bias"), ("CB645", "bias_b"), ("CB645", "bias_row"), ("CB645", "cap")]


def test_names_win_over_roles(contract: Contract, tensors: dict[str, Any]) -> None:
    got = bound(contract, tensors, **{"scale_log2": 3.0, "flag:causal": 1, "sk": 4})
    assert (got["scale_log2"].value, got["causal"].value, got["sk"].value) == (3.0, 1, 4)


def test_what_is_missing_is_named(contract: Contract, tensors: dict[str, Any]) -> None:
    del tensors["lse"]
    assert codes(contract, tensors) == [("CB645", "LSE"), ("CB645", "scale_log2"), ("CB645", "causal")]


def test_tensors_the_kernel_would_misread(contract: Contract, tensors: dict[str, Any]) -> None:
    tensors["k"] = tensors["k"].float()
    tensors["v"] = torch.zeros(B, HKV, D, SK, dtype=torch.float16).transpose(2, 3)
    tensors["o"] = torch.zeros(B, H, SQ, D + 1, dtype=torch.float16)[..., :D]
    tensors["lse"] = torch.zeros(B, SQ, H).transpose(1, 2)
    assert codes(contract, tensors, scale=1.0, causal=0) == [("CB646", n) for n in ("K", "V", "O", "LSE")]


def test_a_misaligned_base_is_refused(contract: Contract, tensors: dict[str, Any]) -> None:
    tensors["q"] = torch.zeros(B * H * SQ * D + 4, dtype=torch.float16)[4:].view(B, H, SQ, D)
    assert codes(contract, tensors, scale=1.0, causal=0) == [("CB646", "Q")]


def test_numbers_that_do_not_fit(contract: Contract, tensors: dict[str, Any]) -> None:
    assert codes(contract, tensors, scale=1.0, causal=0, sk=1 << 31) == [("CB649", "sk")]
    assert codes(contract, tensors, scale=1.0, causal=0.5) == [("CB649", "causal")]


def test_sizes(tensors: dict[str, Any]) -> None:
    assert sizes_of(tensors) == {"B": B, "H": H, "Hkv": HKV, "Sq": SQ, "Sk": SK, "D": D, "Dv": D}


def test_tensor_maps_describe_their_tensor() -> None:
    contract, _ = read_contract(ROOT / "flash_fwd_sm90" / "contract.toml")
    assert contract is not None
    half = torch.float16
    tensors: dict[str, Any] = {
        "q": torch.zeros(B, SQ, H, D, dtype=half).transpose(1, 2),
        "k": torch.zeros(B, HKV, 0, D, dtype=half),
        "v": torch.zeros(B, HKV, SK, 2 * D, dtype=half)[..., :D],
        "o": torch.zeros(B, H, SQ, D, dtype=half),
        "lse": torch.zeros(B, H, SQ),
        "tickets": torch.zeros(2, dtype=torch.int32),
    }
    got = bound(contract, tensors, scale=1.0, causal=0)
    q, k, v = (got[f"{name}_map"].map for name in "qkv")
    assert q is not None
    assert k is not None
    assert v is not None
    assert (q.extents, q.strides) == ((D, SQ, H, B), (2 * H * D, 2 * D, 2 * SQ * H * D))
    assert (q.box, q.swizzle, q.dtype) == ((64, 128, 1, 1), 128, "float16")
    assert v.strides == (4 * D, 4 * SK * D, 4 * HKV * SK * D)
    assert k.extents == (D, 1, HKV, B)
    assert got["q_map"].value == tensors["q"].data_ptr()
    assert got["k_map"].value == tensors["q"].data_ptr(), "a tensor without elements has no address of its own"
    assert got["tickets"].value == tensors["tickets"].data_ptr()
    del tensors["tickets"]
    assert codes(contract, tensors, scale=1.0, causal=0) == [("CB645", "tickets")]


def test_optional_arguments_are_null_where_the_caller_gives_none() -> None:
    contract, _ = read_contract(ROOT / "flash_decode" / "contract.toml")
    assert contract is not None
    half = torch.float16
    tensors: dict[str, Any] = {
        "q": torch.zeros(B, H, SQ, D, dtype=half),
        "k": torch.zeros(9, HKV, 16, D, dtype=half),
        "v": torch.zeros(9, HKV, 16, D, dtype=half),
        "o": torch.zeros(B, H, SQ, D, dtype=half),
        "lse": torch.zeros(B, H, SQ),
        "partials": torch.zeros(8),
        "arrived": torch.zeros(8, dtype=torch.int32),
    }
    got = bound(contract, tensors, scale=1.0, causal=0)
    assert [got[name].value for name in ("kv_lengths", "block_table", "table_stride_b", "page_size")] == [0, 0, 0, 0]
    table = torch.zeros(B, 5, dtype=torch.int32)
    got = bound(contract, tensors, scale=1.0, causal=0, block_table=table, page_size=16)
    assert got["block_table"].value == table.data_ptr()
    assert [got[name].value for name in ("kv_lengths", "table_stride_b", "page_size")] == [0, 5, 16]
    assert codes(contract, tensors, scale=1.0, causal=0, block_table=table.long()) == [("CB646", "block_table")]
