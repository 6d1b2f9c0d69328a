"""Labels by the calls of a tensor library: each on its line, none where the kernel does something else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cubridge_engine.lift.cute import CuteReading, read_cute
from cubridge_engine.source import parse
from tests.lift.conftest import edited

OWN = (Path(__file__).parent / "cute" / "cute_own.cu").read_text()
_MARK = re.compile(r"// = ([\w, ]+)$")


def labels(text: str) -> tuple[set[tuple[int, str]], CuteReading]:
    """(1-based line of the kernel, step) of every label, and the reading."""
    found = read_cute(parse("own.cu", text.encode()))
    return {(chain[0].line + 1, step.name) for step in found.steps for chain in step.places}, found


def marked(text: str) -> set[tuple[int, str]]:
    """What the marks of the text ask for."""
    lines = enumerate(text.splitlines(), 1)
    return {(n, step) for n, line in lines if (m := _MARK.search(line)) for step in m[1].split(", ")}


def test_every_step_is_found_on_its_line_and_nowhere_else():
    found, reading = labels(OWN)
    assert found == marked(OWN)
    assert reading.function == "attend"
    assert reading.unknown == ()
    assert reading.why == ""


EXP = "grid(i, j) = exp2f((grid(i, j) - next) * kLog2e);"
# Edits after which a step is no longer what it was: (old, new), steps that must not be labelled.
OTHERWISE = [
    ("sum instead of quotient", ("part_of = 1.0f / all", "part_of = 1.0f + all"), {"normalise", "store"}),
    ("times the sum", ("part_of = 1.0f / all", "part_of = all"), {"normalise", "store"}),
    ("m times log l", ("top(i) + logf(all)", "top(i) * logf(all)"), {"lse"}),
    ("m minus log l", ("top(i) + logf(all)", "top(i) - logf(all)"), {"lse"}),
    ("log of the maximum", ("top(i) + logf(all)", "top(i) + logf(top(i))"), {"lse"}),
    ("the smaller of two", ("return fmaxf(x, y);", "return fminf(x, y);"), {"row_max", "correction"}),
    ("a choice of the smaller", ("return fmaxf(x, y);", "return x < y ? x : y;"), {"row_max", "correction"}),
    ("no mask", ("grid(i, j) = -INFINITY;", "grid(i, j) += 1.0f;"), {"mask"}),
    ("a bias", ("c.cap * tanhf(grid(i, j) / c.cap)", "grid(i, j) + c.cap"), {"softcap"}),
    ("O is stored undivided", ("sums_by_rows(i, j) *= part_of;", ""), {"normalise", "store"}),
    ("O is not rescaled", ("sums_by_rows(i, j) *= shrink;", "sums_by_rows(i, j) *= 2.0f;"), {"rescale"}),
    ("l is not rescaled", ("total(i) *= shrink;", "total(i) *= 2.0f;"), {"l_rescale"}),
    ("no maximum in P", (EXP, EXP.replace(" - next", "")), {"exp"}),
    ("Q is stored", ("copy(written, part", "copy(a, part"), {"store"}),
    ("no copy", ("moves.partition_S(g_second(_, _, step))", "moves.partition_D(s_third)"), {"load_k"}),
]


@pytest.mark.parametrize(("edit", "gone"), [row[1:] for row in OTHERWISE], ids=[row[0] for row in OTHERWISE])
def test_a_line_that_does_something_else_has_no_label(edit: tuple[str, str], gone: set[str]):
    found, _ = labels(edited(OWN, edit))
    assert {step for _, step in found} & gone == set()


# Edits after which it is no attention, or cannot be known to be: the word that the reason must have.
REFUSED = [
    ("no exponential", (EXP, "grid(i, j) = (grid(i, j) - next) * kLog2e;"), "exponential"),
    ("exponential of the exponential", (EXP, "grid(i, j) = exp2f(exp2f(grid(i, j) - next));"), "exponential"),
    ("m - S", (EXP, EXP.replace("grid(i, j) - next", "next - grid(i, j)")), "exponential"),
    ("S + m", (EXP, EXP.replace("grid(i, j) - next", "grid(i, j) + next")), "exponential"),
    ("exp of -S", (EXP, EXP.replace("(grid(i, j) - next)", "(-grid(i, j) - next)")), "exponential"),
    ("scores squared", ("grid(i, j) *= c.scale;", "grid(i, j) *= grid(i, j);"), "exponential"),
    ("an unknown call", ("Tensor grid = by_rows(dots);", "stir(dots); Tensor grid = by_rows(dots);"), "exponential"),
    ("a third product", ("gemm(mma, left, d, sums);", "gemm(mma, left, d, sums); gemm(mma, a, left, a);"), "product"),
    ("P times P", ("gemm(mma, left, d, sums);", "gemm(mma, left, left, sums);"), "product"),
]  # fmt: skip


@pytest.mark.parametrize(("edit", "why"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_no_label_without_both_products(edit: tuple[str, str], why: str):
    found, reading = labels(edited(OWN, edit))
    assert found == set()
    assert why in reading.why


@pytest.mark.parametrize(
    "spelling",
    ["fmaf(grid(i, j), kLog2e, -(next * kLog2e))", "fmaf(grid(i, j), kLog2e, -next * kLog2e)", "-next + grid(i, j)"],
)
def test_a_weight_may_be_spelled_otherwise(spelling: str):
    text = edited(OWN, (EXP, f"grid(i, j) = exp2f({spelling});"))
    assert labels(text)[0] - marked(text) <= {(120, "scale")}
    assert marked(text) <= labels(text)[0]


def test_a_call_that_is_not_known_is_named_with_its_line():
    text = edited(OWN, ("Tensor grid = by_rows(dots);", "stir(dots); Tensor grid = by_rows(dots);"))
    _, reading = labels(text)
    assert [(name, text.splitlines()[span.line].strip()[:12]) for name, span in reading.unknown] == [
        ("stir", "stir(dots); ")
    ]


def test_a_kernel_without_a_library_is_left_alone():
    assert read_cute(parse("k.cu", b"__global__ void k(float *x) { x[0] = expf(x[1]); }")) == CuteReading()
