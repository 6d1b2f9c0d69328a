"""Planted faults of flash_fwd_sm80: which checker finds each, whether numbers do, whether the line is right.

    python bench/planted_faults.py [--record] [--sanitizer FILE --sanitizer-on DEVICE]

FILE is what ``python -m tests.simulate.golden.sanitize --record FILE`` wrote on a GPU; without it the opinions of the
last record are kept.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from bench.recording import record  # noqa: E402
from cubridge_engine import simulate  # noqa: E402
from cubridge_engine.compile import compile_source  # noqa: E402
from cubridge_engine.simulate import SCHEDULES  # noqa: E402
from tests.simulate.conftest import launch_attention  # noqa: E402
from tests.simulate.test_planted_faults import FAULTS, SHAPE, TOLERANCE, Fault  # noqa: E402

LAST = ROOT / "bench/results/planted_faults.json"


def row(fault: Fault) -> dict[str, Any]:
    """Codes that every schedule shows, schedules whose numbers are wrong, and whether the line was named in each."""
    text = (ROOT / "expert_kernels/flash_fwd_sm80/kernel.cu").read_text()
    for old, new in fault.edits:
        text = text.replace(old, new)
    compiled = compile_source(
        text, path="flash.cu", arch="sm_80", name_expressions=("flash_fwd_sm80<__half, 64>",), want=("ptx",),
        options=("-lineinfo",),
    )  # fmt: skip
    assert compiled.ptx is not None
    module = simulate.load(compiled.ptx, {"flash.cu": text})
    lines = text.split("\n")
    codes: list[set[str]] = []
    wrong = right = 0
    for schedule in SCHEDULES:
        result = launch_attention(
            module, SHAPE, tile=64, dtype=np.dtype(np.float16), shared=5 * 64 * 64 * 2, schedule=schedule, log2=True,
            flag=True, offset=fault.offset,
        )  # fmt: skip
        codes.append({f.code for f in result.run.findings})
        wrong += result.error > TOLERANCE
        spans = [s for f in result.run.findings for s in (f.span, *(r.span for r in f.related)) if s is not None]
        right += bool(fault.line) and any(fault.line in lines[s.line] for s in spans)
    return {
        "checker": sorted(set.intersection(*codes)),
        "wrong_numbers": f"{wrong} of {len(SCHEDULES)} schedules",
        "line_right": f"{right} of {len(SCHEDULES)} schedules" if fault.line else "no line to name",
    }


def main() -> None:
    """Print the table, and record it when asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--sanitizer", type=Path)
    parser.add_argument("--sanitizer-on", default="", help="device, driver and version of compute-sanitizer")
    arguments = parser.parse_args()
    before: dict[str, Any] = json.loads(LAST.read_text()) if LAST.exists() else {}
    if arguments.sanitizer:
        opinions = json.loads(arguments.sanitizer.read_text())
    else:
        faults = before.get("faults", {})
        opinions = {name: entry["compute_sanitizer"] for name, entry in faults.items() if "compute_sanitizer" in entry}
    table: dict[str, Any] = {}
    for name, fault in {"unchanged": Fault((), (), False), **FAULTS}.items():
        table[name] = row(fault) | ({"compute_sanitizer": opinions[name]} if name in opinions else {})
        print(f"{name:28} {table[name]}", flush=True)
    if arguments.record:
        report = {
            "kernel": "flash_fwd_sm80<__half, 64>",
            "shape": str(SHAPE),
            "sanitizer_on": arguments.sanitizer_on or before.get("sanitizer_on", ""),
            "faults": table,
        }
        record("planted_faults", report)


if __name__ == "__main__":
    main()
