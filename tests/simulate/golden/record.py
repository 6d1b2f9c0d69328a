"""``python -m tests.simulate.golden.record OUT.npz``: run every case on a GPU (sm_90a) and store what it answers.

Needs cuda-bindings and nvcc. Prints the cases where the simulator differs, and flash_fwd_sm80 on both against float64.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from cuda.bindings import driver as cu  # type: ignore[import-not-found]

from cubridge_engine.simulate import Buffer, TensorMap
from tests.simulate.conftest import ROOT, Shape, attention

from .cases import HOPPER, Case, cases
from .compare import differences, simulated

SWIZZLES = {
    0: cu.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_NONE,
    32: cu.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_32B,
    64: cu.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_64B,
    128: cu.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
}
TYPES = {
    "uint16": cu.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
    "float32": cu.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
}


def check(result: tuple[Any, ...]) -> Any:
    """The value of a driver call. Raises RuntimeError for an error code."""
    if result[0] != cu.CUresult.CUDA_SUCCESS:
        raise RuntimeError(str(result[0]))
    return result[1] if len(result) == 2 else result[1:]


class Gpu:
    """The first device, through the driver."""

    def __init__(self) -> None:
        check(cu.cuInit(0))
        self.device = check(cu.cuDeviceGet(0))
        self.context = check(cu.cuDevicePrimaryCtxRetain(self.device))
        check(cu.cuCtxSetCurrent(self.context))

    def launch(self, module: Any, kernel: str, case: Case) -> dict[str, np.ndarray]:
        """Outputs of a case."""
        function = check(cu.cuModuleGetFunction(module, kernel.encode()))
        if case.shared:
            attribute = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            check(cu.cuFuncSetAttribute(function, attribute, case.shared))
        memory: dict[int, Any] = {}
        buffers = [a.buffer if isinstance(a, TensorMap) else a for a in case.args if isinstance(a, Buffer | TensorMap)]
        for buffer in buffers:
            assert not buffer.isolate
            memory[id(buffer)] = check(cu.cuMemAlloc(max(buffer.array.nbytes, 16)))
            check(cu.cuMemcpyHtoD(memory[id(buffer)], buffer.array.ctypes.data, buffer.array.nbytes))
        values: list[Any] = []
        pointers = (ctypes.c_void_p * len(case.args))()
        for i, argument in enumerate(case.args):
            if isinstance(argument, TensorMap):
                encoded = self.encode(argument, memory[id(argument.buffer)])
                values.append(encoded)
                pointers[i] = int(encoded.getPtr())
                continue
            if isinstance(argument, Buffer):
                raw = int(memory[id(argument)]).to_bytes(8, "little")
            elif isinstance(argument, bytes):
                raw = argument
            elif isinstance(argument, np.generic):
                raw = argument.tobytes()
            else:
                raw = (int(argument) & (2**64 - 1)).to_bytes(8, "little")
            held = ctypes.create_string_buffer(raw, len(raw))
            values.append(held)
            pointers[i] = ctypes.addressof(held)
        grid, block = ((*e, 1, 1)[:3] for e in (case.grid, case.block))
        check(cu.cuLaunchKernel(function, *grid, *block, case.shared, 0, ctypes.addressof(pointers), 0))
        check(cu.cuCtxSynchronize())
        outputs: dict[str, np.ndarray] = {}
        for buffer in buffers:
            if buffer.role != "in":
                result = np.empty_like(buffer.array)
                check(cu.cuMemcpyDtoH(result.ctypes.data, memory[id(buffer)], result.nbytes))
                outputs[buffer.name] = result
        for pointer in memory.values():
            check(cu.cuMemFree(pointer))
        return outputs

    def encode(self, tensor: TensorMap, address: Any) -> Any:
        """The driver's form of a tensor map."""
        rank = len(tensor.dims)
        fill = cu.CUtensorMapFloatOOBfill
        nan, zero = (
            fill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA,
            fill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
        return check(
            cu.cuTensorMapEncodeTiled(
                TYPES[tensor.buffer.array.dtype.name], rank, int(address) + tensor.offset,
                [cu.cuuint64_t(d) for d in tensor.dims], [cu.cuuint64_t(s) for s in tensor.strides],
                [cu.cuuint32_t(b) for b in tensor.box], [cu.cuuint32_t(1)] * rank,
                cu.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE, SWIZZLES[tensor.swizzle],
                cu.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_NONE, nan if tensor.fill_nan else zero,
            )
        )  # fmt: skip


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
        case = Case("flash", "", "", (-(-shape.sq // 64), shape.h, 1), (128,), args, 5 * 64 * 64 * 2)
        theirs = gpu.launch(module, ours.kernels[0], case)
        mine = ours.launch(ours.kernels[0], case.grid, case.block, args, dynamic_shared=case.shared).outputs
        want, _ = attention(q, k, v, 0.125, bool(shape.causal))
        errors = [float(np.abs(x["O"].astype(np.float64) - want).max()) for x in (theirs, mine)]
        between = float(np.abs(theirs["O"].astype(np.float64) - mine["O"].astype(np.float64)).max())
        print(f"flash_fwd_sm80 {shape}: GPU {errors[0]:.2e}, simulator {errors[1]:.2e}, between {between:.2e}")


def main() -> None:
    """Record to the file named on the command line."""
    gpu = Gpu()
    names = "".join(
        f"template __global__ void product<{a}, {b}>("
        + "const __grid_constant__ Map, " * 2
        + "float*, Operand, Operand);\n"
        for a in (0, 1)
        for b in (0, 1)
    )
    cubin, ptx = build(HOPPER, "sm_90a", names)
    hopper = check(cu.cuModuleLoadData(cubin))
    entries = [line.split("(")[0].split()[-1] for line in ptx.split("\n") if ".entry" in line]
    stored: dict[str, np.ndarray] = {}
    differing = 0
    skipped = sys.argv[2:]
    for case in cases():
        if case.name in skipped:
            continue
        try:
            module = check(cu.cuModuleLoadData(case.ptx.encode() + b"\0")) if case.ptx else hopper
        except RuntimeError as error:
            print(f"{case.name}: the driver refuses it: {error}")
            continue
        kernel = "k" if case.ptx else next(e for e in entries if case.kernel in e)
        try:
            theirs = gpu.launch(module, kernel, case)
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
