"""The expert kernels, and variants adapted from them, against the fastest attention that a user could pick instead.

``python -m bench.kernels_h200 --out`` on a machine with a GPU, one process: checks each kernel on a grid of shapes,
then every contender of a row against a float32 reference, times the row, checks what the last timed launches wrote, and
writes ``bench/results/kernels_h200.json`` and ``kernels_h200.svg``. Needs torch with a GPU and NVRTC; a peer that is
not installed is left out (fa3: ``fa3_fwd_interface`` or ``flash_attn_interface``; fa4: ``flash_attn.cute``;
FlexAttention: Triton). Variants are adapted by ``cubridge adapt`` from the specs in ``bench/specs``, before, on any
machine (``python -m bench.kernels.adapted``), or at the start.

Method: all contenders of a row take turns launch by launch, 256 MB are written between launches so that nothing of the
inputs is left in the L2 cache, two sets of random inputs rotate, medians of GPU events. The card is power-limited under
these kernels: only figures of one run, taken in turns, compare. TFLOP/s count 2 (D + Dv) per attended pair (i, j).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from cubridge_engine.device.timing import Contender, time_calls

from .kernels.adapted import fill, stored
from .kernels.check import check
from .kernels.ours import Ours, only
from .kernels.peers import Unsupported, peers
from .kernels.picture import picture
from .kernels.problems import ERROR_LIMIT, ROWS, Row, draw, operands_of, wanted_output
from .kernels.timing import gemm_ceiling
from .kernels.warm import warm
from .recording import record, surroundings

ROOT = Path(__file__).parents[1]
KERNELS = ("flash_fwd_sm90", "flash_fwd_sm90_plain", "flash_fwd_sm80")
ADAPTED = ("flash_fwd_sm90", "flash_fwd_sm90_plain")  # variants are made from these
ROUNDS = 20


def our_kernels(rows: list[Row], names: list[str]) -> dict[str, dict[str, Ours]]:
    """Our kernels by row ("" for the plain rows): the bundled ones, or what was adapted from them. Compiled side by
    side.
    """
    tasks: list[tuple[str, str, Callable[[], Ours]]] = [("", name, lambda n=name: Ours(n)) for name in names]
    for row in rows:
        for name in names if row.change is not None else ():
            made = stored(name, row.change.spec) if name in ADAPTED and row.change is not None else None
            if made is not None:
                one = only(name, row.dtype, row.D, row.Dv)
                tasks.append((row.variant, name, lambda n=name, m=made, i=one: Ours(n, m, i)))
    with ThreadPoolExecutor(os.cpu_count() or 2) as pool:
        done = list(pool.map(lambda task: task[2](), tasks))
    found: dict[str, dict[str, Ours]] = {"": {}, **{row.variant: {} for row in rows if row.change is not None}}
    for (row_name, name, _), ours in zip(tasks, done, strict=True):
        found[row_name][name] = ours
    return found


def contenders(
    row: Row, sets: list[dict[str, Any]], operands: dict[str, Any], kernels: dict[str, Ours], failed: list[str]
) -> Iterator[Contender]:
    """Everything that can compute the row. Ours write to o; those that cannot be launched are named in `failed`."""
    import torch

    for name, ours in kernels.items():
        # Of a variant, the kernel does what the spec says; causal is the bundled kernel's own switch.
        try:
            starts = [ours.prepare(t, row.causal, operands) for t in sets]
        except RuntimeError as problem:  # it did not compile, or refused its arguments
            print(f"  {name}: {str(problem)[:200]}", file=sys.stderr)
            failed.append(name)
            continue
        if all(start is not None for start in starts):
            calls = [lambda s=s, t=t: (s() if s else None, t["o"])[1] for s, t in zip(starts, sets, strict=True)]
            yield Contender(name, calls, [t["o"] for t in sets])
    for name, make in peers().items():
        try:
            calls = [make(t, row, operands) for t in sets]
            calls[0]()
            torch.cuda.synchronize()
        except Unsupported:
            continue
        except Exception as problem:  # a peer that cannot do this row
            print(f"  {name}: {type(problem).__name__}: {str(problem).splitlines()[0][:90]}", file=sys.stderr)
            continue
        yield Contender(name, calls)


def measure(row: Row, kernels: dict[str, Ours], rounds: int) -> dict[str, Any]:
    """The record of a row: TFLOP/s by contender; one whose result is wrong, before or after, is named and not rated."""
    sets = [draw(row.B, row.H, row.Hkv, row.S, row.S, row.D, row.Dv, row.dtype, seed) for seed in (1, 2)]
    operands = operands_of(row)
    wanted = [wanted_output(row, t, operands) for t in sets]
    limit = ERROR_LIMIT[row.dtype]
    failed: list[str] = []
    found = list(contenders(row, sets, operands, kernels, failed))
    errors = {c.name: c.worst(wanted) for c in found}
    timed = time_calls([c for c in found if errors[c.name] < limit], wanted, rounds)
    after = {name: value for name, value in timed.errors.items() if value >= limit}
    tflop = row.tflop(operands)
    speed = {name: round(tflop / ms * 1e3, 1) for name, ms in timed.ms.items() if name not in after}
    wrong = [*failed, *(name for name in errors if errors[name] >= limit), *after]
    return {
        "variant": row.variant,
        "shape": row.shape(),
        **_compared(speed, list(kernels)),
        **speed,
        "errors": {name: float(f"{value:.2e}") for name, value in {**errors, **after}.items()},
        "wrong": wrong,
        "compiled": {name: ours.figures() for name, ours in kernels.items()} if row.change is not None else {},
    }


def _compared(speed: dict[str, float], kernels: list[str]) -> dict[str, Any]:
    theirs = {name: value for name, value in speed.items() if name not in kernels}
    best = max(theirs, key=theirs.__getitem__, default=None)
    ours = max((speed[name] for name in kernels if name in speed), default=None)
    return {
        "ours": ours,
        "best_peer": theirs[best] if best else None,
        "best_peer_name": best,
        "ratio": round(ours / theirs[best], 3) if best and ours else None,
    }


def _prepared(args: argparse.Namespace, rows: list[Row]) -> dict[str, float]:
    """Adaptations made and peers compiled, side by side, before anything is timed. Returns seconds by step."""
    specs = [row.change.spec for row in rows if row.change is not None]
    start = time.perf_counter()
    if specs:
        fill([name for name in args.kernels if name in ADAPTED], specs, os.cpu_count() or 2)
    middle = time.perf_counter()
    if args.warm:
        warm([row.variant for row in rows], args.warm)
    return {"adapting_s": round(middle - start, 1), "compiling_peers_s": round(time.perf_counter() - middle, 1)}


def _versions() -> dict[str, Any]:
    import importlib.metadata

    import torch

    from cubridge_engine.device import device_available

    device = device_available()
    known = {"torch": torch.__version__, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    for name in ("triton", "flash-attn-4", "flash-attn", "nvidia-cutlass-dsl"):
        try:
            known[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {**known, "driver": device.driver if device is not None else None}


def _rows(only_names: list[str]) -> list[Row]:
    return [row for row in ROWS if not only_names or any(part in row.variant for part in only_names)]


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", action="store_true", help="write bench/results/kernels_h200.json and .svg")
    parser.add_argument("--only", nargs="*", default=[], help="rows whose name contains one of these")
    parser.add_argument("--kernels", nargs="*", default=list(KERNELS))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument(
        "--warm", type=int, default=os.cpu_count() or 8, help="processes that compile peers beforehand; 0: none"
    )
    parser.add_argument("--skip-check", action="store_true", help="time without the grid of shapes first")
    args = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        print("bench.kernels_h200 needs a CUDA device", file=sys.stderr)
        return 2
    torch.backends.cuda.matmul.allow_tf32 = False
    chosen = _rows(args.only)
    seconds = _prepared(args, chosen)
    start = time.perf_counter()
    ours = our_kernels(chosen, args.kernels)
    kernels = ours[""]
    seconds["compiling_ours_s"] = round(time.perf_counter() - start, 1)
    checks = {} if args.skip_check else {name: check(one) for name, one in kernels.items()}
    seconds["checking_s"] = round(time.perf_counter() - start, 1)
    ceiling = gemm_ceiling(args.rounds)
    rows: list[dict[str, Any]] = []
    report = _report(rows, kernels, checks, ceiling, args.rounds, seconds)
    for row in chosen:
        rows.append(measure(row, ours.get(row.variant, kernels), args.rounds))
        print(json.dumps(rows[-1]), flush=True)
        torch.cuda.empty_cache()
        seconds["total_s"] = round(time.perf_counter() - start, 1)
        report = _report(rows, kernels, checks, ceiling, args.rounds, seconds)
        if args.out:  # a run that is stopped keeps its rows
            record("kernels_h200", report).with_suffix(".svg").write_text(picture(report))
    if not args.out:
        print(json.dumps({**surroundings(), **report}, indent=2))
    return 0


def _report(
    rows: list[dict[str, Any]],
    kernels: dict[str, Ours],
    checks: dict[str, Any],
    ceiling: float,
    rounds: int,
    seconds: dict[str, float],
) -> dict[str, Any]:
    import torch

    ratios = [row["ratio"] for row in rows if row["ratio"]]
    rated = [row for row in rows if row["ratio"]]
    worst = min(rated, key=lambda row: row["ratio"], default=None)
    return {
        "what": "TFLOP/s of our kernels, of variants adapted from them, and of the peers installed, in turns",
        "device": torch.cuda.get_device_name(),
        "versions": _versions(),
        "rounds": rounds,
        "seconds": seconds,
        "gemm_8192": ceiling,
        "geometric_mean": round(statistics.geometric_mean(ratios), 3) if ratios else None,
        "worst": {"variant": worst["variant"], "ratio": worst["ratio"]} if worst else None,
        "checks": checks,
        "compiled": {name: ours.figures() for name, ours in kernels.items()},
        "rows": [{**row, "of_ceiling": round(row["ours"] / ceiling, 3) if row["ours"] else None} for row in rows],
    }


if __name__ == "__main__":
    raise SystemExit(main())
