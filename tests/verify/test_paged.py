"""Kernels that look rows up in pages are run on shuffled ones; a spec with pages of another size is told apart."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cubridge_engine.ir.text import parse_kernel
from cubridge_engine.transfer import transfer
from cubridge_engine.verify.bindings import Given, bind_kernel, extra_tensors
from cubridge_engine.verify.derive import choose_heads, grid_for, lengths_of_mask
from cubridge_engine.verify.inputs import Tile, twist
from cubridge_engine.verify.paged import UNUSED, in_pages, table_for
from tests.transfer.builders import STRIDED, make_attention, paging

LENGTHS = {"mask": "j < lens[b]", "operands": ("lens:B:int32",), "empty_rows": "none"}


@pytest.fixture
def kernel():
    return transfer(parse_kernel(STRIDED), make_attention(**LENGTHS, pages="block_table:16")).target


def test_the_table_is_bound_and_no_tensor_of_the_spec_is_missing(kernel) -> None:
    bound = bind_kernel(kernel, make_attention(**LENGTHS, pages="block_table:16"), Given({"causal": 0}))
    assert bound.diagnostics == ()
    assert bound.binding.pages == {"block_table": 16}
    assert bound.binding.operands == {"lens": "lens"}
    assert bound.binding.stride_params["block_table"] == {"block_table_stride_b": 0}
    sizes = {"B": 2, "H": 2, "Hkv": 1, "Sq": 3, "Sk": 40, "D": 8}
    made = extra_tensors(bound.binding, {"lens": np.array([3, 40])}, sizes)
    assert made["block_table"].shape == (2, 3)
    assert made["block_table"].dtype == np.int32


def test_pages_of_another_size_are_named(kernel) -> None:
    spec = replace(make_attention(**LENGTHS), paging=paging("block_table", 64))
    bound = bind_kernel(kernel, spec, Given({"causal": 0}))
    assert [d.code for d in bound.diagnostics] == ["CB726"]
    assert "16" in bound.diagnostics[0].message
    assert "64" in bound.diagnostics[0].message


@pytest.mark.parametrize(("dtype", "hole"), [(np.float32, np.nan), (np.uint16, 0x7FC0)])
def test_pages_that_nobody_asks_for_hold_nan(dtype, hole) -> None:
    rows = np.ones((2, 1, 20, 4), dtype)
    table = table_for({"B": 2, "Sk": 20}, 16)
    cache = in_pages(rows, table, 16)
    assert cache.shape == (4 + UNUSED, 1, 16, 4)
    unused = sorted(set(range(len(cache))) - set(table.flat))
    assert (np.isnan(cache[unused]) if dtype is np.float32 else cache[unused] == hole).all()
    last = cache[table[:, 1], :, 4:]
    assert (np.isnan(last) if dtype is np.float32 else last == hole).all(), "so do rows behind the last key"
    assert not np.array_equal(table.flat, range(table.size)), "they lie in no order"


def test_no_keys_still_have_a_page() -> None:
    assert table_for({"B": 2, "Sk": 0}, 16).shape == (2, 1)


def test_the_grid_of_a_cache_has_one_query_and_four_up_to_the_edges_of_tiles(kernel) -> None:
    spec = make_attention(**LENGTHS)
    assert lengths_of_mask(spec) == {"lens"}
    assert lengths_of_mask(make_attention("s * 0.125 + t[b]", operands=("t:B:int32",))) == frozenset()
    grid = grid_for(spec, kernel, choose_heads(spec))
    cases = {c.name: c for c in grid.cases if "lengths_by_tile" in c.twists}
    assert {name: c.Sq for name, c in cases.items()} == {"one-token": 1, "few-tokens": 4}
    case = cases["few-tokens"]
    torch = pytest.importorskip("torch")
    shapes = [(case.B, case.H, case.Sq, 8), (case.B, case.Hkv, case.Sk, 8), (case.B, case.Hkv, case.Sk, 8)]
    tensors = [*(torch.zeros(s) for s in shapes), torch.zeros(case.B, dtype=torch.int32)]
    lens = twist(spec, tensors, case, Tile(16, 16, 1.0))[3]
    assert {15, 16, 17, case.Sk, case.Sk - 1} <= set(lens.tolist())
    assert int(lens.min()) >= 1
