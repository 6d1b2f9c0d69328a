"""The grid can fail: whole wrong outputs and nudged constants must be rejected, and a blind grid says so."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cubridge_engine.ir.expr import Const
from cubridge_engine.verify.far import same_everywhere
from cubridge_engine.verify.power import Problem, mutations, nudged, power
from cubridge_engine.verify.prepare import formula


def problem(attention, sq: int = 20, sk: int = 20, seed: int = 0) -> tuple[Problem, list]:
    rng = np.random.default_rng(seed)
    arrays = [rng.standard_normal((1, 2, n, 8)) for n in (sq, sk, sk)]
    roles = dict(zip("qkv", arrays, strict=True))
    want, _ = formula(attention, arrays)
    sizes = {"B": 1, "H": 2, "Hkv": 2, "Sq": sq, "Sk": sk, "D": 8}
    return Problem("case", roles, sizes, want, None), arrays


def checks(attention, **kwargs):
    one, arrays = problem(attention, **kwargs)
    return power(attention, [one], lambda changed, _: formula(changed, arrays)[0], lambda _: np.arange(2), "bfloat16")


def test_every_constant_of_a_windowed_softcap_is_seen(make_attention) -> None:
    spec = make_attention("5.0 * tanh(s * 0.5 / 5.0)", "(j <= i) & (j > i - 7)")
    done = {c.what: c.rejected for c in checks(spec)}
    assert done["an all-zero output"]
    assert done["the mean of V"]
    assert done["mask: 7 -> 8"]
    assert len(done) >= 5
    assert all(done.values())


def test_a_window_longer_than_the_case_is_not_seen(make_attention) -> None:
    done = {c.what: c.rejected for c in checks(make_attention("s", "(j <= i) & (j > i - 70)"))}
    assert done["mask: 70 -> 71"] is False


def test_a_spec_that_ignores_its_scores_has_no_power(make_attention) -> None:
    done = {c.what: c.rejected for c in checks(make_attention("s * 0.0"))}
    assert done["an all-zero output"]
    assert done["the mean of V"] is False


def test_nudges() -> None:
    assert nudged(3) == 4
    assert nudged(2.0) == 2.0 * 1.1
    assert nudged(0.0) == 0.1
    assert nudged(float("-inf")) is None
    assert nudged(True) is None


def test_a_finite_fill_is_turned_into_minus_infinity(make_attention) -> None:
    spec = make_attention("s", "j <= i", fill=Const(-10000.0))
    assert ("fill", "-10000.0", "-inf") in [(m.part, m.old, m.new) for m in mutations(spec)]


def test_indices_of_reads_are_not_nudged(make_attention) -> None:
    assert mutations(make_attention("s + bias[0, h, i, j]")) == []


def grid_checks(attention) -> dict[str, bool]:
    """Power of three lengths, with the brute force over far lengths."""

    def equivalent(changed) -> bool:
        return same_everywhere(attention, changed, 16, 16, 8, (2, 2))

    lengths = (20, 130, 260)
    made = {n: problem(attention, n, n, seed=n) for n in lengths}
    problems = [replace(made[n][0], name=str(n)) for n in lengths]
    evaluate = lambda changed, one: formula(changed, made[int(one.name)][1])[0]  # noqa: E731
    done = power(attention, problems, evaluate, lambda _: np.arange(2), "bfloat16", equivalent)
    return {c.what: c.rejected for c in done}


def test_a_constant_whose_neighbour_means_the_same_is_told_from_another(make_attention) -> None:
    # Key 96 is a multiple of 3, so that j > 95 and j > 96 are the same beside it; j > 94 is not.
    done = grid_checks(make_attention("s", "(j % 3 == 0) | (j > 95)"))
    assert done["mask: 95 -> 94 (96 means the same as 95)"]
    assert all(done.values())


def test_equality_is_not_claimed_where_only_longer_sequences_differ(make_attention) -> None:
    # Up to the lengths of the grid 20000 and 20001 mask alike: that is no proof.
    done = grid_checks(make_attention("s", "(j <= i) & (j > i - 20000)"))
    assert done["mask: 20000 -> 20001"] is False
    done = grid_checks(make_attention("s", "(j <= i) & (j > i - 300)"))
    assert done["mask: 300 -> 301"] is False


def test_a_constant_without_any_effect_stays_unseen(make_attention) -> None:
    done = grid_checks(make_attention("s", "(j <= i) & (j > -5)"))
    assert False in done.values()


def test_a_factor_inside_a_sign_is_replaced_by_its_opposite(make_attention) -> None:
    """1.1 times a factor inside sign() is the same function: no case could see it."""
    found = mutations(make_attention(score="sign(0.5 * s) + s"))
    assert [(m.old, m.new) for m in found] == [("0.5", "-0.5")]
    assert [(m.old, m.new) for m in mutations(make_attention(score="sign(s - 0.5)"))] == [("0.5", "0.55")]
