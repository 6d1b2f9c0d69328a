"""The masks people use, on both kernels: read, transferred, lowered, read back from the adapted text, executed there.

Each text must compute what its spec means and visit exactly the tiles that hold an attended key.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from cubridge_engine.ir.interp import execute
from cubridge_engine.lower import read_back, unified_diff
from cubridge_engine.spec import read_spec
from cubridge_engine.spec.formula import keep_mask
from cubridge_engine.spec.inputs import make_inputs
from cubridge_engine.transfer import WalkEdit
from cubridge_engine.transfer.tile_lists import COUNT, PARTIAL
from cubridge_engine.verify.bindings import Given, bind_kernel, extra_tensors, indexed_operands
from cubridge_engine.verify.derive import NUMBERS, choose_heads, fitted
from cubridge_engine.verify.grid import Case
from cubridge_engine.verify.inputs import Tile, roles, to_numpy, twist
from cubridge_engine.verify.ir_level import element_strides
from cubridge_engine.verify.prepare import formula
from tests.examples.adapted import Adapted, adapt_to

SPECS = Path(__file__).parent / "specs"
KERNELS = ("flash_fwd_scalar", "flash_fwd_sm80")
# Masks of the indices alone without holes: a range of keys leaves out every empty tile, and no list is needed.
BY_RANGE = {"causal", "sliding_window", "prefix_causal", "chunked", "dilated", "neighbourhood"}
MASKS = sorted(p.stem for p in SPECS.glob("*.py"))


@cache
def read(name: str):
    result = read_spec(str(SPECS / f"{name}.py"), time_limit=120)
    assert result.attention is not None, [d.message for d in result.diagnostics]
    return result


@cache
def adapted(name: str, kernel: str) -> Adapted:
    result = read(name)
    return adapt_to(result.attention, result.program, kernel)


@cache
def bound(name: str, kernel: str):
    """The adapted text read back, and its binding."""
    one = adapted(name, kernel)

    def lift(text: bytes):
        again = one.lift(text.decode())
        return again.kernel, again.diagnostics

    got, problems = read_back(one.text.encode(), one.result.target, one.result.bindings, lift)
    assert problems == (), [d.message for d in problems]
    operands = {op.param: op.name for op in one.result.operands}
    found = bind_kernel(got, one.attention, Given(one.result.bindings, operands))
    assert found.diagnostics == ()
    return got, found.binding


def problems(attention, kernel):
    """Whole tiles, then ragged lengths, then few queries; ids and bounds of the last two in odd orders."""
    h, hkv = choose_heads(attention).few
    br, bc = kernel.Br, kernel.Bc
    lengths = [(4 * br, 4 * bc), (3 * br + 5, 3 * bc + 5), (br + 3, 5 * bc + 7)]
    twists = [(), ("numbers_shuffled",), ("numbers_by_tile",)]
    for n, ((sq, sk), names) in enumerate(zip(lengths, twists, strict=True)):
        case = fitted(Case(f"case {n}", "", 2, h, hkv, sq, sk, kernel.D, names, seed=n), attention)
        assert case is not None
        yield case


def inputs_of(attention, kernel, case):
    tensors = make_inputs(
        attention, case.sizes, "float64" if attention.input("q").dtype == "float64" else None, case.seed
    )
    return twist(attention, tensors, case, Tile(kernel.Br, kernel.Bc, 0.125))


def live_tiles(attention, arrays, sizes, br, bc) -> tuple[int, int]:
    """Tiles with an attended key, and Q tiles without one."""
    keep = keep_mask(attention, arrays, sizes)
    parts = np.logical_or.reduceat(keep, np.arange(0, sizes["Sk"], bc), axis=3)
    live = np.logical_or.reduceat(parts, np.arange(0, sizes["Sq"], br), axis=2)
    return int(live.sum()), int((~live.any(axis=3)).sum())


@pytest.mark.parametrize(("name", "kernel"), [(n, k) for n in MASKS for k in KERNELS])
def test_the_adapted_text_means_the_mask_and_visits_no_empty_tile(name, kernel):
    attention = read(name).attention
    got, binding = bound(name, kernel)
    for case in problems(attention, got):
        tensors = inputs_of(attention, got, case)
        arrays = [to_numpy(t) for t in tensors]
        by_role = roles(attention, tensors)
        extra = extra_tensors(binding, by_role, case.sizes)
        values = {**binding.values, **element_strides(binding, extra)}
        given = {r: by_role[r] for r in "qkv"} | indexed_operands(got, binding, extra)
        out = execute(got, given, case.sizes, values)
        assert not out.findings
        want, lse = formula(attention, arrays)
        live = ~np.isneginf(lse)
        np.testing.assert_allclose(out.o[live], want[live], rtol=1e-6, atol=1e-8)
        assert (out.o[~live] == 0).all()
        wanted, idle = live_tiles(attention, arrays, case.sizes, got.Br, got.Bc)
        # A Q tile without keys may visit one tile, where the two ends of its range cross inside it.
        most = wanted if binding.tiles else wanted + idle
        assert wanted <= out.tiles <= most, "an empty tile is visited, or one with a key is not"


@pytest.mark.parametrize("name", MASKS)
def test_a_list_is_asked_for_only_where_it_serves(name):
    one = adapted(name, "flash_fwd_sm80")
    lists = [o for o in one.result.operands if o.tiles is not None]
    assert bool(lists) == (name not in BY_RANGE)
    assert bool(lists) == any(isinstance(edit, WalkEdit) for _, edit in one.result.edits)
    dense = {axis for o in lists for axis in o.axes} & {"Sq", "Sk"}
    assert not dense, "a list never has the extent of the scores"


# What a hurried hand would write in place of a piece of the adapted text.
CARELESS = {
    "flash_fwd_sm80": {
        "the prefetch takes the same tile again": ("kv_list[tile + 3]", "kv_list[tile + 2]"),
        "the first tile is tile 0": ("0, sk, kv_list[2] * Bc", "0, sk, 0"),
        "the columns are counted, not looked up": ("kv0 = kv_list[tile + 2] * Bc", "kv0 = tile * Bc"),
        "a partial tile is not tested": ("tile < kv_partial", "tile + 1 < kv_partial"),
        "one tile is left out": ("n_tiles = kv_list[0]", "n_tiles = kv_list[0] - 1"),
        "ids are compared for order": ("row_document != col_document", "row_document < col_document"),
        "the row of another Q tile": ("blockIdx.x * kv_tiles_stride_row", "(blockIdx.x + 1) * kv_tiles_stride_row"),
        "the ids of the first batch": ("document + b * document_stride_b", "document + 0 * document_stride_b"),
        "the slot follows the tile": (
            "const int stage = tile & 1;\n    const int kv0",
            "const int stage = kv_list[tile + 2] & 1;\n    const int kv0",
        ),
        "causal off by one": ("col > row)", "col >= row)"),
    },
    "flash_fwd_scalar": {
        "the columns are counted, not looked up": ("kv_list[t + 2] * Bc", "t * Bc"),
        "a partial tile is not tested": ("t < kv_partial", "t + 1 < kv_partial"),
        "one tile is left out": ("kv_count = kv_list[0]", "kv_count = kv_list[0] - 1"),
        "ids are compared for order": ("row_document != col_document", "row_document > col_document"),
        "the row of another Q tile": ("blockIdx.x * kv_tiles_stride_row", "0 * kv_tiles_stride_row"),
    },
}


@pytest.mark.parametrize(("kernel", "what"), [(k, what) for k in KERNELS for what in CARELESS[k]])
def test_a_careless_hand_is_caught(kernel, what):
    one = adapted("causal_document", kernel)
    old, new = CARELESS[kernel][what]
    assert old in one.text, "the text has changed: say what a careless hand would do now"
    outcome, unbound = one.check(one.text.replace(old, new))
    assert not outcome.passed or unbound, what


def test_the_text_itself_passes_the_same_check():
    outcome, unbound = adapted("causal_document", "flash_fwd_sm80").check(
        adapted("causal_document", "flash_fwd_sm80").text
    )
    assert outcome.passed
    assert not unbound


def test_the_grid_has_ids_in_every_order():
    one = adapted("causal_document", "flash_fwd_sm80")
    outcome, _ = one.check(one.text)
    assert {f"mask-{name.replace('_', '-')}" for name in NUMBERS} <= {case.name for case in outcome.cases}


@pytest.mark.parametrize("wrong", ["ids[b, i] <= ids[b, j]", "ids[b, i] == ids[b, j - 1]", "ids[b, i] == ids[b, i]"])
def test_a_list_for_another_mask_is_caught(wrong):
    """The list and the test agree with each other, and not with the spec."""
    from cubridge_engine.ir.text_expr import parse_expr

    one = adapted("causal_document", "flash_fwd_sm80")
    mask = parse_expr(f"{wrong.replace('ids', 'document')} & j <= i")
    other = one.adapted_to(replace(one.attention, mask=mask))
    outcome, unbound = other.check(other.text)
    assert not outcome.passed or unbound


def test_rows_of_the_list_say_how_many_tiles_are_tested():
    attention = read("causal_document").attention
    got, binding = bound("causal_document", "flash_fwd_sm80")
    case = next(iter(problems(attention, got)))
    by_role = roles(attention, inputs_of(attention, got, case))
    (rows,) = (extra_tensors(binding, by_role, case.sizes)[p] for p in binding.tiles)
    assert rows.dtype == np.int32
    assert rows.nbytes <= 4 * rows[..., 0].size * (2 + -(-case.Sk // got.Bc))
    assert (rows[..., PARTIAL] <= rows[..., COUNT]).all()
    assert (rows[..., PARTIAL] > 0).any(), "the diagonal cuts a tile"


@pytest.mark.parametrize("kernel", KERNELS)
def test_golden(kernel):
    """What a user sees: the change of a kernel that follows documents."""
    one = adapted("causal_document", kernel)
    diff = unified_diff("kernel.cu", one.source.data, one.text.encode(), context=0)
    path = Path(__file__).parent / "golden" / f"causal_document_{kernel}.diff"
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(diff)
    assert diff == path.read_text()


def test_a_list_is_known_by_how_the_loop_uses_it():
    """No header, no name: an adapted file is verified as it stands."""
    one = adapted("causal_document", "flash_fwd_sm80")
    again = one.lift(one.text.replace("kv_tiles", "whatever"))
    found = bind_kernel(again.kernel, one.attention, Given(one.result.bindings))
    assert found.diagnostics == ()
    assert {p: tiles.axes for p, tiles in found.binding.tiles.items()} == {"whatever": ("B", "Q tiles", "entries")}
    assert found.binding.stride_params["whatever"] == {"whatever_stride_b": 0, "whatever_stride_row": 1}


def test_what_only_the_old_bound_needed_is_gone():
    text = adapted("causal_document", "flash_fwd_sm80").text
    assert "kv_end" not in text


def test_the_header_says_what_the_caller_must_make():
    (line,) = (x for x in adapted("causal_document", "flash_fwd_sm80").lowered.header_lines if " tiles " in x)
    assert "kv_tiles = int32[B, Q tiles, entries]" in line
    assert "4 * B * ceil(Sq / 64) * (2 + ceil(Sk / 64)) bytes" in line
