"""Adapt every example on every expert kernel and record the level each pair reached.

``python -m bench.examples --out bench/results/examples_cpu.json`` prints the table as Markdown and writes the record:
device, versions, commit, and per pair the level, the problems run, the worst row error per element type, registers and
spills. On a machine with a GPU the pairs go to level ``gpu``; ``--specs bench/specs`` takes the
benchmark's variants. Timings in the record are of this run on this machine and are no claim.
"""

from __future__ import annotations

import argparse
import json
import platform
import queue
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from cubridge_engine.jobs import Worker

ROOT = Path(__file__).parents[1]
KERNELS = ("flash_fwd_sm80", "flash_fwd_scalar")


def commit() -> str:
    """The commit of the checkout, or 'unknown' outside one."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def summary(result: dict[str, Any], seconds: float) -> dict[str, Any]:
    """What the record keeps of one adaptation."""
    report = result.get("report") or {}
    cases = report.get("cases", [])
    worst: dict[str, float] = {}
    for case in cases:
        key = f"{case['level']} {case['dtype']}"
        worst[key] = max(worst.get(key, 0.0), float(case["worst_o"]))
    refusals = [d for d in result["diagnostics"] if d["severity"] == "error"]
    return {
        "level": result["level"],
        "hunks": len(result["hunks"]),
        "lines": sum(1 for line in result["diff"].splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")),
        "problems": {level: sum(c["level"] == level for c in cases) for level in ("ir", "simulated", "gpu")},
        "passed": sum(c["passed"] for c in cases),
        "simulated": {
            one["instantiation"]: f"{len(one['cases'])} problems, {len(one['schedules'])} schedules"
            for one in report.get("simulated", [])
        },
        "worst_row_error": worst,
        "registers": max((c["registers"] or 0 for c in report.get("compiled", [])), default=None),
        "spill_bytes": max((c["spill_bytes"] or 0 for c in report.get("compiled", [])), default=None),
        "refused": refusals[0]["code"] + " " + refusals[0]["message"] if refusals else None,
        "bindings": result["bindings"],
        "seconds": round(seconds, 2),
        "device": report.get("device"),
        "versions": report.get("versions", {}),
    }


def one(worker: Worker, spec: Path, name: str, options: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    """The row of one pair."""
    task = {"kernel": str(ROOT / "expert_kernels" / name / "kernel.cu"), "spec": str(spec), **options}
    start = time.perf_counter()
    outcome = worker.run("adapt", task, timeout_s=timeout_s).result()
    seconds = time.perf_counter() - start
    if outcome.state == "done":
        return summary(outcome.value, seconds)
    codes = ", ".join(f"{d.code} {d.message}" for d in outcome.diagnostics)
    return {"level": "none", "refused": f"job {outcome.state}: {codes}", "hunks": 0}


def run(
    examples: list[Path], kernels: tuple[str, ...], options: dict[str, Any], timeout_s: float, jobs: int
) -> dict[str, dict[str, Any]]:
    """One adaptation per pair, in `jobs` warm workers side by side."""
    workers: queue.Queue[Worker] = queue.Queue()
    for _ in range(jobs):
        workers.put(Worker())

    def pair(spec: Path, name: str) -> tuple[str, str, dict[str, Any]]:
        worker = workers.get()
        try:
            row = one(worker, spec, name, options, timeout_s)
        finally:
            workers.put(worker)
        print(f"{spec.stem} x {name}: {row['level']} {row.get('refused') or ''}", file=sys.stderr, flush=True)
        return spec.stem, name, row

    table: dict[str, dict[str, Any]] = {spec.stem: {} for spec in examples}
    try:
        with ThreadPoolExecutor(jobs) as pool:
            pairs = [pool.submit(pair, spec, name) for spec in examples for name in kernels]
            for done in pairs:
                stem, name, row = done.result()
                table[stem][name] = row
    finally:
        while not workers.empty():
            workers.get().close()
    return table


def markdown(table: dict[str, dict[str, Any]], kernels: tuple[str, ...]) -> str:
    """The table of spec x kernel x level reached."""
    lines = ["| spec | " + " | ".join(kernels) + " |", "| --- |" + " --- |" * len(kernels)]
    for spec, row in table.items():
        cells = []
        for name in kernels:
            cell = row[name]
            done = f"**{cell['level']}**, {cell['hunks']} hunks"
            cells.append(f"refused: {cell['refused'][:60]}" if cell.get("refused") else done)
        lines.append(f"| {spec} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--specs", type=Path, default=ROOT / "examples", help="the folder of specs")
    parser.add_argument("--only", nargs="*", help="names of specs")
    parser.add_argument("--kernels", nargs="*", default=list(KERNELS))
    parser.add_argument("--timeout", type=float, default=300.0)
    parser.add_argument("--jobs", type=int, default=1, help="pairs side by side")
    parser.add_argument("--no-simulator", action="store_true", help="go from compiling to the GPU at once")
    args = parser.parse_args()
    examples = sorted(p for p in args.specs.resolve().glob("*.py") if not args.only or p.stem in args.only)
    kernels = tuple(args.kernels)
    table = run(examples, kernels, {"use_simulator": not args.no_simulator}, args.timeout, args.jobs)
    print(markdown(table, kernels))
    record = {
        "what": "level reached by `cubridge adapt` for every spec of a folder on every kernel named",
        "specs": args.specs.name,
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "table": table,
    }
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(record, indent=1) + "\n")
    bad = [s for s, row in table.items() for cell in row.values() if cell["level"] == "none"]
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
