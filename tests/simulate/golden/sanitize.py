"""``python -m tests.simulate.golden.sanitize``: compute-sanitizer as a second opinion on the planted faults, on a GPU.

Prints one line per fault: what memcheck, racecheck and synccheck say. ``--launch CUBIN KERNEL OFFSET`` is one launch,
which this program starts under each tool.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from tests.simulate.conftest import ROOT
from tests.simulate.test_planted_faults import FAULTS, SHAPE

TOOLS = ("memcheck", "racecheck", "synccheck")
INSTANCE = "\ntemplate __global__ void flash_fwd_sm80<__half, 64>(" + "const __half*, " * 3 + "__half*, float*, "
INSTANCE += "long long, " * 12 + "int, int, int, int, float, int);\n"


def launch(cubin: str, kernel: str, offset: int) -> None:
    """Launch once; rows and heads are contiguous, every tensor its own allocation."""
    from cuda.bindings import driver as cu  # type: ignore[import-not-found]

    from .record import Gpu, check

    Gpu()
    function = check(cu.cuModuleGetFunction(check(cu.cuModuleLoadData(Path(cubin).read_bytes())), kernel.encode()))
    shared = 5 * 64 * 64 * 2
    check(
        cu.cuFuncSetAttribute(function, cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared)
    )
    s, rng = SHAPE, np.random.default_rng(0)
    shapes = [(s.h, s.sq, 64), (s.hkv, s.sk, 64), (s.hkv, s.sk, 64), (s.h, s.sq, 64), (s.h, s.sq)]
    values: list[np.ndarray] = []
    for i, shape in enumerate(shapes):
        data = rng.standard_normal(shape).astype(np.float32 if i == 4 else np.float16)
        pointer = check(cu.cuMemAlloc(data.nbytes + (offset if i < 3 else 0)))
        check(cu.cuMemcpyHtoD(pointer, data.ctypes.data, data.nbytes))
        values.append(np.uint64(int(pointer) + (offset if i < 3 else 0)))
    for heads, rows, width in shapes[:4]:
        values += [np.int64(heads * rows * width), np.int64(rows * width), np.int64(width)]
    values += [np.int32(n) for n in (s.sq, s.sk, s.h, s.hkv)] + [np.float32(0.18), np.int32(0)]
    held = [np.array([v]) for v in values]
    pointers = np.array([h.ctypes.data for h in held], np.uint64)
    check(cu.cuLaunchKernel(function, -(-s.sq // 64), s.h, 1, 128, 1, 1, shared, 0, pointers.ctypes.data, 0))
    check(cu.cuCtxSynchronize())


def opinion(name: str, folder: str) -> str:
    """What the three tools say of a fault."""
    fault = FAULTS.get(name)
    text = (ROOT / "expert_kernels/flash_fwd_sm80/kernel.cu").read_text()
    for old, new in fault.edits if fault else ():
        text = text.replace(old, new)
    stem = Path(folder) / re.sub(r"\W", "_", name)
    stem.with_suffix(".cu").write_text(text + INSTANCE)
    cubin = stem.with_suffix(".cubin")
    subprocess.run(
        ["nvcc", "-cubin", "-arch=sm_90", "-lineinfo", "-o", str(cubin), str(stem.with_suffix(".cu"))], check=True
    )
    kernel = re.search(rb"_Z\d*flash_fwd_sm80\w+", cubin.read_bytes())
    assert kernel is not None
    said: list[str] = []
    for tool in TOOLS:
        command = [
            "compute-sanitizer",
            "--tool",
            tool,
            sys.executable,
            "-m",
            "tests.simulate.golden.sanitize",
            "--launch",
        ]
        command += [str(cubin), kernel[0].decode(), str(fault.offset if fault else 0)]
        try:
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=90, check=False)
        except subprocess.TimeoutExpired:
            said.append(f"{tool}: hangs")
            continue
        found = re.search(r"(ERROR SUMMARY|RACECHECK SUMMARY): (.*)", done.stdout)
        kinds = sorted(
            set(
                re.findall(
                    r"========= (?:Error: )?((?:Invalid|Race|Barrier|Potential|Divergent|Warp)[^:(.]{0,60})",
                    done.stdout,
                )
            )
        )
        said.append(f"{tool}: {found[2] if found else 'no summary'} {kinds[:2]}")
    return f"{name:28} " + " | ".join(said)


def main() -> None:
    """All faults, and the kernel without one."""
    if sys.argv[1:2] == ["--launch"]:
        launch(sys.argv[2], sys.argv[3], int(sys.argv[4]))
        return
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(8) as pool:
        for line in pool.map(lambda name: opinion(name, folder), ["unchanged", *FAULTS]):
            print(line, flush=True)


if __name__ == "__main__":
    main()
