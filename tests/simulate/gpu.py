"""Launches on a real GPU with the arguments the simulator takes: buffers, tensor maps, structs, numbers.

Needs cuda-bindings. ``Device`` stands where a ``simulate.Module`` does: it has ``kernels`` and ``launch``.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from cuda.bindings import driver as cu  # type: ignore[import-not-found]

from cubridge_engine import simulate
from cubridge_engine.simulate import Buffer, Im2colMap, Run, Schedule, Struct, TensorMap
from cubridge_engine.simulate.counts import Counts

SWIZZLES = {
    0: cu.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_NONE,
    32: cu.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_32B,
    64: cu.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_64B,
    128: cu.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
}
TYPES = {
    "uint16": cu.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
    "float16": cu.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
    "float32": cu.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
}
MAP_BYTES = 128


def check(result: tuple[Any, ...]) -> Any:
    """The value of a driver call. Raises RuntimeError for an error code."""
    if result[0] != cu.CUresult.CUDA_SUCCESS:
        raise RuntimeError(str(result[0]))
    return result[1] if len(result) == 2 else result[1:]


def encode(tensor: TensorMap, address: int) -> Any:
    """The driver's form of a tensor map."""
    rank = len(tensor.dims)
    fill = cu.CUtensorMapFloatOOBfill
    nan, zero = fill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA, fill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE
    place = (
        TYPES[tensor.buffer.array.dtype.name], rank, address + tensor.offset,
        [cu.cuuint64_t(d) for d in tensor.dims], [cu.cuuint64_t(s) for s in tensor.strides],
    )  # fmt: skip
    rest = (
        [cu.cuuint32_t(1)] * rank,
        cu.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE, SWIZZLES[tensor.swizzle],
        cu.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_NONE, nan if tensor.fill_nan else zero,
    )  # fmt: skip
    if isinstance(tensor, Im2colMap):
        corners = (list(tensor.lower), list(tensor.upper))
        return check(cu.cuTensorMapEncodeIm2col(*place, *corners, *tensor.box[:2], *rest))
    return check(cu.cuTensorMapEncodeTiled(*place, [cu.cuuint32_t(b) for b in tensor.box], *rest))


def view(data: np.ndarray, buffer: Buffer) -> np.ndarray:
    """The elements of a buffer in its bytes on the device."""
    strides = tuple(s * buffer.array.itemsize for s in buffer.strides)
    return np.ndarray(buffer.array.shape, buffer.array.dtype, data.data, buffer.offset, strides)


class Arguments:
    """Device memory for the buffers of a launch, and the bytes of its parameters."""

    def __init__(self, args: Sequence[object], sizes: Sequence[int]) -> None:
        parts = [x for a in args for x in (a.parts.values() if isinstance(a, Struct) else (a,))]
        found = [p.buffer if isinstance(p, TensorMap) else p for p in parts]
        self.buffers = list({id(b): b for b in found if isinstance(b, Buffer)}.values())
        self.memory: dict[int, int] = {}
        self.owned: list[Any] = []
        for buffer in self.buffers:
            data = np.full(max(buffer.offset + buffer.nbytes, 16), 0xFF, np.uint8)
            if buffer.role != "out" and buffer.array.size:
                view(data, buffer)[...] = buffer.array
            self.memory[id(buffer)] = self.upload(data)
        self.values: list[Any] = []
        for arg, size in zip(args, sizes, strict=True):
            pieces = arg.parts if isinstance(arg, Struct) else {0: arg}
            block = bytearray(size)
            for offset, piece in pieces.items():
                raw = self.raw(piece, size)
                block[offset : offset + len(raw)] = raw[: size - offset]
            self.values.append(ctypes.create_string_buffer(bytes(block), size))

    def upload(self, data: np.ndarray) -> int:
        """A copy in device memory."""
        pointer = check(cu.cuMemAlloc(data.nbytes))
        self.owned.append(pointer)
        check(cu.cuMemcpyHtoD(pointer, data.ctypes.data, data.nbytes))
        return int(pointer)

    def raw(self, piece: object, size: int) -> bytes:
        """The bytes of an argument, or of a part of a struct."""
        if isinstance(piece, TensorMap):
            encoded = encode(piece, self.memory[id(piece.buffer)] + piece.buffer.offset)
            data = ctypes.string_at(int(encoded.getPtr()), MAP_BYTES)
            return data if size >= MAP_BYTES else self.upload(np.frombuffer(data, np.uint8)).to_bytes(8, "little")
        if isinstance(piece, Buffer):
            return (self.memory[id(piece)] + piece.offset).to_bytes(8, "little")
        if isinstance(piece, bytes):
            return piece
        if isinstance(piece, np.generic):
            return piece.tobytes()
        return (int(piece) & (2**64 - 1)).to_bytes(8, "little")  # type: ignore[call-overload]

    def outputs(self) -> dict[str, np.ndarray]:
        """Contents of the out and inout buffers."""
        found: dict[str, np.ndarray] = {}
        for buffer in self.buffers:
            if buffer.role != "in":
                data = np.empty(max(buffer.offset + buffer.nbytes, 16), np.uint8)
                check(cu.cuMemcpyDtoH(data.ctypes.data, self.memory[id(buffer)], data.nbytes))
                found[buffer.name] = view(data, buffer).copy() if buffer.array.size else buffer.array
        return found

    def free(self) -> None:
        """Give the memory back."""
        for pointer in self.owned:
            check(cu.cuMemFree(pointer))


