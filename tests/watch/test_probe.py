"""Functions found by value: every parameter is the kernel's own, and what is no member of the family has no name."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cubridge_engine.watch import Problem
from cubridge_engine.watch.function import identify, output_of
from cubridge_engine.watch.model import Function
from cubridge_engine.watch.probe import confirmed, meaning_for, probed
from cubridge_engine.watch.problem import problem_of, with_operands
from cubridge_engine.watch.tables import tables
from cubridge_engine.watch.watch import function_by_value
from tests.watch.kernels import Kernel

SIZES = {"B": 1, "H": 2, "Hkv": 1, "Sq": 96, "Sk": 128, "D": 64, "Dv": 64}
GEMMA = Kernel(scale=144**-0.5, cap=50.0, low=-39, high=0, shifted=True, sink=(1.1, 0.4))


def problem(dtype: str) -> Problem:
    return problem_of(SIZES, dtype)


def found(kernel: Kernel) -> Function | None:
    p = problem(kernel.dtype)
    return probed(p, kernel(p), None, kernel)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_gemma2_with_a_window_and_a_sink_is_found_with_its_numbers(dtype):
    kernel = replace(GEMMA, dtype=dtype)
    f = found(kernel)
    assert f is not None
    assert (f.mask, f.softcap) == ("causal bottom-right window of 40", 50.0)
    assert (f.low, f.high) == (32 - 39, 32)
    assert f.scale == pytest.approx(144**-0.5, rel=5e-3)
    assert f.sink == (1.1, 0.4)
    assert f.slopes == ()


CASES = [
    (Kernel(), "full softmax attention, scale 1/sqrt(D)"),
    (Kernel(high=-1), "strict causal softmax attention, scale 1/sqrt(D)"),
    (Kernel(cap=30.0, high=0), "causal softmax attention, scale 1/sqrt(D), soft cap 30"),
    (Kernel(low=-20), "j >= i - 20 softmax attention, scale 1/sqrt(D)"),
    (Kernel(low=-9, high=9), "window i - 9 .. i + 9 softmax attention, scale 1/sqrt(D)"),
    (Kernel(low=-31, high=0, first=4), "causal window of 32 and the first 4 keys softmax attention, scale 1/sqrt(D)"),
    (Kernel(high=0, block=24), "causal blocks of 24 softmax attention, scale 1/sqrt(D)"),
    (Kernel(sink=(0.0, 0.0)), "full softmax attention, scale 1/sqrt(D), sink 0"),
    (
        Kernel(high=0, slopes=(0.25, 0.0625), bias=lambda i, j, off: j - i),
        "causal softmax attention, scale 1/sqrt(D), bias 0.25, 0.0625 by head times j - i",
    ),
    (
        Kernel(cap=50.0, slopes=(0.25, 0.0625), bias=lambda i, j, off: -np.abs(j - i - off), sink=(1.0, 2.0)),
        "full softmax attention, scale 1/sqrt(D), soft cap 50, "
        "bias 0.25, 0.0625 by head times -|j - i - (Sk - Sq)|, sink 1, 2 by head",
    ),
]


@pytest.mark.parametrize(("kernel", "name"), CASES, ids=[name.partition(",")[0] for _, name in CASES])
def test_each_of_the_family_has_its_own_name(kernel, name):
    f = found(kernel)
    assert f is not None
    assert f.name == name


@pytest.mark.parametrize(
    "kernel",
    [
        Kernel(high=0, odd=True),
        Kernel(slopes=(1.0, 1.0), bias=lambda i, j, off: np.sin(j / 3.0)),
        Kernel(slopes=(0.02, 0.01), bias=lambda i, j, off: (i * j) % 7),
    ],
    ids=["a mask of every third key", "a wave over keys", "a bias of both"],
)
def test_what_is_none_of_the_family_has_no_name(kernel):
    p = problem(kernel.dtype)
    assert function_by_value(p, kernel(p), None, kernel) is None


@pytest.mark.parametrize("kernel", [Kernel(cap=50.0, dtype="bfloat16"), Kernel(sink=(-4.0, -4.0)), Kernel(cap=90.0)])
def test_a_plain_name_is_refused_where_rows_that_are_moved_show_more(kernel):
    """The output on plain inputs is that of plain attention within rounding: the name would be wrong."""
    p = problem(kernel.dtype)
    plain = identify(p, kernel(p))
    if plain is not None:  # the list alone would have said so
        assert confirmed(plain, p, kernel) is False
    f = function_by_value(p, kernel(p), None, kernel)
    assert f is not None
    assert (f.softcap is not None) == bool(kernel.cap)
    assert (f.sink is not None) == bool(kernel.sink)
    sure = function_by_value(p, Kernel(dtype=kernel.dtype)(p), None, Kernel(dtype=kernel.dtype))
    assert sure is not None
    assert (sure.softcap, sure.sink, sure.confirmed) == (None, None, True)


def test_sinks_of_a_tensor_are_named_by_it():
    p = with_operands(problem("float16"), {"sinks": ("H",)})
    assert p is not None
    kernel = Kernel(high=0, sink=tuple(float(x) for x in p.operands["sinks"]))
    f = probed(p, kernel(p), None, kernel)
    assert f is not None
    assert f.sink_text == "sinks[h]"
    assert f.sink == kernel.sink


def test_tables_of_a_sink_end_in_the_output():
    """l and O behind the last tile are those of the function, wherever the sink is counted."""
    p = problem("float32")
    kernel = replace(GEMMA, dtype="float32")
    f = found(kernel)
    assert f is not None
    meaning = meaning_for(f, p)
    from cubridge_engine.watch.model import Variant

    for at in ("first", "last"):
        made = {t.key: t for t in tables(meaning, Variant(32, False, "online", "", at))}
        np.testing.assert_allclose(made["O", "", ""].values, output_of(meaning), atol=1e-12)
        assert ("score", "scaled", "") in made
