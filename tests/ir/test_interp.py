"""Executing CuIR: equal to attention in float64, and every planted fault is found."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cubridge_engine.ir.interp import execute
from cubridge_engine.ir.text import parse_kernel

FLASH = (Path(__file__).parent / "flash.cuir").read_text()
SHAPES = [(1, 2, 1, 16, 16), (2, 4, 2, 40, 40), (1, 4, 2, 17, 53), (1, 2, 2, 50, 20), (1, 1, 1, 1, 1), (1, 2, 1, 20, 0)]


def problem(shape, seed=0):
    B, H, Hkv, Sq, Sk = shape
    rng = np.random.default_rng(seed)
    tensors = {
        "q": rng.standard_normal((B, H, Sq, 8)),
        "k": rng.standard_normal((B, Hkv, Sk, 8)),
        "v": rng.standard_normal((B, Hkv, Sk, 8)),
    }
    return tensors, {"B": B, "H": H, "Hkv": Hkv, "Sq": Sq, "Sk": Sk}


def reference(tensors, sizes, scale, causal):
    group = sizes["H"] // sizes["Hkv"]
    k, v = (np.repeat(tensors[n], group, axis=1) for n in "kv")
    s = tensors["q"] @ np.swapaxes(k, 2, 3) * scale
    if causal:
        i, j = np.arange(sizes["Sq"])[:, None], np.arange(sizes["Sk"])[None]
        s = np.where(j <= i + sizes["Sk"] - sizes["Sq"], s, -np.inf)
    m = s.max(-1, keepdims=True, initial=-np.inf)
    p = np.exp(s - np.where(np.isinf(m), 0, m))
    total = p.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = np.where(total == 0, -np.inf, np.where(np.isinf(m), 0, m) + np.log(total))[..., 0]
    return p @ v / np.where(total == 0, 1, total), lse


def run(text, shape, causal=0, mode="early", rounding=None, scale=0.3):
    tensors, sizes = problem(shape)
    out = execute(
        parse_kernel(text),
        tensors,
        sizes,
        {"c": scale / np.log(2), "causal": causal},
        async_mode=mode,
        rounding=rounding,
    )
    want, lse = reference(tensors, sizes, scale, causal)
    return out, want, lse


@pytest.mark.parametrize("mode", ["early", "late"])
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("shape", SHAPES)
def test_flash_equals_attention(shape, causal, mode):
    out, want, lse = run(FLASH, shape, causal, mode)
    assert out.findings == ()
    np.testing.assert_allclose(out.o, want, atol=1e-12)
    np.testing.assert_allclose(out.lse, lse, atol=1e-12)


def test_rounding_moves_the_result_by_half_precision():
    out, want, _ = run(FLASH, SHAPES[1], rounding="float16")
    error = np.abs(out.o - want).max()
    assert 1e-5 < error < 4e-3


FAULTS = {
    "no wait before the tile is read": ("    cp_commit\n    cp_wait 1\n", "    cp_commit\n", "CB502"),
    "wait off by one": ("    cp_commit\n    cp_wait 1\n", "    cp_commit\n    cp_wait 2\n", "CB502"),
    "no barrier after the wait": ("    cp_wait 1\n    barrier cta\n    fill", "    cp_wait 1\n    fill", "CB509"),
    "slot reused without a barrier": ("rounds_a=true\n    barrier cta\n", "rounds_a=true\n", "CB501"),
    "prologue fills the other slot": ("copy Ks[0] <- k[0", "copy Ks[1] <- k[0", "CB503"),
    "slot out of range": ("copy Ks[(t + 1) % 2]", "copy Ks[t + 1]", "CB506"),
    "tail not predicated": ("q[q0 : +16]; limit=Sq", "q[q0 : +16]; limit=none", "CB508"),
    "store not predicated": ("s * inv; limit=Sq", "s * inv; limit=none", "CB508"),
    "output not stored": ("  store_row lse", "  let unused = 0\n  store_row o2", "CB507"),
    "a name without value": ("exp2(s * c - ms)", "exp2(s * nothing - ms)", "CB505"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_found(name):
    old, new, code = FAULTS[name]
    bad = FLASH.replace(old, new, 1)
    assert bad != FLASH
    codes = {f.code for mode in ("early", "late") for f in run(bad, (1, 2, 1, 40, 70), mode=mode)[0].findings}
    assert code in codes


WRONG = {
    "no quad reduction": ("  lane_reduce sum l\n", ""),
    "head map by modulo": ("h // (H // Hkv)", "h % Hkv"),
    "no rescale of O": ("map rescale O <- O = s * z", "map rescale O <- O = s"),
    "mask guard too narrow": ("guard=kv0 + 16 > Sk", "guard=kv0 > Sk"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_programs_give_wrong_numbers(name):
    old, new = WRONG[name]
    bad = FLASH.replace(old, new)
    assert bad != FLASH
    out, want, _ = run(bad, (1, 4, 2, 40, 70), causal=0)
    assert not np.allclose(out.o, want, atol=1e-6)


SINK = FLASH.replace("row init m = -inf", "row init m = 0.0")


def test_a_sink_starts_the_sum_on_one_lane_only():
    tensors, sizes = problem((1, 4, 2, 40, 70))
    bindings = {"c": 0.3 / np.log(2), "causal": 0}
    want, lse = reference(tensors, sizes, 0.3, 0)
    want = want * np.exp(lse - np.logaddexp(lse, 0.0))[..., None]  # one more column of logit 0 and no value
    right = SINK.replace("row init l = 0.0", "row init l = where(lane == 0, 1.0, 0.0)")
    wrong = SINK.replace("row init l = 0.0", "row init l = 1.0")
    np.testing.assert_allclose(execute(parse_kernel(right), tensors, sizes, bindings).o, want, atol=1e-12)
    assert not np.allclose(execute(parse_kernel(wrong), tensors, sizes, bindings).o, want, atol=1e-3)
