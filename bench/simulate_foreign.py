"""Kernels of CuTe and FlashInfer in the simulator: error against NumPy, findings, seconds, under every schedule.

    python bench/simulate_foreign.py --cache FOLDER [--record]

FOLDER keeps the wheels and the PTX; CUBRIDGE_FOREIGN=1 allows the large wheel (FlashInfer, 100 MB) to be fetched.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from bench.recording import record  # noqa: E402
from cubridge_engine import simulate  # noqa: E402
from cubridge_engine.simulate import SCHEDULES  # noqa: E402
from tests.simulate.foreign.headers import HEADERS, Missing, ptx_of  # noqa: E402


def measure(name: str, cache: Path) -> dict[str, Any]:
    """All schedules of one kernel, or why it is not to be had."""
    header = HEADERS[name]
    try:
        text = ptx_of(name, cache)
    except Missing as reason:
        return {"wheel": header.wheel, "missing": str(reason)}
    module = simulate.load(text)
    rows: dict[str, Any] = {}
    for schedule in SCHEDULES:
        case = header.launch(module, schedule)
        rows[f"{schedule.async_} {schedule.order}"] = {
            "error": float(f"{case.error:.3g}"),
            "tolerance": case.tolerance,
            "findings": [f.code for f in case.run.findings],
            "thread_instructions": int(case.run.counts.threads),
            "seconds": round(case.run.seconds, 3),
        }
    return {"wheel": header.wheel, "arch": header.arch, "ptx_lines": text.count("\n"), "schedules": rows}


def main() -> None:
    """Print, and record when asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--record", action="store_true")
    arguments = parser.parse_args()
    arguments.cache.mkdir(parents=True, exist_ok=True)
    table = {name: measure(name, arguments.cache) for name in HEADERS}
    for name, entry in table.items():
        print(f"{name:28} {entry}")
    if arguments.record:
        record("simulate_foreign", {"kernels": table})


if __name__ == "__main__":
    main()
