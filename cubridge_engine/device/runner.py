"""Running a compiled kernel on torch's device and stream, in a worker process: a fault takes the context along."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..compile import Compiled, Contract, Instance, LaunchShape, parse_arch
from ..compile.parameters import POINTER_DTYPES
from ..diagnostics import Diagnostic, make
from .binding import Argument, bind_arguments, dtype_name, sizes_of
from .driver import MEMORY_FAULTS, CudaError, DeviceInfo, Driver, load_driver


class Runner:
    """A compiled module on a device, ready to launch. Use `open_runner`."""

    def __init__(self, driver: Driver, device: DeviceInfo, compiled: Compiled, module: ctypes.c_void_p) -> None:
        self.device = device
        self.compiled = compiled
        self._driver = driver
        self._module = module
        self._functions: dict[str, ctypes.c_void_p] = {}
        self.lost = False  # True after a fault: the process can do no more CUDA work

    def launch(self, kernel: str, shape: LaunchShape, arguments: Sequence[Argument]) -> Diagnostic | None:
        """Launch `kernel` (a name expression or a lowered name) on torch's current stream and wait for it.

        Returns None when it ran, else the diagnostic (CB642 to CB644, CB647, CB648).
        """
        import torch

        name = self.compiled.lowered.get(kernel, kernel)
        static = figures.shared_bytes if (figures := self.compiled.figures(kernel)) else 0
        needed = static + shape.dynamic_shared_bytes
        if needed > self.device.shared_per_cta:
            limit = self.device.shared_per_cta
            return make("CB648", None, kernel=kernel, needed=needed, device=self.device.name, limit=limit)
        try:
            function = self._function(name)
        except CudaError:
            available = ", ".join(self.compiled.lowered) or "none"
            return make("CB647", None, kernel=kernel, available=available)
        stream = int(torch.cuda.current_stream(self.device.index).cuda_stream)
        try:
            values = [self._value(argument) for argument in arguments]
            self._driver.launch(function, shape.grid, shape.block, shape.dynamic_shared_bytes, stream, values)
        except CudaError as error:
            return make(
                "CB642",
                None,
                kernel=kernel,
                message=str(error),
                grid=shape.grid,
                block=shape.block,
                shared=shape.dynamic_shared_bytes,
            )
        return self._wait(kernel, stream)

    def repeatedly(self, kernel: str, shape: LaunchShape, arguments: Sequence[Argument]) -> Callable[[], None]:
        """A function that launches `kernel` with these arguments on torch's current stream and does not wait.

        For measuring: nothing is checked again. It raises CudaError, as this does for an unknown kernel. The function
        keeps the arguments' tensors alive.
        """
        import torch

        function = self._function(self.compiled.lowered.get(kernel, kernel))
        # A value is a bare address: without its argument, torch would give the memory to another tensor.
        bound = [(argument, self._value(argument)) for argument in arguments]

        def start() -> None:
            values = [value for _, value in bound]
            stream = int(torch.cuda.current_stream(self.device.index).cuda_stream)
            self._driver.launch(function, shape.grid, shape.block, shape.dynamic_shared_bytes, stream, values)

        return start

    def _function(self, name: str) -> ctypes.c_void_p:
        if name not in self._functions:
            self._functions[name] = self._driver.function(self._module, name)
        return self._functions[name]

    def _value(self, argument: Argument) -> Any:
        if argument.map is None:
            return argument.ctype()
        return self._driver.tensor_map(int(argument.value), argument.map)

    def _wait(self, kernel: str, stream: int) -> Diagnostic | None:
        try:
            self._driver.synchronise(stream)
        except CudaError as error:
            self.lost = True
            code = "CB643" if error.code in MEMORY_FAULTS else "CB644"
            return make(code, None, kernel=kernel, message=str(error))
        return None

    def run(
        self,
        contract: Contract,
        instance: Instance,
        tensors: Mapping[str, Any],
        bindings: Mapping[str, Any],
        sizes: Mapping[str, int] | None = None,
    ) -> list[Diagnostic]:
        """Bind, launch and wait: tensors, sizes and bindings are as in `bind_arguments`. An empty list when it ran."""
        sizes = sizes or sizes_of(tensors)
        arguments, diagnostics = bind_arguments(contract, tensors, sizes, {**workspaces(contract, sizes), **bindings})
        if diagnostics:
            return diagnostics
        shape = contract.launch(sizes, dtype_name(tensors["q"]))
        if 0 in shape.grid:  # no query row: nothing to compute, and a launch of no CTA is an error
            return []
        failed = self.launch(instance.expression, shape, arguments)
        return [failed] if failed else []

    def close(self) -> None:
        """Unload the module."""
        if not self.lost:
            self._driver.unload(self._module)
            self.lost = True


def workspaces(contract: Contract, sizes: Mapping[str, int] | None = None) -> dict[str, Any]:
    """Scratch tensors on the current device, by parameter name: of zeros, or what the contract fills them with.
    `sizes`: of the launch, where it matters.
    """
    import torch

    return {
        p.name: torch.full(
            (elements,), p.fill or 0, dtype=getattr(torch, POINTER_DTYPES[p.type] or "float32"), device="cuda"
        )
        for p, elements in contract.scratch(sizes or {}).items()
    }


def _image(compiled: Compiled, device: DeviceInfo) -> bytes | None:
    """Machine code where it fits the device, else PTX for the driver to compile."""
    arch = parse_arch(compiled.arch)
    if compiled.cubin is not None and arch is not None and arch.runs_on(device.capability):
        return compiled.cubin
    return compiled.ptx.encode() + b"\0" if compiled.ptx is not None else None


def open_runner(compiled: Compiled, index: int = 0) -> tuple[Runner | None, list[Diagnostic]]:
    """Load a compiled module on device `index`, in torch's context. A diagnostic (CB640, CB641) when it cannot be."""
    import torch

    if not torch.cuda.is_available() or index >= torch.cuda.device_count():
        return None, [make("CB640", None, reason="torch sees none")]
    torch.cuda.set_device(index)
    torch.cuda.current_stream(index).synchronize()  # makes torch's primary context current in this thread
    try:
        driver = load_driver()
        device = driver.info(index)
    except (OSError, CudaError, AttributeError) as error:
        return None, [make("CB640", None, reason=str(error))]
    image = _image(compiled, device)
    if image is None:
        message = f"there is no code for it: it was compiled for {compiled.arch} without PTX"
        return None, [make("CB641", None, message=message, device=device.arch, driver=device.driver)]
    try:
        module = driver.load(image)
    except CudaError as error:
        return None, [make("CB641", None, message=str(error), device=device.arch, driver=device.driver)]
    return Runner(driver, device, compiled, module), []
