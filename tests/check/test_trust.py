"""Correct kernels have no finding of level error: the bundled ones, those of the tests, and what rules made of them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from cubridge_engine.check import check_file
from cubridge_engine.diagnostics import Severity
from cubridge_engine.lift import lift
from cubridge_engine.pipeline.files import contract_of
from cubridge_engine.source import parse, with_includes

ROOT = Path(__file__).parents[2]
BUNDLED = sorted(ROOT.glob("expert_kernels/*/kernel.cu"))
STYLES = [
    *sorted(ROOT.glob("tests/lift/kernels/*.cu")),
    *sorted(ROOT.glob("tests/lift/refused/*.cu")),
    *sorted(ROOT.glob("tests/ladder/kernels/*.cu")),
]
ADAPTED = sorted(ROOT.glob("tests/lower/golden/*.diff"))
ALL = bool(os.environ.get("CUBRIDGE_CORPUS"))
# One of each kind of change in every run; all of them where the corpus is run as a whole.
SOME = {"alibi", "gpt_oss", "two_sided", "relu_scalar", "exact", "head_map"}


def errors(path: Path) -> list[str]:
    """Findings of level error, of all kernels of a file."""
    source = with_includes(parse(str(path), path.read_bytes()))
    lifts = [lift(source, kernel=function.name) for function in source.kernels()]
    contract, _ = contract_of(str(path), lifts[0].kernel) if lifts else (None, ())
    found = check_file(source, lifts, contract)
    assert found.notes == ()
    return [f"{f.code} {f.diagnostic.message}" for f in found.findings if f.severity is Severity.ERROR]


@pytest.mark.parametrize("path", BUNDLED, ids=lambda p: p.parent.name)
def test_a_bundled_kernel_has_no_finding(path: Path):
    source = parse(str(path), path.read_bytes())
    lifts = [lift(source, kernel=function.name) for function in source.kernels()]
    contract, _ = contract_of(str(path), lifts[0].kernel)
    assert check_file(source, lifts, contract).findings == ()


@pytest.mark.parametrize("path", STYLES, ids=lambda p: p.name)
def test_a_kernel_in_another_style_has_no_error(path: Path):
    assert errors(path) == []


@pytest.mark.parametrize("diff", [d for d in ADAPTED if ALL or d.stem in SOME], ids=lambda p: p.stem)
def test_what_rules_made_of_a_kernel_has_no_error(diff: Path, tmp_path: Path):
    assert errors(adapted(diff, tmp_path)) == []


def adapted(diff: Path, folder: Path) -> Path:
    """The kernel that a golden diff is of, changed by it."""
    target = folder / "kernel.cu"
    for path in BUNDLED:
        target.write_bytes(path.read_bytes())
        done = subprocess.run(
            ["git", "apply", "--unidiff-zero", "-p1", str(diff)], cwd=folder, capture_output=True, check=False
        )
        if done.returncode == 0 and target.read_bytes() != path.read_bytes():
            return target
    raise AssertionError(f"{diff.name} is of no bundled kernel")


@pytest.mark.parametrize("call", ["library::meet(group);", 'asm volatile("strange.sync 0;");'])
def test_code_that_is_not_understood_may_hold_a_barrier(call: str, tmp_path: Path):
    text = (ROOT / "tests/lift/kernels/block2d.cu").read_text()
    before, barrier, after = text.partition("__syncthreads();")
    for replacement, wrong in ((barrier, False), (call, False), ("", True)):
        path = tmp_path / "kernel.cu"
        path.write_text(before + replacement + after)
        assert bool(errors(path)) is wrong
