"""One line for what a spec means: by the form of its expressions, never by names."""

from __future__ import annotations

from typing import Any

import pytest

from cubridge_engine.ir.expr import NEG_INF
from cubridge_engine.ir.text_expr import parse_expr
from cubridge_engine.spec.attention import Attention, TensorInput, TensorOutput
from cubridge_engine.spec.describe import one_line
from cubridge_engine.spec.equations import equations, size_words

SCALED = "s * 0.125"
OFF = "(Sk - Sq)"


def attention(score: str = SCALED, mask: str = "", **parts: Any) -> Attention:
    """D is 64; one KV head for each head unless `head` says otherwise."""
    head, sink, divisor = parts.get("head", "h"), parts.get("sink"), parts.get("divisor")
    axes = {"q": ("b", "h", "i", "d"), "k": ("b", "hk", "j", "d"), "v": ("b", "hk", "j", "d")}
    inputs = tuple(TensorInput(n, n, axes[n], "float16", p) for p, n in enumerate("qkv"))
    roles = ("o", "lse") if parts.get("lse") else ("o",)
    return Attention(
        name="attention",
        path="spec.py",
        inputs=inputs,
        outputs=tuple(TensorOutput(r, ("b", "h", "i", "d")[: 4 if r == "o" else 3], "float16", 0) for r in roles),
        head_map=parse_expr(head),
        score=parse_expr(score),
        mask=parse_expr(mask) if mask else None,
        fill=NEG_INF,
        sink=parse_expr(sink) if sink else None,
        normaliser=parts.get("normaliser", "softmax"),
        empty_rows="none",
        specialised={"D": 64, **({"Dv": parts["dv"]} if "dv" in parts else {})},
        divisor=parse_expr(divisor) if divisor else None,
    )


GROUPED = "h // (H // Hkv)"
# one line -> the attention it describes
LINES: dict[str, Attention] = {
    "full attention, D 64": attention(),
    "causal, D 64": attention(mask="i >= j"),
    "causal (bottom-right), D 64": attention(mask=f"j < i + {OFF} + 1"),
    "causal window 4096, D 64": attention(mask="j <= i & i - j < 4096"),
    "causal window 4097, D 64": attention(mask="i - j <= 4096 & j - i <= 0"),
    "causal window 96 (bottom-right), D 64": attention(mask="j - i >= Sk - Sq - 95 & j - i <= Sk - Sq"),
    "window 32 to either side, D 64": attention(mask="abs(i - j) <= 32"),
    "chunks of 64, causal, D 64": attention(mask="i // 64 == j // 64 & j <= i"),
    "prefix 40, then causal, D 64": attention(mask="j < 40 | j <= i"),
    "documents by ids, causal, D 64": attention(mask="ids[b, i] == ids[b, j] & j <= i"),
    "key lengths n, D 64": attention(mask="j < n[b]"),
    "causal, window 32 or first 4 keys, D 64": attention(mask="j <= i & (i - j < 32 | j < 4)"),
    "window 24 to either side, every 3rd key, D 64": attention(mask="abs(i - j) <= 24 & (i - j) % 3 == 0"),
    "mask tensor keep, D 64": attention(mask="keep[b, 0, i, j]"),
    "full attention, ALiBi, D 64": attention(f"{SCALED} + slopes[h] * (j - i)"),
    "causal, ALiBi, GQA 8 on 2 heads, D 64": attention(f"{SCALED} - slopes[h] * abs(i - j)", "j <= i", head=GROUPED),
    "full attention, softcap 50, D 64": attention(f"50.0 * tanh({SCALED} / 50.0)"),
    "full attention, softcap 30, bias m, D 64": attention(f"tanh({SCALED} / 30.0) * 30.0 + m[0, h, i, j]"),
    "full attention, no scale, relative bias t, D 64": attention("s + t[h, min(max(j - i, -8), 8) + 8]"),
    "full attention, no scale, bucketed bias t, D 64": attention("s + t[int(log(float(max(abs(j - i), 1))) * 4.0), h]"),
    "full attention, scale 0.1, D 64": attention("s * 0.1"),
    "full attention, temperature tau, D 64": attention("s * tau[h]"),
    "causal, sink sinks, D 64": attention(mask="j <= i", sink="sinks[h]"),
    "full attention, softmax off by one, D 64": attention(sink="0.0"),
    "full attention, sigmoid weights, no softmax, D 64": attention(f"sigmoid({SCALED})", normaliser="none"),
    "full attention, relu squared weights, no softmax, D 64": attention(
        f"relu({SCALED}) * relu({SCALED})", normaliser="none"
    ),
    "causal, decay by i - j, weights linear in the score, no softmax, divided by the sum of |weights|, D 64": attention(
        "s * pow(0.9, float(i - j))", "j <= i", normaliser="abs_sum", divisor="max(l, 1.0)"
    ),
    "full attention, MQA 8 on 1 head, D 64": attention(head=GROUPED, dv=64),
    "full attention, D 64, Dv 128, returns LSE": attention(dv=128, lse=True),
}
HEADS = {"GQA": {"H": 8, "Hkv": 2}, "MQA": {"H": 8, "Hkv": 1}}


@pytest.mark.parametrize("line", LINES)
def test_one_line(line: str) -> None:
    sizes = next((counts for name, counts in HEADS.items() if name in line), None)
    assert one_line(LINES[line], sizes) == line


def test_names_do_not_matter() -> None:
    assert one_line(attention(f"{SCALED} + causal[h] * (j - i)")) == "full attention, ALiBi, D 64"
    assert one_line(attention(mask="window[b, i] == window[b, j]")) == "documents by window, D 64"


@pytest.mark.parametrize("mask", ["j <= i + 1", "j < i", "i - j < 4096 + Sq", "i // 64 == j // 32", "ids[i] == ids[i]"])
def test_what_is_near_is_not_called_the_same(mask: str) -> None:
    words = one_line(attention(mask=mask))
    assert not words.startswith(("causal,", "window", "chunks", "documents"))


def test_a_long_mask_is_not_spelt_out() -> None:
    mask = " | ".join(f"(i * {n} + j) % 7 == {n}" for n in range(1, 9))
    assert one_line(attention(mask=mask)) == "a mask of its own, D 64"


def test_equations_hold_everything() -> None:
    full = attention("s * 0.125", "j <= i & i - j < 9", head=GROUPED, sink="sinks[h]", lse=True)
    texts = {e.part: e.text for e in equations(full)}
    assert texts["head_map"] == GROUPED
    assert texts["product"] == "sum over d of q[b, h, i, d] * k[b, hk, j, d]"
    assert [e.text.split()[-5:] for e in equations(full) if e.part == "mask"] == [
        ["j", "<=", "i"],
        ["and", "i", "-", "j", "<", "9"][-5:],
    ]
    assert texts["fill"] == "-inf   elsewhere"
    assert texts["sink"].startswith("sinks[h]")
    assert "exp(sink)" in texts["lse"]
    weights = attention("relu(s)", normaliser="sum", divisor="l + 1.0")
    assert {e.part: e.text for e in equations(weights)}["output"].endswith("/ (l + 1.0)")


def test_sizes_in_words() -> None:
    assert size_words(attention()) == ("D = 64 only",)
