"""CuTe's and FlashInfer's kernels, fetched from pip and compiled with nvcc at test time: right, and not one finding.

Skipped, with the reason, without nvcc or network. FlashInfer's wheel is large: CUBRIDGE_FOREIGN=1 fetches it once, into
pytest's cache; results of a full run are in bench/results/simulate_foreign.json.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cubridge_engine import simulate
from cubridge_engine.simulate import SCHEDULES, Schedule

from . import test_foreign as replayed  # type: ignore[import-not-found]
from .foreign.headers import HEADERS, Missing, ptx_of  # type: ignore[import-not-found]

FOREIGN = Path(__file__).parent / "foreign"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def cache(request: pytest.FixtureRequest) -> Path:
    """A folder that outlives the session."""
    assert request.config.cache is not None
    return Path(request.config.cache.mkdir("foreign"))


@pytest.fixture
def module(request: pytest.FixtureRequest, cache: Path) -> simulate.Module:
    """The compiled kernel; skips where it cannot be had."""
    try:
        found = simulate.load(ptx_of(request.param, cache))
    except Missing as reason:
        pytest.skip(str(reason))
    assert not found.diagnostics
    return found


@pytest.mark.parametrize(("module", "name"), [(n, n) for n in HEADERS], indirect=["module"])
def test_a_kernel_of_a_library(module, name):
    for schedule in SCHEDULES:
        case = HEADERS[name].launch(module, schedule)
        assert case.run.ok, [(f.code, f.message) for f in case.run.findings]
        assert not case.run.findings
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
        ("cute_wgmma_tma_sm90", r"wgmma\.wait_group\S*\s+0;", {"CB529", "CB516", "CB517"}),
        ("flashinfer_single_decode", r"cp\.async\.wait_group\s+\d+;", {"CB517"}),
        ("flashinfer_single_decode", r"(bar|barrier)\.sync\S*\s+0;", {"CB516", "CB517"}),
    ],
)
def test_without_its_synchronisation_it_is_found(cache, name, pattern, codes):
    try:
        text = ptx_of(name, cache)
    except Missing as reason:
        pytest.skip(str(reason))
    case = HEADERS[name].launch(drop_all(text, pattern), Schedule("late", "forward"))
    assert codes & {f.code for f in case.run.findings}, [f.message for f in case.run.findings]


def test_triton_makes_the_same_kernels_again(tmp_path, monkeypatch):
    """The PTX in the repository is what the pinned Triton makes of triton_kernels.py, or behaves like it."""
    triton = pytest.importorskip("triton", reason="Triton is not installed")
    if not triton.__version__.startswith("3.9."):
        pytest.skip(f"Triton {triton.__version__} is not the pinned 3.9")
    script = tmp_path / "triton_kernels.py"
    script.write_text((FOREIGN / "triton_kernels.py").read_text())
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path / "cache")}  # make them, do not look them up
    command = [sys.executable, str(script)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-400:]
    monkeypatch.setattr(replayed, "FOREIGN", tmp_path)
    for name in ("attention_f16_sm80", "attention_bf16_sm90"):
        run, error = replayed.run_attention(name, 200, Schedule())
        assert not run.findings
        assert error < (2e-2 if "bf16" in name else 2e-3)
    for name, tolerance in (("product_f16_sm80", 1e-4), ("product_tf32_sm90", 0.1)):
        run, error = replayed.run_product(name, 200, Schedule())
        assert not run.findings
        assert error < tolerance
