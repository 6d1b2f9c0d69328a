"""Kernels written by others' habits: the places that edits take in them, as golden diffs that are read again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cubridge_engine.ir.anchors import Anchors
from cubridge_engine.lift import lift
from cubridge_engine.lower import identifiers, lower, read_back, unified_diff
from cubridge_engine.source import parse, with_includes
from cubridge_engine.transfer import transfer
from tests.ladder.rungs import source_of
from tests.transfer.builders import make_attention

GOLDEN = Path(__file__).parent / "golden"
MASK = "j <= i + (Sk - Sq) & j > i + (Sk - Sq) - 40"
ALL = {
    "score": "20.0 * tanh(s * 0.125 / 20.0)",
    "mask": MASK,
    "sink": "sinks[h]",
    "operands": ("sinks:H:float32",),
    "head_map": "h",
    "empty_rows": "computed",
}
CASES = {
    # The score is scaled and masked in one statement, and the kernel is instantiated by name.
    "split_statement": ("half2_math", {**ALL, "head_map": "h // (H // Hkv)"}),
    # Scores, maximum and sum in shared memory; the maximum starts at -inf, unguarded.
    "wmma_safe_start": ("wmma", {"mask": MASK, "head_map": "h"}),
    # Both states in lists of a declaration; the score in a conditional, in nested loops.
    "listed_states": ("mma_padded", {**ALL, "head_map": "h // (H // Hkv)"}),
    # One length; the mask is an `if` on a local that an array takes later.
    "one_length": ("thread_per_row", {**ALL, "score": "20.0 * tanh(s * 0.17677669529663687 / 20.0)"}),
    # The fill is the number that the maximum starts from: rows without a key would count every masked one.
    "other_fill": (
        "unnormalised_rows",
        {"score": "s * 0.17677669529663687", "mask": "j <= i + (Sk - Sq)", "head_map": "h"},
    ),
}


def adapted(rung, spec):
    source = source_of(rung)
    lifted = lift(source, remember=False)
    found: Anchors = lifted.anchors
    result = transfer(
        lifted.kernel,
        make_attention(**spec),
        reserved=identifiers(source),
        tile_lists=found.kv_loop.walk is not None,
        pages=False,
        element_test=bool(found.mask),
    )
    return lower(lifted, result, source), result, source


@pytest.mark.parametrize("name", CASES)
def test_golden(name):
    lowered, result, source = adapted(*CASES[name])
    assert [d.message for d in (*result.diagnostics, *lowered.diagnostics) if d.severity.name == "ERROR"] == []
    diff = unified_diff("kernel.cu", source.data, lowered.text, context=0)
    path = GOLDEN / f"{name}.diff"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_bytes(diff.encode())
    assert diff == path.read_bytes().decode()  # one of them has other line ends

    def again(text):
        lifted = lift(with_includes(parse(source.path, text)), remember=False)
        return lifted.kernel, lifted.diagnostics

    _, problems = read_back(lowered.text, result.target, result.bindings, again, result.operands)
    assert [d.message for d in problems] == []


NEAR = {
    "split_statement": ("40", "41", "mask"),
    "wmma_safe_start": ("first + tid", "first", "mask"),
    "listed_states": ("sinks[hd]", "sinks[0]", "row maximum"),
}


@pytest.mark.parametrize("name", NEAR)
def test_a_text_that_means_something_else_is_found(name):
    old, new, word = NEAR[name]
    lowered, result, source = adapted(*CASES[name])
    text = lowered.text.decode()
    assert text.count(old) >= 1
    changed = text.replace(old, new).encode()

    def again(data):
        lifted = lift(with_includes(parse(source.path, data)), remember=False)
        return lifted.kernel, lifted.diagnostics

    _, problems = read_back(changed, result.target, result.bindings, again, result.operands)
    assert problems
    assert any(word in d.message or d.code == "CB406" for d in problems), [d.message for d in problems]
