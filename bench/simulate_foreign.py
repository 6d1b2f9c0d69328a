"""Kernels that nobody here wrote in the simulator: error against NumPy, findings, seconds, under every schedule.

    python bench/simulate_foreign.py --cache FOLDER [--record]

FOLDER keeps the wheels and the PTX. CuTe, CUTLASS and FlashInfer are compiled from their wheels; Triton's PTX is that
of tests/simulate/foreign. Where the simulator finds something wrong with a kernel as shipped, `as_shipped` has the
codes, and the schedules are those of the kernel put right.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from bench.recording import record  # noqa: E402
from cubridge_engine import simulate  # noqa: E402
from cubridge_engine.simulate import SCHEDULES, Schedule  # noqa: E402
from tests.simulate import test_foreign  # noqa: E402
from tests.simulate.foreign.headers import HEADERS, ptx_of  # noqa: E402
from tests.simulate.foreign.wheels import TRITON, Missing  # noqa: E402


def measure(name: str, cache: Path) -> dict[str, Any]:
    """All schedules of one kernel of a library, or why it is not to be had."""
    header = HEADERS[name]
    facts: dict[str, Any] = {"wheel": header.wheel.pin, "arch": header.arch}
    try:
        text = ptx_of(name, cache)
    except Missing as reason:
        return {**facts, "missing": str(reason)}
    module = simulate.load(header.mend(text))
    if header.mend(text) != text:
        as_shipped = header.launch(simulate.load(text), Schedule())
        facts["as_shipped"] = sorted({f.code for f in as_shipped.run.findings})
    rows: dict[str, Any] = {}
    for schedule in SCHEDULES:
        case = header.launch(module, schedule)
        rows[f"{schedule.async_} {schedule.order}"] = row(case.run, case.error, case.tolerance)
    return {**facts, "ptx_lines": text.count("\n"), "schedules": rows}


def measure_triton(name: str, tolerance: float) -> dict[str, Any]:
    """All schedules of one kernel of Triton."""
    text = (test_foreign.FOREIGN / f"{name}.ptx").read_text()
    run = test_foreign.run_attention if name.startswith("attention") else test_foreign.run_product
    module = simulate.load(text)
    rows = {f"{s.async_} {s.order}": row(*run(name, 200, s, module=module), tolerance) for s in SCHEDULES}
    target = re.search(r"\.target (\w+)", text)
    arch = target[1] if target else ""
    return {"wheel": TRITON.pin, "arch": arch, "ptx_lines": text.count("\n"), "schedules": rows}


def row(run: simulate.Run, error: float, tolerance: float) -> dict[str, Any]:
    """One launch."""
    return {
        "error": float(f"{error:.3g}"),
        "tolerance": tolerance,
        "findings": [f.code for f in run.findings],
        "thread_instructions": int(run.counts.threads),
        "seconds": round(run.seconds, 3),
    }


def main() -> None:
    """Print, and record when asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--record", action="store_true")
    arguments = parser.parse_args()
    arguments.cache.mkdir(parents=True, exist_ok=True)
    table = {name: measure_triton(name, tolerance) for name, tolerance in test_foreign.TOLERANCES.items()}
    table |= {name: measure(name, arguments.cache) for name in HEADERS}
    for name, entry in table.items():
        print(f"{name:28} {entry}")
    if arguments.record:
        record("simulate_foreign", {"kernels": table})


if __name__ == "__main__":
    main()
