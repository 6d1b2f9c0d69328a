"""``python -m tests.simulate.golden.sanitize``: compute-sanitizer as a second opinion on the planted faults, on a GPU.

Prints one line per fault: what memcheck, racecheck and synccheck say; ``--record FILE`` writes the same as JSON, which
bench/planted_faults.py joins with the simulator's findings. ``--launch CUBIN KERNEL OFFSET`` is one launch, which this
program starts under each tool.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import numpy as np

from tests.simulate.conftest import ROOT
from tests.simulate.test_planted_faults import FAULTS, SHAPE

TOOLS = ("memcheck", "racecheck", "synccheck")
TIMEOUT_S = 30  # per tool: what takes longer waits for ever
KIND = re.compile(
    r"========= (?:Error: )?((?:Invalid|Race|Barrier|Potential|Divergent|Warp)[^:(.]{0,60}?)(?:[:(.\n]|$)", re.M
)
CLEAN = re.compile(r"0 errors|0 hazards")
INSTANCE = "\ntemplate __global__ void flash_fwd_sm80<__half, 64>(" + "const __half*, " * 3 + "__half*, float*, "
INSTANCE += "long long, " * 12 + "int, int, int, int, float, int);\n"


def launch(cubin: str, kernel: str, offset: int) -> None:
    """Launch once; rows and heads are contiguous, every tensor its own allocation."""
    from cuda.bindings import driver as cu  # type: ignore[import-not-found]

    from tests.simulate.gpu import Gpu, check

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


def cubin_of(name: str, folder: str) -> tuple[Path, str]:
    """The kernel with the fault, compiled, and its name in the cubin."""
    fault = FAULTS.get(name)
    text = (ROOT / "expert_kernels/flash_fwd_sm80/kernel.cu").read_text()
    for old, new in fault.edits if fault else ():
        text = text.replace(old, new)
    stem = Path(folder) / re.sub(r"\W", "_", name)
    source, cubin = stem.with_suffix(".cu"), stem.with_suffix(".cubin")
    source.write_text(text + INSTANCE)
    subprocess.run(["nvcc", "-cubin", "-arch=sm_90", "-lineinfo", "-o", str(cubin), str(source)], check=True)
    kernel = re.search(rb"_Z\d*flash_fwd_sm80\w+", cubin.read_bytes())
    assert kernel is not None
    return cubin, kernel[0].decode()


def opinion(name: str, folder: str) -> dict[str, str]:
    """What each of the tools says of a fault: ``clean``, ``hangs``, or its summary and the kinds it names."""
    fault = FAULTS.get(name)
    cubin, kernel = cubin_of(name, folder)
    program = [sys.executable, "-m", "tests.simulate.golden.sanitize", "--launch"]
    said: dict[str, str] = {}
    for tool in TOOLS:
        command = ["compute-sanitizer", "--tool", tool, *program, str(cubin), kernel]
        try:
            done = subprocess.run(
                [*command, str(fault.offset if fault else 0)],
                cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            said[tool] = "hangs"
            continue
        summary = re.search(r"(?:ERROR|RACECHECK) SUMMARY: (.*)", done.stdout)
        kinds = sorted(set(KIND.findall(done.stdout)))[:2]
        text = summary[1] if summary else f"no summary: {(done.stdout + done.stderr).strip()[-160:]}"
        said[tool] = "clean" if CLEAN.match(text) else f"{text} ({'; '.join(kinds)})" if kinds else text
    return said


def main() -> None:
    """All faults, and the kernel without one."""
    if sys.argv[1:2] == ["--launch"]:
        launch(sys.argv[2], sys.argv[3], int(sys.argv[4]))
        return
    names = ["unchanged", *FAULTS]
    target = Path(sys.argv[2]) if sys.argv[1:2] == ["--record"] else None
    table: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(len(names)) as pool:
        waiting = {pool.submit(opinion, name, folder): name for name in names}
        for done in as_completed(waiting):
            table[waiting[done]] = done.result()
            print(f"{waiting[done]:28} {table[waiting[done]]}", flush=True)
            if target is not None:  # after each, so that a limit on the machine's time loses little
                target.write_text(json.dumps({n: table[n] for n in names if n in table}, indent=2) + "\n")


if __name__ == "__main__":
    main()
