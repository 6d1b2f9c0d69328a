"""Speed of the PTX simulator: thread-instructions per second of kernel and schedule, the shape grid, memory.

    python bench/simulate_speed.py [--record] [--repeat N]

Prints a table; ``--record`` writes it to bench/results/simulate_speed.json. Figures are medians of N runs.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from bench.recording import record as write  # noqa: E402
from cubridge_engine import simulate  # noqa: E402
from cubridge_engine.compile import compile_source  # noqa: E402
from cubridge_engine.simulate import CHECKERS, SCHEDULES, Schedule  # noqa: E402
from tests.simulate.conftest import Shape, launch_attention  # noqa: E402
from tests.simulate.specialised import launch_specialised, specialised  # noqa: E402

GRID = (
    Shape(sq=64, sk=64),
    Shape(sq=100, sk=200, causal=1),
    Shape(sq=200, sk=77, causal=1),
    Shape(h=4, hkv=2, sq=65, sk=130),
    Shape(b=2, sq=1, sk=1),
    Shape(sq=33, sk=0),
    Shape(sq=70, sk=333, causal=1),
    Shape(b=2, h=4, hkv=2, sq=130, sk=200),
    Shape(sq=1, sk=300),
    Shape(h=3, hkv=1, sq=64, sk=192, causal=1),
)


Launch = Callable[[simulate.Module, Shape, Schedule, frozenset[str]], tuple[simulate.Run, float]]


@dataclass(frozen=True)
class Subject:
    """A kernel, how it is launched, and the sizes it is measured at: a full machine, and a few CTAs."""

    name: str
    module: simulate.Module
    launch: Launch
    large: Shape
    small: Shape


def compiled(kernel: str, expression: str) -> simulate.Module:
    """An instance of a bundled kernel."""
    path = ROOT / f"expert_kernels/{kernel}/kernel.cu"
    found = compile_source(
        path.read_bytes(), path=str(path), name_expressions=[expression], want=("ptx",), options=("-lineinfo",)
    )
    if found.ptx is None:
        raise SystemExit(f"{kernel} does not compile: {[d.message for d in found.diagnostics]}")
    return simulate.load(found.ptx)


def bundled(**fixed: Any) -> Launch:
    """Launches with the parameters of the expert kernels."""

    def launch(
        module: simulate.Module, shape: Shape, schedule: Schedule, checkers: frozenset[str]
    ) -> tuple[simulate.Run, float]:
        result = launch_attention(module, shape, schedule=schedule, checkers=checkers, **fixed)
        return result.run, result.error

    return launch


def subjects() -> tuple[Subject, ...]:
    """Ampere's tensor cores, no tensor cores, and Hopper's copies and products with roles of their own."""
    mma = bundled(tile=64, dtype=np.float16, shared=5 * 64 * 64 * 2, log2=True, flag=True)
    scalar = bundled(tile=32, dtype=np.float32, shared=((32 + 64) * 65 + 32 * 33) * 4, log2=False, flag=False)
    return (
        Subject("flash_fwd_sm80<__half, 64>", compiled("flash_fwd_sm80", "flash_fwd_sm80<__half, 64>"), mma,
                Shape(h=16, hkv=16, sq=512, sk=512), Shape(sq=100, sk=200)),
        Subject("flash_fwd_scalar<64>", compiled("flash_fwd_scalar", "flash_fwd_scalar<64>"), scalar,
                Shape(h=16, hkv=16, sq=256, sk=256), Shape(sq=100, sk=200)),
        Subject("attention_sm90", specialised(),
                lambda m, shape, s, checkers: launch_specialised(m, shape, s, checkers=checkers),
                Shape(h=16, hkv=16, sq=512, sk=512), Shape(sq=200, sk=200)),
    )  # fmt: skip


def measure(
    subject: Subject, shape: Shape, schedule: Schedule, checkers: frozenset[str], repeat: int
) -> dict[str, Any]:
    """CPU seconds (median) and rate of a launch, which must be clean and right."""
    seconds: list[float] = []
    instructions = 0
    for _ in range(repeat):
        run, error = subject.launch(subject.module, shape, schedule, checkers)
        if run.findings or not error < 1e-2:
            raise SystemExit(f"{subject.name} is not clean at {shape}: {error}, {[f.message for f in run.findings]}")
        seconds.append(run.cpu_seconds)
        instructions = run.counts.threads
    middle = statistics.median(seconds)
    return {"cpu_s": round(middle, 3), "million_per_s": round(instructions / middle / 1e6, 1)}


def rates(subject: Subject, repeat: int) -> dict[str, Any]:
    """Every schedule with all checkers, and one without any."""
    rows: dict[str, Any] = {"shape": str(subject.large)}
    measure(subject, subject.small, Schedule(), CHECKERS, 1)  # the code is generated and compiled once
    for schedule in SCHEDULES:
        rows[f"{schedule.async_} {schedule.order}"] = measure(subject, subject.large, schedule, CHECKERS, repeat)
    rows["late forward, unchecked"] = measure(subject, subject.large, Schedule(), frozenset(), repeat)
    for schedule in SCHEDULES[::2]:
        name = f"few CTAs, {schedule.async_} {schedule.order}"
        rows[name] = measure(subject, subject.small, schedule, CHECKERS, repeat)
    return rows


def grid_seconds(subject: Subject, repeat: int) -> float:
    """CPU seconds (median) of the grid under four schedules."""
    seconds: list[float] = []
    for _ in range(repeat):
        started = time.process_time()
        for shape in GRID:
            for schedule in SCHEDULES:
                measure(subject, shape, schedule, CHECKERS, 1)
        seconds.append(time.process_time() - started)
    return round(statistics.median(seconds), 2)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="write bench/results/simulate_speed.json")
    parser.add_argument("--repeat", type=int, default=5, help="runs of each figure")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    every = subjects()
    results: dict[str, Any] = {subject.name: rates(subject, options.repeat) for subject in every}
    results["grid of 10 shapes, 4 schedules"] = {
        "kernel": every[0].name, "cpu_s": grid_seconds(every[0], max(options.repeat // 2, 1))
    }  # fmt: skip
    results["peak_memory_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    for name, value in results.items():
        print(name)
        for key, figure in value.items() if isinstance(value, dict) else (("", value),):
            print(f"    {key:32} {figure}")
    if options.record:
        write("simulate_speed", {"load_average": round(load, 1), "repeat": options.repeat, "results": results})


if __name__ == "__main__":
    main()
