"""What an exported module does at run time. Its text goes into every such module as it is, below the definitions of
`parts`; it is a module of its own so that it is checked, typed and tested like any other.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import re
import tempfile
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ..compile.cache import cache_dir
from ..compile.nvrtc import load_nvrtc
from ..compile.prelude import DEFINES
from ..compile.tensor_maps import MapShape, map_shape
from ..compile.toolchain import cuda_include_dirs
from ..device.driver import CudaError, DeviceInfo, load_driver

# ---- what may be passed
KEPT_FILES = 64  # compiled kernels on disk; the one that was not used for longest goes first


def require(good: bool, what: str, expected: object, got: object) -> None:
    """Raise ValueError unless `good`."""
    if not good:
        raise ValueError(f"{what}: expected {expected}, got {got}")


def check_tensor(name: str, tensor: Any, shape: Sequence[Any], dtype: Any, device: Any) -> None:
    """Shape (None: any extent), dtype and device of a tensor. Raises ValueError."""
    have = tensor.shape
    fits = len(have) == len(shape) and all(w is None or n == w for n, w in zip(have, shape, strict=True))
    if fits and tensor.dtype == dtype and tensor.device == device:
        return  # the usual case costs no text
    require(fits, f"shape of {name}", tuple("any" if n is None else n for n in shape), tuple(have))
    require(tensor.dtype == dtype, f"dtype of {name}", dtype, tensor.dtype)
    require(tensor.device == device, f"device of {name}", device, tensor.device)


def check_rows(name: str, tensor: Any, unit: int) -> None:
    """Contiguous rows whose addresses are multiples of `unit` bytes. Raises ValueError."""
    *strides, last = tensor.stride()
    *extents, columns = tensor.shape
    elements = max(unit // tensor.element_size(), 1)
    if last == 1 and not tensor.data_ptr() % unit and not any(s % elements for s in strides):
        return  # the usual case costs no text
    require(last == 1 or columns < 2, f"stride of the last dimension of {name}", 1, f"{last} (use .contiguous())")
    # A stride of a dimension of one index is never multiplied by anything but zero.
    steps = [s * tensor.element_size() for s, n in zip(strides, extents, strict=True) if n > 1]
    off = next((step % unit for step in (tensor.data_ptr(), *steps) if step % unit), 0)
    require(not off, f"alignment of the rows of {name}", f"{unit} bytes", f"{off} bytes off (use .clone())")


def check_steps(name: str, tensor: Any, dense: Sequence[int]) -> None:
    """The axes `dense` lie one behind the other, the last one contiguous. Raises ValueError."""
    step = 1
    for axis in reversed(dense):
        if tensor.shape[axis] > 1:
            have = tensor.stride(axis)
            require(have == step, f"stride {axis} of {name}", step, f"{have} (use .contiguous())")
        step *= tensor.shape[axis]


def check_grid(grid: Sequence[int], most: Sequence[int]) -> None:
    """Raises ValueError for more CTAs than a launch can have."""
    require(all(n <= limit for n, limit in zip(grid, most, strict=True)), "CTAs of the grid", f"at most {most}", grid)


def outputs(q: Any, columns: int, with_lse: bool) -> tuple[Any, ...]:
    """O, in memory as q lies there ([B, S, H, D] seen as [B, H, S, D], or contiguous), and LSE."""
    batch, heads, rows, _ = q.shape
    if q.stride(1) < q.stride(2):
        o = q.new_empty((batch, rows, heads, columns)).transpose(1, 2)
    else:
        o = q.new_empty((batch, heads, rows, columns))
    return (o, q.new_empty((batch, heads, rows), dtype=torch.float32)) if with_lse else (o,)


# ---- arguments: each is what cuLaunchKernel takes the address of, or a tensor map that is still to be made


def stride(tensor: Any, axis: int) -> int:
    """Elements from one index to the next; 0 where there is only one."""
    return int(tensor.stride(axis)) if tensor.shape[axis] > 1 else 0


def pointer(tensor: Any) -> Any:
    """The address of a tensor, or of none."""
    return ctypes.c_uint64(0 if tensor is None else tensor.data_ptr())


def int32(name: str, value: int) -> Any:
    """Raises ValueError where it does not fit."""
    require(-(1 << 31) <= value < 1 << 31, name, "a number of 32 bits", value)
    return ctypes.c_int32(value)


def int64(name: str, value: int) -> Any:
    """Raises ValueError where it does not fit."""
    require(-(1 << 63) <= value < 1 << 63, name, "a number of 64 bits", value)
    return ctypes.c_int64(value)


def float32(name: str, value: float) -> Any:
    """Raises ValueError for NaN."""
    require(value == value, name, "a number", value)
    return ctypes.c_float(value)


def tensor_map(tensor: Any, columns: int, rows: int, swizzle: int, stand_in: Any) -> tuple[int, MapShape]:
    """What the driver makes a TMA descriptor of. An empty tensor has no address: it gets that of `stand_in`."""
    name = str(tensor.dtype).removeprefix("torch.")
    shape = map_shape(tensor.shape, tensor.stride(), tensor.element_size(), (columns, rows), swizzle, name)
    return int(tensor.data_ptr() or stand_in.data_ptr()), shape


# ---- compiling, once for each device and instantiation


class CompiledKernels:
    """The instantiations of `source`: compiled when they are first launched on a device, kept in memory and on disk.

    `archs` are those that it is written for: a device of one of them, or newer than the first that is not specific
    to an architecture.
    """

    def __init__(self, operator: str, source: str, headers: Mapping[str, str], archs: Sequence[str]) -> None:
        self.operator = operator
        self.source = source.encode()
        self.headers = headers
        self.archs = archs
        self._lock = threading.Lock()
        self._loaded: dict[tuple[int, str], tuple[Any, Any, DeviceInfo]] = {}
        self._scratch: dict[tuple[int, int, str], Any] = {}

    def launch(
        self, device: int, expression: str, grid: tuple[int, int, int], block: tuple[int, int, int], shared: int,
        arguments: Sequence[Any],
    ) -> None:  # fmt: skip
        """Start the kernel on the current stream of `device`. Raises ValueError and RuntimeError."""
        function, context, info = self._load(device, expression)
        limit = info.shared_per_cta
        require(shared <= limit, f"shared memory of {expression}", f"at most {limit} bytes on {info.name}", shared)
        driver = load_driver()
        stream = torch.cuda.current_stream(device).cuda_stream
        try:
            with _current(context):
                values = [driver.tensor_map(*a) if isinstance(a, tuple) else a for a in arguments]
                driver.launch(function, grid, block, shared, stream, values)
        except CudaError as error:
            raise RuntimeError(f"{self.operator}: {error} (grid {grid}, {shared} bytes of shared memory)") from None

    def workspace(self, name: str, elements: int, dtype: Any, device: int) -> Any:
        """Scratch memory that is zero before the first launch; every launch leaves it so. One for each stream."""

        def zeros() -> Any:
            return torch.zeros(elements, dtype=dtype, device=torch.device("cuda", device))

        with torch.cuda.device(device):
            if torch.cuda.is_current_stream_capturing():
                return zeros()  # a graph has its own, and clears it at each replay
            key = (device, int(torch.cuda.current_stream().cuda_stream), name)
            if key not in self._scratch:
                self._scratch[key] = zeros()
            return self._scratch[key]

    def _load(self, device: int, expression: str) -> tuple[Any, Any, DeviceInfo]:
        found = self._loaded.get((device, expression))
        if found is not None:
            return found
        with self._lock:
            if (device, expression) not in self._loaded:
                self._loaded[device, expression] = self._load_now(device, expression)
            return self._loaded[device, expression]

    def _load_now(self, device: int, expression: str) -> tuple[Any, Any, DeviceInfo]:
        try:
            driver = load_driver()
            info = driver.info(device)
            self.check_device(info)
            name, image = self.image(info, expression)
            context = ctypes.c_void_p()
            driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)  # torch's own
            with _current(context):
                return driver.function(driver.load(image), name), context, info
        except (OSError, CudaError) as error:
            raise RuntimeError(f"{self.operator} cannot be loaded: {error}") from error

    def check_device(self, info: DeviceInfo) -> None:
        """Raise RuntimeError for a device that the kernel is not written for."""
        plain = [int(a[3:]) for a in self.archs if a[3:].isdigit()]
        if info.arch not in self.archs and not any(n <= info.capability for n in plain):
            raise RuntimeError(f"{self.operator} is written for {', '.join(self.archs)}; {info.name} is {info.arch}")

    def image(self, info: DeviceInfo, expression: str) -> tuple[str, bytes]:
        """The name in the machine code and the machine code, from disk or compiled now. Raises RuntimeError."""
        nvrtc = load_nvrtc()
        if nvrtc is None:
            raise RuntimeError(f"{self.operator}: NVRTC was not found; pip install nvidia-cuda-nvrtc")
        defines = [f"{k}={v}" for k, v in DEFINES.items() if not re.search(rf"define\s+{k}\b".encode(), self.source)]
        options = [
            f"--gpu-architecture={info.arch}",
            "-std=c++17",
            *(f"--define-macro={text}" for text in defines),
            *(f"--include-path={folder}" for folder in cuda_include_dirs()),
        ]
        digest = hashlib.sha256(self.source)
        for part in (nvrtc.version, expression, *options, *(t for pair in self.headers.items() for t in pair)):
            digest.update(b"\0" + part.encode())
        kept = _read(digest.hexdigest())
        if kept is not None:
            return kept
        raw = nvrtc.compile(self.source, f"{self.operator}.cu", options, (expression,), ("cubin",))
        if not raw.ok or raw.cubin is None:
            raise RuntimeError(f"{self.operator}: NVRTC {nvrtc.version} does not compile {expression}:\n{raw.log}")
        name = raw.lowered.get(expression, expression)
        _write(digest.hexdigest(), name, raw.cubin)
        return name, raw.cubin


@contextmanager
def _current(context: Any) -> Generator[None]:
    """The context is current in this thread: torch makes it so only where it calls the runtime itself."""
    driver = load_driver()
    driver.call("cuCtxPushCurrent_v2", context)
    try:
        yield
    finally:
        driver.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))


# ---- compiled kernels on disk: a line of JSON, then the machine code


def _folder() -> Path | None:
    folder = cache_dir()
    return folder / "exported" if folder is not None else None


def _read(key: str) -> tuple[str, bytes] | None:
    folder = _folder()
    if folder is None:
        return None
    try:
        head, _, image = (folder / f"{key}.cubin").read_bytes().partition(b"\n")
        known = json.loads(head)
        if known["sha256"] != hashlib.sha256(image).hexdigest():
            return None
        os.utime(folder / f"{key}.cubin")  # it was used just now
        return str(known["name"]), image
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(key: str, name: str, image: bytes) -> None:
    """Written beside and renamed, so that a reader never sees half a file. What cannot be kept is no error."""
    folder = _folder()
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as out:
            out.write(json.dumps({"name": name, "sha256": hashlib.sha256(image).hexdigest()}).encode() + b"\n" + image)
        os.replace(out.name, folder / f"{key}.cubin")
        files = sorted(folder.glob("*.cubin"), key=lambda path: path.stat().st_mtime)
        for path in files[:-KEPT_FILES]:
            path.unlink(missing_ok=True)
    except OSError:
        return


# ---- the operator


def register(operator: str, schema: str, source: str, forward: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    """``torch.ops.<operator>``. Raises ImportError where another kernel has the name."""
    space, _, name = operator.partition("::")
    digest = hashlib.sha256(source.encode()).hexdigest()
    # A second module of the same name would take the place of the first, for those who imported that one too.
    known = vars(getattr(torch.ops, space)).setdefault("exported_digests", {})
    if known.setdefault(name, digest) != digest:
        raise ImportError(f"another kernel is registered as {operator}; export this one with --name")
    made: Any = torch.library.custom_op(operator, forward, mutates_args=(), schema=schema)
    made.register_fake(fake)

    def backward(*_: Any) -> Any:
        raise RuntimeError(f"{operator} computes the forward pass only: call it under torch.no_grad()")

    made.register_autograd(backward)
    return made
