"""Where a result was measured: machine, versions, commit; and writing it to bench/results."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]


def _said(*command: str) -> str:
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=20, check=False).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    rows = info.read_text().splitlines() if info.exists() else []
    return next((r.partition(":")[2].strip() for r in rows if r.startswith("model name")), platform.machine())


def surroundings() -> dict[str, Any]:
    """CPU, cores, versions of Python, NumPy and nvcc, the commit, and whether files differ from it."""
    nvcc = _said("nvcc", "--version").split("release ")[-1].split(",")[0] if shutil.which("nvcc") else ""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "nvcc": nvcc,
        "commit": _said("git", "rev-parse", "--short", "HEAD"),
        "changed_files": len(_said("git", "status", "--porcelain", "--", "cubridge_engine/simulate").splitlines()),
    }


def record(name: str, report: dict[str, Any]) -> Path:
    """Write bench/results/<name>.json, with where it was measured."""
    target = ROOT / "bench/results" / f"{name}.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps({"measured_on": surroundings(), **report}, indent=2) + "\n")
    return target
