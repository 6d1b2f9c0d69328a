"""Tile lists against brute force over the dense mask: which tiles, of which class, in which order, for any sizes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cubridge_engine.ir.evaluate import evaluate
from cubridge_engine.ir.text import parse_kernel
from cubridge_engine.ir.text_expr import parse_expr
from cubridge_engine.transfer import tile_lists, transfer
from cubridge_engine.transfer.holes import exact_range, reads_positions
from cubridge_engine.transfer.tile_lists import COUNT, FIRST, PARTIAL, build_tile_list, tile_list_of
from tests.transfer.builders import FLASH, make_attention

MASKS = [
    "i >= j",
    "i >= j & i - j <= 12",
    "i >= j & (j < 3 | i - j < 9)",
    "abs(i - j) <= 40 & (i - j) % 24 == 0",
    "(i // 16 - j // 16) % 3 == 0",
    "i + Sk - Sq >= j",
    "j < lens[b]",
    "ids[b, i] == ids[b, j]",
    "i >= j & i < last[b, h, j]",
    "h % 2 == 0 | i >= j",
    "j > i + 5",
]


def dense(mask, sizes, operands, b, h):
    env = {**sizes, "b": b, "h": h, "hk": h // (sizes["H"] // sizes["Hkv"])}
    env |= {"i": np.arange(sizes["Sq"])[:, None], "j": np.arange(sizes["Sk"])[None, :]}
    return np.broadcast_to(np.asarray(evaluate(mask, env, operands), dtype=bool), (sizes["Sq"], sizes["Sk"]))


def expected(keep, q0, br, bc):
    """(partial tiles, whole tiles) of a Q tile, element by element."""
    rows = keep[q0 : q0 + br]
    partial, whole = [], []
    for n, start in enumerate(range(0, keep.shape[1], bc)):
        part = rows[:, start : start + bc]
        if part.any():
            (whole if part.all() and part.shape[1] == bc else partial).append(n)
    return partial, whole


def compare(mask, sizes, operands, br, bc):
    made = tile_list_of(mask, br, bc)
    rows = build_tile_list(made, sizes, operands)
    assert rows.dtype == np.int32
    assert rows.flags.c_contiguous
    assert rows.shape[-1] >= FIRST + 1
    shape = [sizes[a] for a in ("B", "H") if a in made.axes]
    rows = rows.reshape(*(sizes[a] if a in made.axes else 1 for a in ("B", "H")), *rows.shape[len(shape) :])
    for b in range(sizes["B"]):
        for h in range(sizes["H"]):
            keep = dense(mask, sizes, operands, b, h)
            for n, q0 in enumerate(range(0, sizes["Sq"], br)):
                row = rows[b % rows.shape[0], h % rows.shape[1], n].tolist()
                partial, whole = expected(keep, q0, br, bc)
                assert row[COUNT] == len(partial) + len(whole)
                assert row[PARTIAL] == len(partial)
                assert row[FIRST : FIRST + row[COUNT]] == partial + whole
                assert not any(row[FIRST + row[COUNT] :])


def data(mask, sizes, seed):
    rng = np.random.default_rng(seed)
    return {
        "lens": rng.integers(0, sizes["Sk"] + 1, sizes["B"]),
        "ids": rng.integers(0, 4, (sizes["B"], max(sizes["Sq"], sizes["Sk"]))),
        "last": rng.integers(0, sizes["Sq"] + 1, (sizes["B"], sizes["H"], sizes["Sk"])),
    }


@pytest.mark.parametrize("text", MASKS)
@pytest.mark.parametrize(("sq", "sk"), [(64, 64), (70, 70), (33, 100), (100, 33), (1, 90), (5, 0), (0, 5)])
def test_every_tile_and_class_is_that_of_brute_force(text, sq, sk):
    mask = parse_expr(text)
    sizes = {"B": 2, "H": 4, "Hkv": 2, "Sq": sq, "Sk": sk}
    compare(mask, sizes, data(mask, sizes, sq), 16, 16)
    compare(mask, sizes, data(mask, sizes, sk), 24, 8)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_random_masks_of_random_sizes(given_data):
    """Any bool tensor per batch and head, mostly empty so that all classes occur."""
    size = st.integers(1, 60)
    sq, sk, br, bc = (given_data.draw(s) for s in (size, size, st.integers(1, 20), st.integers(1, 20)))
    rng = np.random.default_rng(given_data.draw(st.integers(0, 1 << 30)))
    blocks = rng.random((2, 2, -(-sq // 8), -(-sk // 8))) < 0.4
    keep = np.repeat(np.repeat(blocks, 8, axis=2), 8, axis=3)[..., :sq, :sk] & (rng.random((2, 2, sq, sk)) < 0.97)
    sizes = {"B": 2, "H": 2, "Hkv": 2, "Sq": sq, "Sk": sk}
    compare(parse_expr("keep[b, h, i, j]"), sizes, {"keep": keep}, br, bc)


@pytest.mark.parametrize("text", ["i >= j & i - j <= 12", "ids[b, i] == ids[b, j]"])
def test_bands_make_no_difference(text, monkeypatch):
    """Long sequences are looked at in bands of rows and columns."""
    monkeypatch.setattr(tile_lists, "_BAND", 100)
    monkeypatch.setattr(tile_lists, "_COLUMNS", 24)
    sizes = {"B": 2, "H": 2, "Hkv": 1, "Sq": 75, "Sk": 75}
    compare(parse_expr(text), sizes, data(None, sizes, 3), 16, 8)


def test_a_list_has_the_axes_that_the_mask_depends_on():
    axes = {text: tile_list_of(parse_expr(text), 16, 16).axes[:-2] for text in MASKS}
    assert axes["i >= j"] == ()
    assert axes["j < lens[b]"] == ("B",)
    assert axes["i >= j & i < last[b, h, j]"] == ("B", "H")
    assert axes["h % 2 == 0 | i >= j"] == ("H",)


@pytest.mark.parametrize(
    ("text", "holes"),
    [
        ("i >= j", False),
        ("i >= j & i - j <= 100", False),
        ("abs(i - j) <= 70", False),
        ("j < 40 | i >= j", False),
        ("i // 48 == j // 48", False),
        ("(i - j) % 4 == 0", False),
        ("i >= j & (j < 4 | i - j < 40)", True),
        ("(i // 64 - j // 64) % 3 == 0", True),
        ("i >= j & (i // 16 - j // 16) % 64 == 0", True),
    ],
)
def test_holes_are_seen_in_masks_of_the_indices(text, holes):
    mask = parse_expr(text)
    types = {"q0": "int", "kv0": "int", "Br": "int", "Bc": "int"}
    attention = make_attention(mask=text)
    assert not reads_positions(mask)
    assert exact_range(mask, attention, (16, 16), types)[1] != holes


def test_without_a_place_for_a_list_every_tile_is_visited_and_it_is_said():
    attention = make_attention(mask="ids[b, i] == ids[b, j]", operands=("ids:B,Sk:int32",))
    result = transfer(parse_kernel(FLASH), attention, tile_lists=False)
    assert result.target is not None
    assert [d.code for d in result.diagnostics if d.code == "CB314"] == ["CB314"]
    assert not any(o.tiles for o in result.operands)


def test_the_list_and_its_strides_come_last_in_the_signature():
    attention = make_attention(mask="ids[b, i] == ids[b, j]", operands=("ids:B,Sk:int32",))
    names = [p.name for p in transfer(parse_kernel(FLASH), attention).target.params]
    assert names[-5:] == ["ids", "ids_stride_b", "kv_tiles", "kv_tiles_stride_b", "kv_tiles_stride_row"]
