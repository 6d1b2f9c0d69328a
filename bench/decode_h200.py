"""flash_decode against the fastest decoding that a user could pick instead, on one GPU, in one process.

``python -m bench.decode_h200 --out`` on a machine with a GPU: checks our kernel on a grid of shapes, then every
contender of a row against a float32 reference, times the row, checks what the last timed launches wrote, and writes
``bench/results/decode_h200.json``. Needs torch with a GPU and NVRTC; a peer that is not installed is left out.

Method: all contenders of a row take turns launch by launch; sets of inputs, each many times the L2 cache, rotate, so
that every launch reads its keys from memory; medians of GPU events, with the GPU kept busy while the host gets ahead.
GB/s count the bytes of K and V, once. The ceiling is what a copy of 1 GiB reads and writes per second.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from typing import Any

from .decode.check import check
from .decode.ours import Ours
from .decode.peers import Unsupported, peers
from .decode.problems import Inputs, Row, reference
from .kernels.problems import ERROR_LIMIT, error
from .recording import record, surroundings

ROWS = [
    Row("B=64 S=4096 32/8", 64, 32, 8, 4096),
    Row("B=64 S=4096 32/8 paged", 64, 32, 8, 4096, page=64),
    Row("B=4 S=32768 64/8", 4, 64, 8, 32768),
    Row("B=4 S=32768 64/8 paged", 4, 64, 8, 32768, page=64),
    Row("B=1 S=65536 32/8", 1, 32, 8, 65536),
    Row("B=16 S=8192 32/8 Sq=4", 16, 32, 8, 8192, Sq=4),
    Row("B=32 S=8192 32/8 D=64", 32, 32, 8, 8192, D=64),
]
SETS = 2
AHEAD_CYCLES = 3_000_000  # of the GPU, at the start of a round: about 2 ms
WARM_UP = 3
Call = Callable[[], Any]


def contenders(row: Row, sets: list[Inputs], ours: Ours, skip: list[str]) -> dict[str, list[Call]]:
    """A call per set of inputs of everything that can compute the row. Ours write to o."""
    import torch

    found = {"flash_decode": [ours.prepare(x) for x in sets]}
    for name, make in peers().items():
        if name in skip:
            continue
        try:
            calls = [make(x) for x in sets]
            calls[0]()
            torch.cuda.synchronize()
        except Unsupported:
            continue
        except Exception as problem:  # a peer that cannot do this row
            print(f"  {name}: {type(problem).__name__}: {str(problem).splitlines()[0][:90]}", file=sys.stderr)
            continue
        found[name] = calls
    return found


def time_calls(calls: dict[str, list[Call]], rounds: int) -> tuple[dict[str, float], dict[str, list[Any]]]:
    """Median milliseconds of each contender, in turns, and what its last launches returned, by set."""
    import torch

    events: dict[str, list[tuple[Any, Any]]] = {name: [] for name in calls}
    last: dict[str, list[Any]] = {name: [None] * len(own) for name, own in calls.items()}
    for number in range(rounds + WARM_UP):
        torch.cuda._sleep(AHEAD_CYCLES)  # pyright: ignore[reportPrivateUsage]
        for name, own in calls.items():
            one = number % len(own)
            pair = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            last[name][one] = None  # its memory can be used again
            pair[0].record()
            last[name][one] = own[one]()
            pair[1].record()
            if number >= WARM_UP:
                events[name].append(pair)
        torch.cuda.synchronize()
    return {n: statistics.median(a.elapsed_time(b) for a, b in pairs) for n, pairs in events.items()}, last


def copy_ceiling(rounds: int) -> float:
    """GB/s that a copy of 1 GiB reads and writes."""
    import torch

    source = [torch.empty(1 << 30, dtype=torch.int8, device="cuda") for _ in range(2)]
    target = torch.empty_like(source[0])
    ms, _ = time_calls({"copy": [lambda s=s: target.copy_(s) for s in source]}, rounds)
    return round(2 * (1 << 30) / ms["copy"] / 1e6, 1)


def measure(row: Row, ours: Ours, rounds: int, skip: list[str]) -> dict[str, Any]:
    """The record of a row: GB/s by contender; one whose result is wrong, before or after, has no figure."""
    sets = [
        Inputs(row.B, row.H, row.Hkv, row.Sq, row.S, row.D, row.D, row.dtype, seed, row.page) for seed in range(SETS)
    ]
    wanted = [reference(x)[0] for x in sets]
    calls = contenders(row, sets, ours, skip)
    limit = ERROR_LIMIT[row.dtype]

    def worst(results: list[Any]) -> float:
        return max(error(got, right) for got, right in zip(results, wanted, strict=True))

    before = {name: worst([call() for call in own]) for name, own in calls.items()}
    for x in sets:
        x.poison()
    ms, last = time_calls({name: own for name, own in calls.items() if before[name] < limit}, rounds)
    errors = {name: max(before[name], worst(last[name])) if name in last else before[name] for name in calls}
    speed = {name: round(row.kv_bytes / t / 1e6, 1) for name, t in ms.items() if errors[name] < limit}
    theirs = {name: value for name, value in speed.items() if name != "flash_decode"}
    best = max(theirs, key=theirs.__getitem__, default=None)
    own = speed.get("flash_decode")
    return {
        "variant": row.variant,
        "shape": row.shape(),
        "ours": own,
        "best_peer": theirs[best] if best else None,
        "best_peer_name": best,
        "ratio": round(own / theirs[best], 3) if best and own else None,
        **speed,
        "errors": {name: float(f"{value:.2e}") for name, value in errors.items()},
        "wrong": [name for name in errors if name not in speed],
    }


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", action="store_true", help="write bench/results/decode_h200.json")
    parser.add_argument("--only", nargs="*", default=[], help="rows whose name contains one of these")
    parser.add_argument("--skip", nargs="*", default=[], help="peers to leave out")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--skip-check", action="store_true", help="time without the grid of shapes first")
    args = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        print("bench.decode_h200 needs a CUDA device", file=sys.stderr)
        return 2
    torch.backends.cuda.matmul.allow_tf32 = False
    ours = Ours()
    checks = [] if args.skip_check else check(ours)
    rows: list[dict[str, Any]] = []
    for row in ROWS:
        if args.only and not any(part in row.variant for part in args.only):
            continue
        rows.append(measure(row, ours, args.rounds, args.skip))
        print(json.dumps(rows[-1]), flush=True)
        torch.cuda.empty_cache()
    ratios = [r["ratio"] for r in rows if r["ratio"]]
    report = {
        "what": "GB/s of K and V of our decoding kernel and of the peers installed, in turns, in one process",
        "device": torch.cuda.get_device_name(),
        "versions": {"torch": torch.__version__, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()},
        "rounds": args.rounds,
        "copy_ceiling": copy_ceiling(20),
        "geometric_mean": round(statistics.geometric_mean(ratios), 3) if ratios else None,
        "checks": checks,
        "compiled": ours.figures(),
        "rows": rows,
    }
    print(record("decode_h200", report) if args.out else json.dumps({**surroundings(), **report}, indent=2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
