"""Kernels of CuTe, CUTLASS, FlashInfer and Triton, fetched with pip and compiled at test time: right, and no finding.

Wheels and PTX are kept in pytest's cache. Skipped, with the reason, without nvcc or network. Each kernel runs under the
two schedules that differ in everything, with CUBRIDGE_FOREIGN=all under all; their results are in
bench/results/simulate_foreign.json.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cubridge_engine import simulate
from cubridge_engine.diagnostics import Diagnostic
from cubridge_engine.simulate import SCHEDULES, Schedule

from . import test_foreign as replayed  # type: ignore[import-not-found]
from .foreign import launches  # type: ignore[import-not-found]
from .foreign.headers import HEADERS, ptx_of  # type: ignore[import-not-found]
from .foreign.wheels import TRITON, Missing, unpacked  # type: ignore[import-not-found]

FOREIGN = Path(__file__).parent / "foreign"
TRIED = (
    SCHEDULES
    if os.environ.get("CUBRIDGE_FOREIGN") == "all"
    else (Schedule("late", "reverse"), Schedule("early", "forward"))
)
pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def cache(request: pytest.FixtureRequest) -> Path:
    """A folder that outlives the session."""
    assert request.config.cache is not None
    return Path(request.config.cache.mkdir("foreign"))


def text_of(name: str, cache: Path) -> str:
    """The PTX; skips where it cannot be had."""
    try:
        return ptx_of(name, cache)
    except Missing as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize("name", HEADERS)
def test_a_kernel_of_a_library(cache, name):
    header = HEADERS[name]
    module = simulate.load(header.mend(text_of(name, cache)))
    assert not module.diagnostics
    for schedule in TRIED:
        case = header.launch(module, schedule)
        assert case.run.ok, [(f.code, f.message) for f in case.run.findings]
        assert not case.run.findings
        assert case.error < case.tolerance


def shipped(cache: Path, name: str, codes: set[str]) -> list[Diagnostic]:
    """Findings of a kernel that is not mended, under every schedule: of these codes only, and the numbers are right."""
    module = simulate.load(text_of(name, cache))
    found: list[Diagnostic] = []
    for schedule in SCHEDULES:
        case = HEADERS[name].launch(module, schedule)
        assert case.error < case.tolerance
        assert {f.code for f in case.run.findings} == codes
        found += case.run.findings
    return found


def test_the_race_in_the_epilogue_of_flashinfer(cache):
    """Lanes read rows of O that other lanes of the warp wrote, and no __syncwarp() is between; lock-step hides it."""
    for finding in shipped(cache, "flashinfer_single_prefill", {"CB527"}):
        assert finding.span is not None
        lines = Path(finding.span.path).read_text().split("\n")
        start = max(i for i in range(finding.span.line) if "void write_o_reg_gmem" in lines[i])
        assert finding.span.line - start < 90


def test_the_fence_that_the_tutorial_of_cute_lacks(cache):
    """Its mbarriers are initialised, and copies of TMA complete on them, without a fence for the copy engine."""
    for finding in shipped(cache, "cute_wgmma_tma_sm90", {"CB545"}):
        assert "mbarrier" in finding.message


def test_rows_of_shared_memory_that_flashinfer_never_fills(cache):
    """A last tile with 12 of 64 rows: the others are read as they are, and what comes of them is dropped."""
    module = simulate.load(HEADERS["flashinfer_single_prefill"].mend(text_of("flashinfer_single_prefill", cache)))
    case = launches.flashinfer_prefill(module, Schedule(), sq=70)
    assert {f.code for f in case.run.findings} == {"CB518"}
    assert case.error < case.tolerance


def drop_all(text: str, pattern: str) -> simulate.Module:
    changed, count = re.subn(pattern, "", text)
    assert count
    return simulate.load(changed)


@pytest.mark.parametrize(
    ("name", "pattern", "codes"),
    [
        ("cute_sgemm_sm80", r"cp\.async\.wait_group\s+\d+;", {"CB517"}),
        ("cute_sgemm_sm80", r"bar\.sync\s+0;", {"CB516"}),
        ("cutlass_fmha_sm90", r"wgmma\.wait_group\S*\s+0;", {"CB529", "CB516", "CB517"}),
        ("cutlass_fmha_sm90", r"wgmma\.fence\.sync\.aligned;", {"CB529"}),
        ("flashinfer_single_prefill", r"cp\.async\.wait_group\s+\d+;", {"CB517"}),
        ("flashinfer_single_prefill", r"(bar|barrier)\.sync\S*\s+0;", {"CB516"}),
        ("cute_wgmma_tma_sm90", r"wgmma\.wait_group\S*\s+0;", {"CB529", "CB516", "CB517"}),
        ("flashinfer_single_decode", r"cp\.async\.wait_group\s+\d+;", {"CB517"}),
        ("flashinfer_single_decode", r"(bar|barrier)\.sync\S*\s+0;", {"CB516", "CB517"}),
    ],
)
def test_without_its_synchronisation_it_is_found(cache, name, pattern, codes):
    text = HEADERS[name].mend(text_of(name, cache))
    case = HEADERS[name].launch(drop_all(text, pattern), Schedule("late", "forward"))
    assert codes & {f.code for f in case.run.findings}, [f.message for f in case.run.findings]


def test_triton_makes_the_same_kernels_again(tmp_path, cache, monkeypatch):
    """The PTX in the repository is what the pinned Triton makes of triton_kernels.py, or behaves like it."""
    try:
        triton = unpacked(TRITON, cache)
    except Missing as reason:
        pytest.skip(str(reason))
    script = tmp_path / "triton_kernels.py"
    script.write_text((FOREIGN / "triton_kernels.py").read_text())
    environment = {**os.environ, "PYTHONPATH": str(triton), "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, str(script)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-400:]
    monkeypatch.setattr(replayed, "FOREIGN", tmp_path)
    for name in ("attention_f16_sm80", "attention_bf16_sm90"):
        run, error = replayed.run_attention(name, 200, Schedule())
        assert not run.findings
        assert error < replayed.TOLERANCES[name]
    for name in ("product_f16_sm80", "product_tf32_sm90"):
        run, error = replayed.run_product(name, 200, Schedule())
        assert not run.findings
        assert error < replayed.TOLERANCES[name]
