"""Lists of KV tiles on the kernel that steps from work item to work item: the text, and hands that miss it narrowly."""

from __future__ import annotations

import os
from functools import cache

import numpy as np
import pytest

from cubridge_engine.ir.interp import execute
from cubridge_engine.lower import lower, read_back
from cubridge_engine.transfer import transfer
from cubridge_engine.transfer.tile_lists import COUNT, build_tile_list
from tests.lower.test_end_to_end import original, relift
from tests.transfer.builders import formula, make_attention, tensors_for

# The rows of the first Q tile have no key, so that its list is empty; those of the second have tiles of both kinds.
MASK = "doc[b, i] - doc[b, j] <= 1 & j <= i - 128 | i >= 300 & j < 256"
SIZES = {"B": 2, "H": 1, "Hkv": 1, "Sq": 390, "Sk": 390, "D": 64}


@cache
def adapted():
    attention = make_attention(mask=MASK, operands=("doc:B,Sk:int32",))
    lifted, source = original("flash_fwd_sm90")
    result = transfer(lifted.kernel, attention)
    return attention, result, lower(lifted, result, source).text


@cache
def inputs():
    attention, result, _ = adapted()
    tensors = tensors_for(attention, SIZES)
    tensors["doc"] = np.tile(np.arange(SIZES["Sk"]) // 100, (SIZES["B"], 1))
    given = {role: tensors[role] for role in "qkv"}
    for operand in result.operands:
        made = build_tile_list(operand.tiles, SIZES, tensors) if operand.tiles is not None else tensors[operand.name]
        given[operand.param] = made
    want, _, dead = formula(attention, tensors, SIZES)
    return given, np.where(dead[..., None], 0.0, want)


def wrong(text: bytes) -> str:
    """What is wrong with a text: a finding of the reading, or the worst error of its execution; '' when it is right."""
    _, result, _ = adapted()
    got, findings = read_back(text, result.target, result.bindings, relift, result.operands)
    if got is None or findings:
        return findings[0].message if findings else "not read"
    given, want = inputs()
    out = execute(got, given, {n: v for n, v in SIZES.items() if n != "D"}, dict(result.bindings))
    if out.findings:
        return out.findings[0].message
    error = float(np.abs(np.nan_to_num(out.o, nan=9.0) - want).max())
    return f"an error of {error:.1g}" if error > 1e-6 else ""


def test_a_list_is_followed_through_the_items():
    text = adapted()[2].decode()
    assert "return {q0, bh, kv_first, kv_first + max(1, p.kv_tiles[kv_first - 2])};" in text
    assert text.count("p.kv_tiles[tile] * Bc") == 2, "where keys are loaded and where they are masked"
    assert "|| tile < kv_partial) {" in text
    assert "kv_end" not in text, "what only the range needed is gone"
    assert wrong(adapted()[2]) == ""
    tiles = inputs()[0]["kv_tiles"]
    assert not tiles[:, 0, COUNT].any()
    assert tiles[:, 1:, COUNT].all()


MISSES = {
    "a tile is missing": ("max(1, p.kv_tiles[kv_first - 2])", "max(1, p.kv_tiles[kv_first - 2] - 1)"),
    "a tile is there twice": ("max(1, p.kv_tiles[kv_first - 2])", "max(1, p.kv_tiles[kv_first - 2] + 1)"),
    "it begins a place late": (") + 2;\n  return {q0, bh, kv_first", ") + 3;\n  return {q0, bh, kv_first"),
    "keys are masked by their position": ("kv0 = p.kv_tiles[tile] * Bc", "kv0 = tile * Bc"),
    "a partial tile is not tested": ("max(1, p.kv_tiles[item.kv_lo - 1])", "max(1, p.kv_tiles[item.kv_lo - 1]) - 1"),
    "an empty list is not tested": ("max(1, p.kv_tiles[item.kv_lo - 1])", "max(0, p.kv_tiles[item.kv_lo - 1])"),
}


FEW = ("a tile is missing", "a tile is there twice", "an empty list is not tested")
ALL = os.environ.get("CUBRIDGE_FAULTS") == "all"


@pytest.mark.parametrize("miss", MISSES if ALL else FEW)
def test_a_near_miss_is_rejected(miss):
    old, new = MISSES[miss]
    text = adapted()[2].decode()
    assert text.count(old) == 1
    assert wrong(text.replace(old, new).encode()) != ""
