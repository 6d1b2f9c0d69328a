"""A quick part of ``python -m tests.mutation``: every synchronisation of flash_fwd_sm80, and the book of survivors."""

from __future__ import annotations

import dataclasses
from functools import lru_cache

import pytest

from tests.mutation.explained import EXPLAINED
from tests.mutation.mutants import Mutant, mutants
from tests.mutation.subject import SUBJECTS, Subject, try_mutant
from tests.mutation.witness import evidence, from_threads_alone
from tests.simulate.conftest import ROOT, Shape

SYNCHRONISATION = ("barrier", "commit", "remove wait", "wait off")


@lru_cache(maxsize=2)
def ptx(name: str) -> str:
    return SUBJECTS[name].ptx()


@lru_cache(maxsize=2)
def synchronisation(name: str) -> tuple[Mutant, ...]:
    return tuple(m for m in mutants(ptx(name)) if any(part in m.rule for part in SYNCHRONISATION))


def quick(name: str):
    """Only the first shape: it wraps the ring and has three KV tiles."""
    subject = SUBJECTS[name]
    if isinstance(subject, Subject):
        return dataclasses.replace(subject, shapes=subject.shapes[:1], edges=())
    return subject


OURS = [name for name, subject in SUBJECTS.items() if isinstance(subject, Subject)]


@pytest.mark.parametrize("name", SUBJECTS)
def test_the_unchanged_kernel_is_clean(name):
    assert not try_mutant(quick(name), ptx(name)).found


@pytest.mark.parametrize("name", OURS)
def test_every_lost_or_moved_synchronisation_is_found_by_a_checker(name):
    found = synchronisation(name)
    assert len(found) >= (8 if name == "flash_fwd_sm80" else 3)
    for mutant in found:
        verdict = try_mutant(quick(name), mutant.text)
        assert verdict.codes, (mutant.rule, mutant.line, mutant.before)


def test_a_bound_that_is_off_by_one_is_found_by_a_tail():
    """The third comparison of the copies: rows 40 and up of a tile."""
    name = "flash_fwd_sm80"
    bounds = [m for m in mutants(ptx(name)) if m.rule == "comparison" and "setp.lt.s32" in m.before]
    subject = dataclasses.replace(SUBJECTS[name], shapes=(), edges=(Shape(h=1, sq=40, sk=40), Shape(h=1, sq=8, sk=8)))
    assert any("CB513" in try_mutant(subject, m.text).codes for m in bounds[:4])


@pytest.mark.parametrize(("compared", "shown"), [(", 1023;", "%tid and constants alone"), (", 512;", "to no effect")])
def test_a_surviving_comparison_is_run_beside_the_original(compared, shown):
    """The code for a rest that no thread has, and one more round of thread 0."""
    name = "flash_fwd_scalar"
    mutant = next(m for m in mutants(ptx(name)) if m.rule == "comparison" and compared in m.before)
    assert shown in evidence(quick(name), ptx(name), mutant)


def test_a_comparison_with_a_size_is_not_of_threads_alone():
    text = ptx("flash_fwd_sm80")
    sizes = [m for m in mutants(text) if m.rule == "comparison" and not from_threads_alone(text, m.line)]
    assert len(sizes) > 20


def test_mutants_differ_from_the_original_in_one_place():
    text = ptx("flash_fwd_sm80")
    seen: set[str] = set()
    for mutant in mutants(text):
        assert mutant.text != text
        assert mutant.text not in seen
        seen.add(mutant.text)
        if "move" not in mutant.rule:
            pairs = zip(text.split("\n"), mutant.text.split("\n"), strict=True)
            assert sum(a != b for a, b in pairs) == 1
    assert len(seen) > 80


def test_every_explanation_names_a_line_of_the_kernel():
    for name, entries in EXPLAINED.items():
        folder = ROOT / "expert_kernels" / name
        source = (folder / "kernel.cu").read_text() if name in OURS else SUBJECTS[name].ptx()
        for rule, part, why in entries:
            assert part in source or part.startswith(", "), part
            assert why
            assert rule
