"""Damaged kernels through the sanitiser, the parser, the lifter and the rules of `check`: no exception, no hang.

Time is that of this process's work, so that a busy machine changes nothing. CUBRIDGE_FUZZ=N tries N seeds more.
"""

from __future__ import annotations

import os
import random
import re
import time
from pathlib import Path

import pytest

from cubridge_engine.check import check
from cubridge_engine.lift import lift
from cubridge_engine.source import parse
from tests.fuzz.damage import damaged

ROOT = Path(__file__).parents[2]
KERNELS = sorted(
    [
        *(ROOT / "tests/lift/kernels").glob("*.cu"),
        *(ROOT / "tests/lift/refused").glob("*.cu"),
        *(ROOT / "tests/faults/kernels").glob("*.cu"),
    ]
)
SEEDS = range(36 + int(os.environ.get("CUBRIDGE_FUZZ", "0")))
LIFT_S = 1.0  # what the lifter is given; what it needs more than that is refused on any machine
HANG_S = 30.0  # a reading takes a tenth of a second here, one that hangs minutes: no speed of a machine is in doubt


def sample(seed: int) -> tuple[str, bytes]:
    """The name of a kernel and its damaged text."""
    path = KERNELS[seed % len(KERNELS)]
    return path.name, damaged(path.read_text(), seed).encode()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_damaged_kernel_is_read_without_a_hang_or_an_exception(seed):
    name, data = sample(seed)
    start = time.process_time()
    source = parse(name, data)
    lifted = lift(source, remember=False, budget_s=LIFT_S)
    checked = check(source, lifted)
    assert time.process_time() - start < HANG_S
    assert len(source.clean) == len(data)
    assert not [d.message for d in lifted.diagnostics if d.code == "CB127"], "the lifter raised"
    for finding in checked.findings:
        span = finding.span
        assert span is None or 0 <= span.line < data.count(b"\n") + 1


@pytest.mark.parametrize("seed", range(40))
def test_any_bytes_are_parsed(seed):
    """Neither text nor encoding: what a file may hold by accident."""
    rng = random.Random(seed)
    data = KERNELS[seed % len(KERNELS)].read_bytes()
    at = rng.randrange(len(data))
    data = data[:at] + rng.randbytes(rng.randrange(1, 300)) + data[at:]
    source = parse("kernel.cu", data)
    assert len(source.clean) == len(data)


def test_an_edit_at_a_time_gives_the_same_as_reading_anew():
    """The parser is told what changed: after forty edits the tree is that of the text."""
    text = (ROOT / "tests/faults/kernels/wmma_tiles.cu").read_text()
    source = parse("kernel.cu", text.encode())
    rng = random.Random(5)
    for _ in range(40):
        at = rng.randrange(len(text))
        text = text[:at] + rng.choice(["", "x", " ", "{", "}", "\n", "/*", "*/", '"']) + text[at + rng.randrange(3) :]
        source = parse("kernel.cu", text.encode(), previous=source)
    anew = parse("kernel.cu", text.encode())
    assert source.clean == anew.clean
    assert str(source.root) == str(anew.root)


@pytest.mark.parametrize(
    "text",
    [
        "__global__ void f() {" * 3000,
        "(" * 20000,
        "#define A A A\n" + "A " * 2000,
        "".join(f"#define M{i} M{i + 1} M{i + 1}\n" for i in range(40)) + "__global__ void k(float* x) { x[0] = M0; }",
        "__global__ void k(float* x) { float a = " + "- " * 1500 + "1.f; x[0] = a; }",
        "__global__ void k(float* x) { x[0] = " + " + ".join("x[1]" for _ in range(1500)) + "; }",
        "__global__ void k(float* x) { for (int i = 0; i < 2000000000; ++i) x[i] = 0.f; }",
        "__global__ void k(float* x) { int n = 1; while (n) { n = n * 3; x[n] = n; } }",
        "__global__ void k(float* x) { k(x); }",
        "template <int N> __device__ void f(float* x) { f<N + 1>(x); }\n__global__ void k(float* x) { f<0>(x); }",
        "\\\n" * 5000,
        '"' + "a" * 100000,
        "/*" * 30000,
    ],
    ids=[
        "unclosed-functions", "parentheses", "macro-of-itself", "macro-that-doubles", "minus-signs", "long-sum",
        "long-loop", "endless-loop", "recursion", "template-recursion", "line-continuations", "long-string", "comments",
    ],
)  # fmt: skip
def test_what_is_made_to_take_for_ever_does_not(text):
    start = time.process_time()
    source = parse("kernel.cu", text.encode())
    lifted = lift(source, remember=False, budget_s=LIFT_S)
    check(source, lifted)
    assert not any(d.code == "CB127" for d in lifted.diagnostics), [d.message for d in lifted.diagnostics]
    assert time.process_time() - start < HANG_S


def test_the_damage_is_the_same_every_time_and_really_damage():
    text = KERNELS[0].read_text()
    assert damaged(text, 3) == damaged(text, 3)
    changed = [damaged(text, seed) for seed in range(60)]
    assert sum(new != text for new in changed) > 50
    assert len(set(changed)) > 50
    assert sum(bool(re.search(r"__global__", new)) for new in changed) > 30, "most of it still has a kernel"
