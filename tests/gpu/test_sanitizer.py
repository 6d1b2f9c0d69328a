"""The expert kernels under compute-sanitizer: no access out of bounds, race, wrong barrier or read of unset memory."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.skipif(shutil.which("compute-sanitizer") is None, reason="needs compute-sanitizer"),
]

ROOT = Path(__file__).parents[2]
HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
KERNELS = ["flash_fwd_scalar", "flash_fwd_sm80", *(["flash_fwd_sm90", "flash_fwd_sm90_plain"] if HOPPER else [])]
CLEAN = {"memcheck": "0 errors", "initcheck": "0 errors", "synccheck": "0 errors", "racecheck": "0 hazards displayed"}


@pytest.mark.parametrize("tool", CLEAN)
@pytest.mark.parametrize("kernel", KERNELS)
def test_nothing_is_found(kernel: str, tool: str) -> None:
    watched = ["compute-sanitizer", "--tool", tool, "--target-processes", "all"]
    command = [*watched, sys.executable, "-m", "bench.kernels.launches", kernel]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-4000:]
    assert f"SUMMARY: {CLEAN[tool]}" in said, said[-4000:]
