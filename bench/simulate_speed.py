"""Speed of the PTX simulator: thread-instructions per second, the shape grid, memory.

    python bench/simulate_speed.py [--record]

Prints a table; ``--record`` writes it to bench/results/simulate_speed.json.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from bench.recording import record as write  # noqa: E402
from cubridge_engine import simulate  # noqa: E402
from cubridge_engine.compile import compile_source  # noqa: E402
from cubridge_engine.simulate import CHECKERS, SCHEDULES, Schedule  # noqa: E402
from tests.simulate.conftest import Shape, launch_attention  # noqa: E402

LARGE = Shape(h=16, hkv=16, sq=512, sk=512)
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


def ptx() -> str:
    """flash_fwd_sm80 for fp16, D = 64."""
    path = ROOT / "expert_kernels/flash_fwd_sm80/kernel.cu"
    names = ["flash_fwd_sm80<__half, 64>"]
    compiled = compile_source(
        path.read_bytes(), path=str(path), name_expressions=names, want=("ptx",), options=("-lineinfo",)
    )
    if compiled.ptx is None:
        raise SystemExit(f"flash_fwd_sm80 does not compile: {[d.message for d in compiled.diagnostics]}")
    return compiled.ptx


def launch(module: simulate.Module, shape: Shape, schedule: Schedule, checkers: frozenset[str]) -> simulate.Run:
    """One launch, which must be clean."""
    result = launch_attention(
        module, shape, tile=64, dtype=np.float16, shared=5 * 64 * 64 * 2, schedule=schedule, log2=True, flag=True,
        checkers=checkers,
    )  # fmt: skip
    if result.run.findings or not result.error < 1e-2:
        raise SystemExit(f"{shape} is not clean: {result}")
    return result.run


def best(module: simulate.Module, schedule: Schedule, checkers: frozenset[str]) -> dict[str, float]:
    """CPU seconds (best of two) and rate of the large launch."""
    seconds: list[float] = []
    instructions = 0
    for _ in range(2):
        run = launch(module, LARGE, schedule, checkers)
        seconds.append(run.cpu_seconds)
        instructions = run.counts.threads
    return {"cpu_s": round(min(seconds), 3), "million_per_s": round(instructions / min(seconds) / 1e6, 1)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="write bench/results/simulate_speed.json")
    record = parser.parse_args().record
    text = ptx()
    started = time.process_time()
    module = simulate.load(text)
    module.kernel(module.kernels[0])
    results: dict[str, object] = {"load_s": round(time.process_time() - started, 3)}
    launch(module, GRID[0], Schedule(), CHECKERS)
    for schedule in SCHEDULES:
        results[f"checked, {schedule.async_} {schedule.order}"] = best(module, schedule, CHECKERS)
    results["unchecked, late forward"] = best(module, Schedule(), frozenset())
    started = time.process_time()
    for shape in GRID:
        for schedule in SCHEDULES:
            launch(module, shape, schedule, CHECKERS)
    results["grid of 10 shapes, 4 schedules"] = {"cpu_s": round(time.process_time() - started, 2)}
    results["peak_memory_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    for name, value in results.items():
        print(f"{name:34} {value}")
    if record:
        write("simulate_speed", {"kernel": "flash_fwd_sm80<__half, 64>", "large": str(LARGE), "results": results})


if __name__ == "__main__":
    main()
