"""Run the command in this process, jobs included: one import of torch for all tests. A few tests use the real
worker.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

from cubridge_engine.cli import job, main
from cubridge_engine.jobs import TASKS, JobOutcome

ROOT = Path(__file__).parents[2]
KERNEL = ROOT / "expert_kernels" / "flash_fwd_sm80" / "kernel.cu"
EXAMPLES = ROOT / "examples"


def run_here(task, params, *, on_progress, timeout_s, memory_bytes):
    """The task in this process; parameters and result go through JSON as they do to the worker."""
    module, _, name = TASKS[task].partition(":")
    function = getattr(importlib.import_module(module), name)
    value = function(json.loads(json.dumps(params)), on_progress)
    return JobOutcome("done", json.loads(json.dumps(value)))


@pytest.fixture
def cubridge(monkeypatch, capsys):
    """Run a command line; returns (exit code, stdout, stderr)."""
    monkeypatch.setattr(job, "run_in_worker", run_here)
    monkeypatch.setenv("CUBRIDGE_NO_SIMULATOR", "1")  # `simulator` undoes it where the level is the subject

    def running(*argv: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main.main([str(a) for a in argv])
        out = capsys.readouterr()
        return code, out.out, out.err

    return running


@pytest.fixture
def simulator(cubridge, monkeypatch):
    """Let commands run the simulator."""
    monkeypatch.delenv("CUBRIDGE_NO_SIMULATOR")


@pytest.fixture
def kernel() -> Path:
    return KERNEL


@pytest.fixture
def examples() -> Path:
    return EXAMPLES


@pytest.fixture
def write_spec(tmp_path):
    """Write a spec file; returns its path."""

    def writing(text: str, name: str = "spec.py") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return writing
