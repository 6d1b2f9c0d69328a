"""The parts that localisation rests on: tagged inputs, fits of weights to keys, shuffles, and one finding per cause."""

from __future__ import annotations

import numpy as np
import pytest

from cubridge_engine.check.causes import new_causes, undecided_left
from cubridge_engine.check.model import Finding, Kind
from cubridge_engine.check.shuffles import wrong_shuffle
from cubridge_engine.check.tags import Tags, capacity, tagged_inputs
from cubridge_engine.check.watching import one_per_cause
from cubridge_engine.check.weight_keys import exchange, row_offset, shifts_of
from cubridge_engine.diagnostics import Diagnostic, Related, Severity, Span
from cubridge_engine.simulate.model import Imm, Instruction, Reg

SIZES = {"B": 1, "H": 2, "Hkv": 1, "Sq": 70, "Sk": 90, "D": 64, "Dv": 64}


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_tags_are_all_different_and_found_again(dtype: str) -> None:
    tensors = tagged_inputs(SIZES, dtype)
    both = np.concatenate([tensors["k"].ravel(), tensors["v"].ravel()])
    assert len(np.unique(both)) == len(both)
    assert len(np.unique(tensors["q"])) == tensors["q"].size
    kept = tensors["k"].astype(np.float16 if dtype == "float16" else np.float32)
    assert (kept == tensors["k"]).all()
    found = Tags(tensors["k"], dtype).find(tensors["k"][0, 0, 5:7, 10:20].astype(np.float32))
    assert found.known.all()
    assert (found.row == [[5], [6]]).all()
    assert (found.column == np.arange(10, 20)).all()
    assert not Tags(tensors["k"], dtype).find(tensors["v"].astype(np.float32)).known.any()


def test_tags_are_found_through_a_scale() -> None:
    tensors = tagged_inputs(SIZES, "float16")
    scaled = (tensors["q"][0, 1].astype(np.float32) * np.float32(0.125)).astype(np.float16).astype(np.float32)
    found = Tags(tensors["q"], "float16", (1.0, 0.125)).find(scaled)
    assert (found.row[found.known] == np.nonzero(found.known)[0]).all()
    assert found.known.mean() > 0.9


def test_too_few_numbers_are_refused() -> None:
    assert capacity("bfloat16") == 0
    with pytest.raises(ValueError, match="not enough"):
        tagged_inputs({**SIZES, "Sk": 4096}, "float16")


def _weights() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    logits = np.random.default_rng(3).standard_normal((32, 32))
    weights = np.exp(logits[:16, :16] - logits[:16].max(axis=1, keepdims=True))
    return weights, logits, np.arange(16)


def test_weights_of_their_keys_fit_and_exchanged_ones_are_explained() -> None:
    weights, logits, index = _weights()
    assert not shifts_of(weights, logits, index, index).wrong.any()
    assert exchange(weights[:, index ^ 1], logits, index, index).startswith("the weights of neighbouring keys")
    assert "0..7 and 8..15" in exchange(weights[:, index ^ 8], logits, index, index)
    mixed = np.random.default_rng(4).permutation(16)
    assert shifts_of(weights[:, mixed], logits, index, index).wrong.any()
    assert exchange(weights[:, mixed], logits, index, index) == ""


def test_an_offset_between_weights_and_rows_is_found_only_where_it_is_one() -> None:
    _, logits, _ = _weights()
    by_row = {n: float(np.exp(logits[3, n] - 2)) for n in range(12)}
    assert row_offset(logits[None], by_row, 16) == 0
    assert row_offset(logits[None], {n + 2: x for n, x in by_row.items()}, 16) == 2
    noise = np.random.default_rng(5).uniform(0.1, 1, 12)
    assert row_offset(logits[None], dict(enumerate(noise.tolist())), 16) is None


def _shuffle(mask: int, op: str) -> list[Instruction]:
    where = (None, False, 1, None)
    args = (Reg("%r1"), Reg("%r0"), Imm(mask), Imm(31), Imm(0xFFFFFFFF))
    code = [Instruction("shfl.sync.bfly.b32", ("shfl", "sync", "bfly", "b32"), args, *where)]
    moved = Instruction("mov.b32", ("mov", "b32"), (Reg("%f1"), Reg("%r1")), *where)
    used = Instruction(f"{op}.f32", (op, "f32"), (Reg("%f2"), Reg("%f0"), Reg("%f1")), *where)
    return [*code, moved, used]


def test_a_reduction_stays_in_its_row_and_reaches_all_its_lanes() -> None:
    quads = {0: np.repeat(np.arange(8), 4)}
    whole = [*_shuffle(1, "max"), *_shuffle(2, "max"), *_shuffle(2, "add"), *_shuffle(1, "add")]
    assert wrong_shuffle(whole, quads) is None
    mixing = wrong_shuffle([*_shuffle(1, "max"), *_shuffle(4, "max")], quads)
    assert mixing is not None
    assert (mixing.step, mixing.site) == ("m", 3)
    missing = wrong_shuffle(_shuffle(1, "add"), quads)
    assert missing is not None
    assert "2 of the 4 lanes" in missing.cause
    assert wrong_shuffle(_shuffle(16, "xor"), quads) is None
    assert wrong_shuffle(_shuffle(16, "max"), {0: np.full(32, -1)}) is None


def _span(line: int) -> Span:
    return Span("k.cu", 0, 1, line, 0, line, 1)


def _said(code: str, line: int, *others: int) -> Diagnostic:
    related = tuple(Related(_span(n), "the other access") for n in others)
    return Diagnostic(code, code, Severity.ERROR, _span(line), related=related)


def _finding(code: str, kind: Kind, line: int, *others: int) -> Finding:
    return Finding(_said(code, line, *others), kind)


def test_races_with_a_common_line_are_one_and_nothing_is_said_behind_a_barrier_that_is_not_reached() -> None:
    races = [
        _said("CB516", 4, 9),  # through the end of a loop
        _said("CB516", 9, 5),  # a line in common with it
        _said("CB516", 7, 30),  # through the end of a loop, too
        _said("CB516", 21, 20),
        _said("CB527", 24, 18),  # around the one before: a barrier between 20 and 21 orders both
        _said("CB516", 50, 41),
        _said("CB513", 9),
    ]
    assert one_per_cause(races) == [races[0], races[3], races[5], races[6]]
    barrier = _said("CB519", 7)
    assert one_per_cause([*races, barrier, _said("CB520", 8)]) == [barrier]


def test_what_reading_named_is_not_said_again() -> None:
    reading = [_finding("CB851", "barrier", 4, 9), _finding("CB869", "interface", 1)]
    watched = [
        _finding("CB516", "pipeline", 9, 30),
        _finding("CB516", "pipeline", 50, 51),
        _finding("CB880", "mask", 12),
    ]
    assert new_causes(reading, watched) == watched[1:]
    softmax = [_finding("CB861", "softmax", 40)]
    assert new_causes(softmax, watched) == watched[:2]
    assert new_causes([], watched) == watched


def test_an_expectation_decides_between_a_mask_and_a_loop_that_disagree() -> None:
    reading = [_finding("CB864", "range", 182), _finding("CB858", "memory", 30)]
    wrong_mask = [_finding("CB882", "mask", 261)]
    assert undecided_left(reading, wrong_mask) == reading[1:]
    assert undecided_left(reading, [_finding("CB882", "softmax", 300)]) == reading
    assert undecided_left(reading, []) == reading
