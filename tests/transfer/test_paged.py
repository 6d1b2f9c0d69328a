"""Rule `paged`: rows of k and v are looked up in a table of pages, or a copy is refused, with its bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cubridge_engine.ir.interp import execute
from cubridge_engine.ir.nodes import Copy
from cubridge_engine.ir.text import parse_kernel, print_kernel
from cubridge_engine.lift import lift
from cubridge_engine.source import parse
from cubridge_engine.transfer import transfer
from cubridge_engine.transfer.rules.paged import pages_sound
from cubridge_engine.transfer.structure import walk_ops
from cubridge_engine.transfer.tile_lists import build_tile_list
from cubridge_engine.verify.paged import gathered, in_pages, table_for

from .builders import FLASH, STRIDED, formula, make_attention, tensors_for

LENGTHS = {"mask": "j < lens[b]", "operands": ("lens:B:int32",)}
CAUSAL = {"mask": "j <= i + lens[b] - Sq", "operands": ("lens:B:int32",)}
STREAMING = {"mask": "j < lens[b] & (j < 3 | j >= lens[b] - 12)", "operands": ("lens:B:int32",)}


@pytest.fixture(scope="module")
def flash():
    return parse_kernel(STRIDED)


def in_pages_of(target, tensors, table, size):
    return tensors | {role: in_pages(tensors[role], table, size) for role in "kv"} | {"block_table": table}


@pytest.mark.parametrize("size", [4, 16, 64])
@pytest.mark.parametrize("spec", [LENGTHS, CAUSAL, STREAMING], ids=["lengths", "causal", "streaming"])
def test_the_target_computes_the_spec_from_shuffled_pages(flash, spec, size):
    attention = make_attention(**spec, pages=f"block_table:{size}", empty_rows="zero")
    result = transfer(flash, attention)
    assert result.target is not None
    for sq, sk in ((1, 64), (4, 128), (33, 80)):
        sizes = {"B": 3, "H": 2, "Hkv": 2, "Sq": sq, "Sk": sk, "D": 8}
        tensors = tensors_for(attention, sizes)
        tensors["lens"] = np.array([sk, sk // 2 + 1, 1])
        table = table_for(sizes, size)
        given = in_pages_of(result.target, tensors, table, size)
        listed = [op for op in result.operands if op.tiles is not None]
        assert bool(listed) == (spec is STREAMING)
        given |= {op.param: build_tile_list(op.tiles, sizes, tensors) for op in listed}
        out = execute(result.target, given, sizes, result.bindings, async_mode="late")
        want, _, dead = formula(attention, tensors, sizes)
        assert not out.findings
        np.testing.assert_allclose(
            np.where(dead[..., None], 0.0, out.o), np.where(dead[..., None], 0.0, want), atol=1e-9
        )


def test_a_table_of_other_pages_gives_other_numbers(flash):
    attention = make_attention(**LENGTHS, pages="block_table:16")
    target = transfer(flash, attention).target
    sizes = {"B": 2, "H": 2, "Hkv": 2, "Sq": 4, "Sk": 64, "D": 8}
    tensors = tensors_for(attention, sizes)
    tensors["lens"] = np.array([64, 40])
    table = table_for(sizes, 16)
    given = in_pages_of(target, tensors, table, 16)
    right = execute(target, given, sizes, {"causal": 0, "c": 0.2}).o
    wrong = execute(target, {**given, "block_table": table[::-1]}, sizes, {"causal": 0, "c": 0.2}).o
    assert np.abs(right - wrong).max() > 0.1


def test_pages_survive_the_text_form(flash):
    target = transfer(flash, make_attention(**LENGTHS, pages="block_table:16")).target
    copies = [op for op in walk_ops(target.body) if isinstance(op, Copy)]
    assert {(op.tensor, op.table, op.page) for op in copies} == {
        ("q", "", 0),
        ("k", "block_table", 16),
        ("v", "block_table", 16),
    }
    assert parse_kernel(print_kernel(target)) == target


def test_caches_that_would_have_to_be_widened_are_refused_with_the_width(flash):
    result = transfer(flash, make_attention(**LENGTHS, pages="block_table:16"), padded=True)
    (problem,) = [d for d in result.diagnostics if d.code == "CB321"]
    assert "its rows are 8 wide" in problem.message
    assert "4096 bytes" in problem.message


def test_tensor_maps_are_refused_by_name():
    path = Path(__file__).parents[2] / "expert_kernels" / "flash_fwd_sm90_plain" / "kernel.cu"
    kernel = lift(parse("kernel.cu", path.read_bytes())).kernel
    attention = make_attention(**LENGTHS, pages="block_table:16", specialised={"D": kernel.D})
    (problem,) = [d for d in transfer(kernel, attention).diagnostics if d.code == "CB321"]
    assert "tensor maps (TMA)" in problem.message


def test_gathering_is_the_inverse_of_paging():
    sizes = {"B": 2, "Sk": 37}
    rows = np.random.default_rng(0).standard_normal((2, 3, 37, 4))
    table = table_for(sizes, 16)
    assert table.shape == (2, 3)
    assert len(set(table.flat)) == table.size
    cache = in_pages(rows, table, 16)
    assert cache.shape[0] > table.size, "pages that no table names lie between"
    np.testing.assert_array_equal(gathered(cache, table)[:, :, :37], rows)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (FLASH, "no batch stride of K"),
        (STRIDED.replace("strides v = v_b", "strides v = H"), "no batch stride of V"),
        (STRIDED.replace("limit=Sk", "limit=none"), "rows up to their number"),
    ],
)
def test_a_kernel_that_cannot_look_rows_up_is_refused_with_the_bytes(text, why):
    result = transfer(parse_kernel(text), make_attention(**LENGTHS, pages="block_table:16"))
    assert result.target is None
    (problem,) = [d for d in result.diagnostics if d.code == "CB321"]
    assert why in problem.message
    assert "4096 bytes" in problem.message


@pytest.mark.parametrize(("fields", "place"), [({}, False), ({"specialised": {"D": 4}}, True)])
def test_no_place_in_the_text_and_no_fitting_width_are_refused(flash, fields, place):
    attention = make_attention(**LENGTHS, pages="block_table:16", **fields)
    assert "CB321" in [d.code for d in transfer(flash, attention, pages=place, rules=["paged"]).diagnostics]


def test_the_checks_can_fail(flash):
    target = transfer(flash, make_attention(**LENGTHS, pages="block_table:16")).target
    assert all(c.passed for c in pages_sound(target, "block_table", 16))
    assert [c.passed for c in pages_sound(target, "block_table", 8)] == [False, True, True]
    assert [c.passed for c in pages_sound(target, "other_table", 16)] == [False, True, True]
