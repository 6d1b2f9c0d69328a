"""Compiling the peers of rows beforehand, in processes side by side that share the compiler's cache on disk.

``python -m bench.kernels.warm ROW ...`` is one such process: it calls every peer that is compiled once.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIMIT_S = 240
COMPILED = ("flex_triton", "flex_flash", "fa4", "fa4_varlen", "torch_compile")


def warm(names: list[str], jobs: int) -> None:
    """Compile for the rows of these names, `jobs` processes side by side. What fails shows when the row is measured."""

    def run(name: str) -> None:
        command = [sys.executable, "-m", "bench.kernels.warm", name]
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=LIMIT_S)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(run, names))


def main() -> int:
    """Call the compiled peers of the rows named, once each."""
    from .peers import Unsupported, peers
    from .problems import ROWS, draw, operands_of

    makers = {name: make for name, make in peers().items() if name in COMPILED}
    for row in ROWS:
        if row.variant not in sys.argv[1:]:
            continue
        tensors = draw(row.B, row.H, row.Hkv, row.S, row.S, row.D, row.Dv, row.dtype, 1)
        operands = operands_of(row)
        for name, make in makers.items():
            try:
                make(tensors, row, operands)()
            except Unsupported:
                continue
            except Exception as problem:  # reported where the row is measured
                print(f"{row.variant}: {name}: {problem}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