class Gpu:
    """The first device, through the driver."""

    def __init__(self) -> None:
        check(cu.cuInit(0))
        self.device = check(cu.cuDeviceGet(0))
        check(cu.cuCtxSetCurrent(check(cu.cuDevicePrimaryCtxRetain(self.device))))

    def name(self) -> str:
        """Of the device, and the newest CUDA version of its driver."""
        name = check(cu.cuDeviceGetName(128, self.device)).decode().strip("\0 ")
        version = check(cu.cuDriverGetVersion())
        return f"{name}, driver for CUDA {version // 1000}.{version % 1000 // 10}"

    def launch(
        self,
        module: Any,
        kernel: str,
        grid: Sequence[int],
        block: Sequence[int],
        args: Sequence[object],
        shared: int,
        cluster: Sequence[int] | None = None,
        sizes: Sequence[int] = (),
    ) -> dict[str, np.ndarray]:
        """Outputs by name. `sizes` are the bytes of the parameters (not needed without structs)."""
        function = check(cu.cuModuleGetFunction(module, kernel.encode()))
        if shared:
            attribute = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            check(cu.cuFuncSetAttribute(function, attribute, shared))
        ready = Arguments(args, sizes or [MAP_BYTES if isinstance(a, TensorMap) else _bytes(a) for a in args])
        pointers = (ctypes.c_void_p * len(args))(*[ctypes.addressof(v) for v in ready.values])
        config = cu.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = (*grid, 1, 1)[:3]
        config.blockDimX, config.blockDimY, config.blockDimZ = (*block, 1, 1)[:3]
        config.sharedMemBytes = shared
        if cluster is not None:
            attribute = cu.CUlaunchAttribute()
            attribute.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            size = attribute.value.clusterDim
            size.x, size.y, size.z = cluster
            config.attrs, config.numAttrs = [attribute], 1
        check(cu.cuLaunchKernelEx(config, function, ctypes.addressof(pointers), 0))
        check(cu.cuCtxSynchronize())
        outputs = ready.outputs()
        ready.free()
        return outputs


def _bytes(arg: object) -> int:
    return len(arg) if isinstance(arg, bytes) else arg.nbytes if isinstance(arg, np.generic) else 8


class Device:
    """A module on the GPU: `image` is a cubin, or PTX for the driver; `ptx` says what its parameters are."""

    def __init__(self, gpu: Gpu, ptx: str, image: bytes | None = None) -> None:
        self.gpu = gpu
        self.program = simulate.load(ptx).program
        self.kernels = self.program.kernels
        self.module = check(cu.cuModuleLoadData(image or ptx.encode() + b"\0"))

    def launch(
        self,
        kernel: str,
        grid: Sequence[int],
        block: Sequence[int],
        args: Sequence[object],
        *,
        dynamic_shared: int = 0,
        cluster: Sequence[int] | None = None,
        schedule: Schedule | None = None,
        **_: object,
    ) -> Run:
        """Like ``simulate.Module.launch``; a device has a schedule of its own, and finds nothing."""
        sizes = [p.size for p in self.program.functions[kernel].params]
        outputs = self.gpu.launch(self.module, kernel, grid, block, args, dynamic_shared, cluster, sizes)
        return Run(outputs, (), Counts(), 0.0)
