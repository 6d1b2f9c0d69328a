"""Barriers for a part of a block, and findings of a code that is turned off: what they leave to be said."""

from __future__ import annotations

from functools import lru_cache

import pytest

from cubridge_engine.check import CheckConfig, check_file
from cubridge_engine.check.model import Finding
from cubridge_engine.check.subject import Subject
from cubridge_engine.diagnostics import Diagnostic, Severity
from cubridge_engine.ir.nodes import Barrier
from cubridge_engine.ir.validate import iterate

from .planted import SCALAR, read, text_of

HALVES = '    asm volatile("bar.sync %0, 64;" ::"r"(1 + threadIdx.x / 64) : "memory");\n'
APART = (
    '    if (threadIdx.x < 64) asm volatile("bar.sync 1, 64;" ::: "memory");\n'
    '    else asm volatile("bar.sync 2, 64;" ::: "memory");\n'
)
FIRST = '    if (threadIdx.x < 64) asm volatile("bar.sync 1, 64;" ::: "memory");\n'
ALL = '    asm volatile("bar.sync 1, 128;" ::: "memory");\n'
# A count of more threads than come here: others meet them at a place that may be anywhere.
ELSEWHERE = '    if (threadIdx.x < 32) asm volatile("bar.sync 1, 64;" ::: "memory");\n'
REUSE = "    __syncthreads();  // the next tile overwrites Ks, Vs and Ps\n"
WEIGHTS = "    l = correction * l + row_sum;\n"


@lru_cache(maxsize=4)
def subject_of(*edits: tuple[str, str]) -> Subject:
    return read(SCALAR, text_of(SCALAR, *edits))


def found(*edits: tuple[str, str]) -> tuple[Finding, ...]:
    subject = subject_of(*edits)
    return check_file(subject.source, (subject.lifted,), subject.contract).findings


@pytest.mark.parametrize("barrier", [HALVES, FIRST])
def test_a_barrier_of_some_threads_does_not_part_a_tile_that_all_read(barrier: str):
    (only,) = found((REUSE, barrier))
    assert only.code == "CB851"
    last = only.diagnostic.related[-1]
    assert last.message == "a barrier for a part of the threads alone"
    text = text_of(SCALAR, (REUSE, barrier))
    assert last.span.line == text[: text.index("bar.sync")].count("\n")


@pytest.mark.parametrize("barrier", [ALL, ELSEWHERE])
def test_nothing_is_said_where_the_barrier_is_for_all_or_may_be(barrier: str):
    assert found((REUSE, barrier)) == ()


def test_a_barrier_of_half_a_block_parts_what_only_that_half_shares():
    meeting = f"{WEIGHTS}    __syncthreads();\n"
    assert [f.code for f in found((meeting, WEIGHTS))] == ["CB845"]
    assert found((meeting, WEIGHTS + APART)) == ()


def test_a_barrier_of_some_threads_is_not_counted_as_one_of_the_block():
    kernel = subject_of((REUSE, HALVES)).lifted.kernel
    assert kernel is not None
    assert sorted(op.scope for op in iterate(kernel.body) if isinstance(op, Barrier)) == ["cta", "cta", "part"]


@pytest.mark.parametrize(
    ("off", "codes"), [((), ["CB851"]), (("CB851",), ["CB516"]), (("CB851", "CB516"), [])], ids=str
)
def test_a_code_that_is_off_hides_nothing_that_watching_saw_of_the_same_place(off: tuple[str, ...], codes: list[str]):
    subject = subject_of((REUSE, HALVES))
    (read_there,) = found((REUSE, HALVES))
    seen = Finding(Diagnostic("CB516", "a race", Severity.ERROR, read_there.span), "pipeline")
    config = CheckConfig(dict.fromkeys(off))
    checked = check_file(subject.source, (subject.lifted,), subject.contract, config, [seen], watched=True)
    assert [f.code for f in checked.findings] == codes
