"""The runner without a device: a driver that records calls stands in for libcuda."""

from __future__ import annotations

import ctypes
import gc
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cubridge_engine.compile import Compiled, KernelFigures, LaunchShape
from cubridge_engine.device import Argument, DeviceInfo, Runner, device_available, open_runner, runner
from cubridge_engine.device.driver import CudaError, Driver

DEVICE = DeviceInfo(0, "Toy", 90, 1 << 30, 4, 1000, "13.0")
FIGURES = KernelFigures("_Z1k", "k<1>", 32, 0, 0, 100, 0)
COMPILED = Compiled("sm_80", "nvrtc", "NVRTC", "ptx", b"\x7fELF", {"k<1>": "_Z1k"}, (FIGURES,), (), ())


class Recorder(Driver):
    """A Driver whose library is a table of failures; it decodes what cuLaunchKernel is given."""

    def __init__(self, failures: dict[str, int]) -> None:
        self.failures = failures
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def call(self, name: str, *args: Any) -> None:
        if name == "cuLaunchKernel":
            pointers = args[9]
            kinds = (ctypes.c_uint64, ctypes.c_int32, ctypes.c_float)
            values = [ctypes.cast(p, ctypes.POINTER(k)).contents.value for p, k in zip(pointers, kinds, strict=True)]
            args = (*args[1:8], values)
        self.calls.append((name, args))
        if name in self.failures:
            raise CudaError(self.failures[name], "it failed")


@pytest.fixture(autouse=True)
def stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_stream", lambda index: SimpleNamespace(cuda_stream=77))


ARGUMENTS = [Argument("q", "T*", 0x7F00_0000_1000), Argument("n", "int32", -5), Argument("s", "float32", 0.5)]
SHAPE = LaunchShape((2, 3, 4), (128, 1, 1), 900)


def launch(kernel: str = "k<1>", shape: LaunchShape = SHAPE, **failures: int) -> tuple[Recorder, Any, Runner]:
    driver = Recorder(failures)
    made = Runner(driver, DEVICE, COMPILED, ctypes.c_void_p(1))
    return driver, made.launch(kernel, shape, ARGUMENTS), made


def test_a_launch_passes_everything_on() -> None:
    driver, finding, made = launch()
    assert finding is None
    assert not made.lost
    calls = dict(driver.calls)
    assert calls["cuModuleGetFunction"][2] == b"_Z1k"
    assert calls["cuFuncSetAttribute"][1:] == (8, 900)
    *shape, values = calls["cuLaunchKernel"]
    assert shape == [2, 3, 4, 128, 1, 1, 900]
    assert values == [0x7F00_0000_1000, -5, 0.5]
    assert calls["cuStreamSynchronize"][0].value == 77


def test_more_shared_memory_than_the_device_has_is_not_launched() -> None:
    driver, finding, _ = launch(shape=LaunchShape((1, 1, 1), (128, 1, 1), 901))
    assert finding.code == "CB648"
    assert "1001" in finding.message
    assert driver.calls == []


@pytest.mark.parametrize(
    ("failures", "code", "lost"),
    [
        ({"cuModuleGetFunction": 500}, "CB647", False),
        ({"cuLaunchKernel": 1}, "CB642", False),
        ({"cuStreamSynchronize": 700}, "CB643", True),
        ({"cuStreamSynchronize": 719}, "CB644", True),
    ],
)
def test_driver_errors(failures: dict[str, int], code: str, lost: bool) -> None:
    _, finding, made = launch(**failures)
    assert finding.code == code
    assert made.lost is lost


def test_a_repeated_launch_keeps_its_tensors() -> None:
    tensor = torch.zeros(1)
    alive = weakref.ref(tensor)
    driver = Recorder({})
    made = Runner(driver, DEVICE, COMPILED, ctypes.c_void_p(1))
    start = made.repeatedly("k<1>", SHAPE, [Argument("q", "T*", 0x7F00_0000_1000, tensor), *ARGUMENTS[1:]])
    del tensor
    gc.collect()
    start()
    assert dict(driver.calls)["cuLaunchKernel"][-1] == [0x7F00_0000_1000, -5, 0.5]
    assert alive() is not None, "torch would give its memory to another tensor"


def test_the_image_fits_the_device() -> None:
    from dataclasses import replace

    old = replace(DEVICE, capability=86)
    assert runner._image(COMPILED, old) == b"\x7fELF"  # pyright: ignore[reportPrivateUsage]
    assert runner._image(COMPILED, DEVICE) == b"ptx\0"  # pyright: ignore[reportPrivateUsage]
    assert runner._image(replace(COMPILED, ptx=None), DEVICE) is None  # pyright: ignore[reportPrivateUsage]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_without_a_device() -> None:
    assert device_available() is None
    made, diagnostics = open_runner(COMPILED)
    assert made is None
    assert [d.code for d in diagnostics] == ["CB640"]
