"""Expressions as torch code: what the generated text computes is what `evaluate` computes, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cubridge_engine.ir.evaluate import evaluate
from cubridge_engine.ir.text_expr import parse_expr
from cubridge_engine.ir.text_torch import NoTorchText, print_torch

SIZES = {"B": 2, "H": 4, "Hkv": 2, "Sq": 9, "Sk": 13, "b": 1, "h": 3, "hk": 1}
TENSORS = {"ids": "int32", "keep": "bool", "bias": "float16"}
EXPRESSIONS = [
    "i >= j & i - j < 4 | j == 2",
    "(i == j) == (i < 3)",
    "i - (j - (i - 2))",
    "(i - 12) // 5 * 2 - (i - 12) % 5",
    "-i // 2",
    "-(i + j) * 3",
    "not(i >= j | keep[i, j])",
    "not(ids[i]) | j > 4",
    "ids[i] & keep[i, j]",
    "ids[i] == ids[j + 50]",
    "ids[i - 50] < min(ids[j], 3)",
    "i * 0.1 + j * 0.3 < 1.3",
    "i / 3 == j / 3",
    "max(i - 3, 0) + max(2, j)",
    "max(ids[i], j)",
    "max(bias[i, j], 0.25) > min(i * 0.05, 0.5)",
    "bias[i, j] * 1e-3 > -1e30",
    "where(i > 3, ids[i] - 1, 2 * j) >= 2",
    "where(h % 2 == 0, i, j) > 4",
    "where(i > j, 0.1, 0.7) * j < 2.1",
    "h % 2 == 1 & i >= j",
    "not(h == 3) | i == j",
    "min(Sq, Sk) - max(h, 2) > i",
    "abs(i - j) + abs(Sq - Sk) <= 7",
    "exp(i * -0.3) > sqrt(j) / 10",
    "floor(i / 4) == floor(j / 4)",
    "int(i * 0.75) < j",
    "float(i) * 0.1 <= float(Sk) * 0.01 * j",
    "bf16(i * 0.3) + fp16(j * 0.7) > 3.0",
    "sign(i - j) + relu(j - 5) == 1",
    "bitxor(i, j) < 6 & bitand(i, shl(1, 2)) == 0 & shr(j, 1) != 3",
    "Sk - Sq + i >= j",
    "i + -(Sq - Sk) > j",
    "log2(j + 1) < 2.5",
]


def at(tensor, *index):
    places = zip(index, tensor.shape, strict=True)
    return tensor[tuple(torch.as_tensor(x).long().clamp(0, n - 1) for x, n in places)]


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_the_text_computes_the_expression(text):
    rng = np.random.default_rng(0)
    data = {
        "ids": rng.integers(0, 4, 13).astype(np.int32),
        "keep": rng.random((9, 13)) < 0.5,
        "bias": rng.standard_normal((9, 13)).astype(np.float16),
    }
    expr = parse_expr(text)
    i, j = np.arange(9)[:, None], np.arange(13)[None, :]
    exact = {name: array.astype(np.float64) if name == "bias" else array for name, array in data.items()}
    want = np.asarray(evaluate(expr, {**SIZES, "i": i, "j": j}, exact))
    code = print_torch(expr, {n: (f"{n}_", kind) for n, kind in TENSORS.items()}, {*SIZES, "i", "j"})
    scope = {f"{name}_": torch.from_numpy(array) for name, array in data.items()}
    scope |= {**SIZES, "i": torch.from_numpy(i), "j": torch.from_numpy(j), "torch": torch, "at": at, "device": "cpu"}
    got = torch.as_tensor(eval(code, scope)).numpy()
    np.testing.assert_array_equal(np.broadcast_to(got, (9, 13)), np.broadcast_to(want, (9, 13)))
    assert got.dtype == bool or want.dtype != bool


@pytest.mark.parametrize("text", ["i < s", "other[i] == 1", "j < D"])
def test_what_is_not_known_before_the_launch_is_refused(text):
    with pytest.raises(NoTorchText):
        print_torch(parse_expr(text), {"ids": ("ids", "int32")}, {"i", "j"})
