"""The CUDA driver API through ctypes: the few calls that load a module and launch a kernel.

libcuda comes with the driver, so nothing needs to be installed. Use it in a worker process: a process that has called
cuInit must not be forked.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from ..compile.tensor_maps import MapShape

# CUdevice_attribute
MULTIPROCESSORS = 16
CAPABILITY_MAJOR, CAPABILITY_MINOR = 75, 76
SHARED_OPT_IN = 97
# CUfunction_attribute
MAX_DYNAMIC_SHARED = 8
# CUtensorMapDataType by dtype, CUtensorMapSwizzle by bytes, CUtensorMapL2promotion of 256 bytes
MAP_DTYPES = {"float16": 6, "float32": 7, "bfloat16": 9}
MAP_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
MAP_L2_256 = 3
MAP_BYTES, MAP_ALIGNMENT = 128, 64
# CUresult of accesses outside an allocation or misaligned; the context is lost after them.
MEMORY_FAULTS = frozenset((700, 716, 717, 718))


class CudaError(Exception):
    """A driver call failed; `code` is the CUresult."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """A CUDA device. `driver` is the newest CUDA version its driver supports; sizes in bytes."""

    index: int
    name: str
    capability: int  # 90 for 9.0
    memory: int
    multiprocessors: int
    shared_per_cta: int  # with opt-in
    driver: str

    @property
    def arch(self) -> str:
        """The architecture to compile for: ``sm_90a`` where an architecture-specific target exists, else ``sm_86``."""
        return f"sm_{self.capability}{'a' if self.capability >= 90 else ''}"


class Driver:
    """libcuda, initialised."""

    def __init__(self) -> None:
        """Load and initialise. Raises OSError without a driver, CudaError without a usable device."""
        self._lib = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        self.call("cuInit", 0)

    def call(self, name: str, *args: object) -> None:
        """Call a driver function. Raises CudaError with its message."""
        status = int(getattr(self._lib, name)(*args))
        if status:
            text = ctypes.c_char_p()
            self._lib.cuGetErrorString(status, ctypes.byref(text))
            raise CudaError(status, text.value.decode() if text.value else f"CUDA error {status}")

    def attribute(self, what: int, index: int) -> int:
        """A device attribute."""
        value = ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(value), what, index)
        return value.value

    def info(self, index: int) -> DeviceInfo:
        """Describe device `index`. Raises CudaError when there is none."""
        name = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", name, len(name), index)
        memory, version = ctypes.c_size_t(), ctypes.c_int()
        self.call("cuDeviceTotalMem_v2", ctypes.byref(memory), index)
        self.call("cuDriverGetVersion", ctypes.byref(version))
        return DeviceInfo(
            index,
            name.value.decode("utf-8", "replace"),
            self.attribute(CAPABILITY_MAJOR, index) * 10 + self.attribute(CAPABILITY_MINOR, index),
            memory.value,
            self.attribute(MULTIPROCESSORS, index),
            self.attribute(SHARED_OPT_IN, index),
            f"{version.value // 1000}.{version.value % 1000 // 10}",
        )

    def load(self, image: bytes) -> ctypes.c_void_p:
        """Load a cubin, or PTX ending in a zero byte, into the current context. Raises CudaError."""
        module = ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), image)
        return module

    def function(self, module: ctypes.c_void_p, name: str) -> ctypes.c_void_p:
        """The kernel `name` of a module. Raises CudaError."""
        function = ctypes.c_void_p()
        self.call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        return function

    def unload(self, module: ctypes.c_void_p) -> None:
        """Unload a module. Raises CudaError."""
        self.call("cuModuleUnload", module)

    def launch(
        self,
        function: ctypes.c_void_p,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared: int,
        stream: int,
        values: Sequence[ctypes._SimpleCData[object] | ctypes.Array[ctypes.c_char]],  # pyright: ignore[reportPrivateUsage]
    ) -> None:
        """Start a kernel on a stream. `values` are the arguments in order. Raises CudaError."""
        self.call("cuFuncSetAttribute", function, MAX_DYNAMIC_SHARED, shared)
        pointers = (ctypes.c_void_p * len(values))(*[ctypes.addressof(value) for value in values])
        self.call("cuLaunchKernel", function, *grid, *block, shared, ctypes.c_void_p(stream), pointers, None)

    def tensor_map(self, address: int, shape: MapShape) -> ctypes.Array[ctypes.c_char]:
        """The descriptor of a tensor at `address`, as a kernel takes it by value. Raises CudaError."""
        rank = len(shape.extents)
        room = ctypes.create_string_buffer(MAP_BYTES + MAP_ALIGNMENT)
        skip = -ctypes.addressof(room) % MAP_ALIGNMENT
        made = (ctypes.c_char * MAP_BYTES).from_buffer(room, skip)  # keeps `room` alive
        self.call(
            "cuTensorMapEncodeTiled",
            ctypes.byref(made),
            MAP_DTYPES[shape.dtype],
            rank,
            ctypes.c_void_p(address),
            (ctypes.c_uint64 * rank)(*shape.extents),
            (ctypes.c_uint64 * max(rank - 1, 1))(*shape.strides),
            (ctypes.c_uint32 * rank)(*shape.box),
            (ctypes.c_uint32 * rank)(*[1] * rank),
            0,  # no interleaving
            MAP_SWIZZLES[shape.swizzle],
            MAP_L2_256,
            0,  # zeros outside
        )
        return made

    def synchronise(self, stream: int) -> None:
        """Wait for a stream. Raises CudaError for what its kernels did wrong."""
        self.call("cuStreamSynchronize", ctypes.c_void_p(stream))


@lru_cache(maxsize=1)
def load_driver() -> Driver:
    """The driver of this process. Raises OSError or CudaError (not remembered)."""
    return Driver()


def device_available(index: int = 0) -> DeviceInfo | None:
    """The device `index`, or None when there is no driver or no such device. Cheap; imports no torch."""
    try:
        return load_driver().info(index)
    except (OSError, CudaError, AttributeError):
        return None
