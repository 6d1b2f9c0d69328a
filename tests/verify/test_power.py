"""The grid can fail: whole wrong outputs and nudged constants must be rejected, and a blind grid says so."""

from __future__ import annotations

import numpy as np

from cubridge_engine.ir.expr import Const
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
