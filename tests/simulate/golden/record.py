"""``python -m tests.simulate.golden.record OUT.npz``: run every case on a GPU (sm_90a) and store what it answers.

Needs cuda-bindings and nvcc. Prints the cases where the simulator differs, and flash_fwd_sm80 on both against float64.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from cuda.bindings import driver as cu  # type: ignore[import-not-found]

from cubridge_engine.simulate import Buffer
from tests.simulate.conftest import ROOT, Shape, attention
from tests.simulate.gpu import Gpu, check

from .cases import SOURCES, cases
from .compare import differences, simulated

INSTANCES = {
    "hopper": "".join(
        f"template __global__ void product<{a}, {b}>(const __grid_constant__ Map, const __grid_constant__ Map, float*, "
        "Operand, Operand);\n"
        for a in (0, 1)
        for b in (0, 1)
    ),
    "cluster": "".join(
        f"template __global__ void columns<{rank}>(const __grid_constant__ Map, u32*, {', '.join(['int'] * 9)});\n"
        for rank in (3, 4, 5)
    ),
}


def build(source: str, arch: str, extra: str = "") -> tuple[bytes, str]:
    """nvcc: machine code, and the PTX text."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cu"
        path.write_text(source + extra)
        for flag in ("-cubin", "-ptx"):
            subprocess.run(
                [
                    "nvcc",
                    flag,
                    f"-arch={arch}",
                    "-std=c++17",
                    "-o",
                    str(path.with_suffix(flag.replace("-", "."))),
                    str(path),
                ],
                check=True,
            )
        return path.with_suffix(".cubin").read_bytes(), path.with_suffix(".ptx").read_text()


def flash(gpu: Gpu) -> None:
    """flash_fwd_sm80 on both, against float64."""
    from cubridge_engine import simulate

    source = (ROOT / "expert_kernels/flash_fwd_sm80/kernel.cu").read_text()
    cubin, ptx = build(
        source,
        "sm_90",
        "\ntemplate __global__ void flash_fwd_sm80<__half, 64>("
        + "const __half*, " * 3
        + "__half*, float*, "
        + "long long, " * 12
        + "int, int, int, int, float, int);\n",
    )
    module, ours = check(cu.cuModuleLoadData(cubin)), simulate.load(ptx)
    for shape in (Shape(sq=128, sk=256), Shape(h=4, hkv=2, sq=100, sk=330, causal=1), Shape(sq=65, sk=1)):
        rng = np.random.default_rng(0)
        q = rng.standard_normal((1, shape.h, shape.sq, 64)).astype(np.float16)
        k, v = (rng.standard_normal((1, shape.hkv, shape.sk, 64)).astype(np.float16) for _ in range(2))
        given = [Buffer(x, "in", n) for x, n in zip((q, k, v), "QKV", strict=True)]
        out, lse = (
            Buffer(np.zeros_like(q), "out", "O"),
            Buffer(np.zeros((1, shape.h, shape.sq), np.float32), "out", "LSE"),
        )
        strides = [np.int64(s) for b in (*given, out) for s in b.strides[:3]]
        numbers = [np.int32(n) for n in (shape.sq, shape.sk, shape.h, shape.hkv)]
        args = [*given, out, lse, *strides, *numbers, np.float32(0.125 * np.log2(np.e)), np.int32(shape.causal)]
        grid, shared = (-(-shape.sq // 64), shape.h, 1), 5 * 64 * 64 * 2
        theirs = gpu.launch(module, ours.kernels[0], grid, (128,), args, shared)
        mine = ours.launch(ours.kernels[0], grid, (128,), args, dynamic_shared=shared).outputs
        want, _ = attention(q, k, v, 0.125, bool(shape.causal))
        errors = [float(np.abs(x["O"].astype(np.float64) - want).max()) for x in (theirs, mine)]
        between = float(np.abs(theirs["O"].astype(np.float64) - mine["O"].astype(np.float64)).max())
        print(f"flash_fwd_sm80 {shape}: GPU {errors[0]:.2e}, simulator {errors[1]:.2e}, between {between:.2e}")


def main() -> None:
    """Record to the file named on the command line."""
    gpu = Gpu()
    files: dict[str, tuple[Any, list[str]]] = {}
    for file, text in SOURCES.items():
        cubin, ptx = build(text, "sm_90a", INSTANCES[file])
        entries = [line.split("(")[0].split()[-1] for line in ptx.split("\n") if ".entry" in line]
        files[file] = (check(cu.cuModuleLoadData(cubin)), entries)
    stored: dict[str, np.ndarray] = {}
    differing = 0
    skipped = sys.argv[2:]
    for case in cases():
        if case.name in skipped:
            continue
        try:
            module, entries = files[case.file]
            module = check(cu.cuModuleLoadData(case.ptx.encode() + b"\0")) if case.ptx else module
        except RuntimeError as error:
            print(f"{case.name}: the driver refuses it: {error}")
            continue
        kernel = "k" if case.ptx else next(e for e in entries if case.kernel in e)
        try:
            theirs = gpu.launch(module, kernel, case.grid, case.block, case.args, case.shared)
        except RuntimeError as error:
            # The context is lost: what follows must be recorded by another run.
            print(f"{case.name}: the launch failed: {error}")
            break
        stored.update({f"{case.name}|{name}": x for name, x in theirs.items()})
        try:
            ours = simulated(case)
        except AssertionError as error:
            print(f"{case.name}: {error}")
            continue
        for name, x in theirs.items():
            count = differences(case, ours[name], x)
            if count:
                differing += 1
                bad = np.flatnonzero(ours[name].ravel() != x.ravel())[:3]
                print(f"{case.name} {name}: {count} differ; ours {ours[name].ravel()[bad]}, GPU {x.ravel()[bad]}")
    np.savez_compressed(sys.argv[1], **stored)
    print(f"{len(stored)} outputs recorded, {differing} differ from the simulator")
    flash(gpu)


if __name__ == "__main__":
    main()
