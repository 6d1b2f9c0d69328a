"""Compiled kernels are kept on disk by content, and what is on disk is not trusted."""

from __future__ import annotations

from pathlib import Path

import pytest

from cubridge_engine.compile.nvrtc import load_nvrtc
from cubridge_engine.device import DeviceInfo
from cubridge_engine.export import runtime
from cubridge_engine.export.runtime import CompiledKernels

TEXT = '#include <stdint.h>\nextern "C" __global__ void k(uint32_t* x) { x[threadIdx.x] = 7; }'
HOPPER = DeviceInfo(0, "H", 90, 1 << 30, 132, 232448, "13.0")

pytestmark = pytest.mark.skipif(load_nvrtc() is None, reason="needs NVRTC")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CUBRIDGE_CACHE", str(tmp_path))
    return tmp_path / "exported"


def kernels(text: str = TEXT, archs: tuple[str, ...] = ("sm_80",)) -> CompiledKernels:
    return CompiledKernels("cubridge::k", text, {}, archs)


def test_a_second_process_finds_the_code(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, image = kernels().image(HOPPER, "k")
    assert name == "k"
    assert image[:4] == b"\x7fELF"
    (kept,) = folder.iterdir()

    def no_compiling(*_: object) -> None:
        raise AssertionError("compiled again")

    nvrtc = load_nvrtc()
    assert nvrtc is not None
    monkeypatch.setattr(type(nvrtc), "compile", no_compiling)
    assert kernels().image(HOPPER, "k") == (name, image)
    kept.write_bytes(kept.read_bytes()[:-9])
    with pytest.raises(AssertionError, match="compiled again"):
        kernels().image(HOPPER, "k")


def test_another_text_or_device_is_another_file(folder: Path) -> None:
    first = kernels().image(HOPPER, "k")
    assert kernels(TEXT.replace("7", "8")).image(HOPPER, "k") != first
    assert kernels().image(DeviceInfo(0, "A", 80, 1 << 30, 108, 166912, "13.0"), "k") != first
    assert len(list(folder.iterdir())) == 3


def test_the_folder_is_bounded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "KEPT_FILES", 2)
    for number in range(4):
        kernels(TEXT.replace("7", str(number))).image(HOPPER, "k")
    assert len(list(folder.iterdir())) == 2


def test_no_folder_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CUBRIDGE_CACHE", str(tmp_path / "file" / "below"))
    assert kernels().image(HOPPER, "k")[0] == "k"


def test_what_nvrtc_says_is_shown() -> None:
    with pytest.raises(RuntimeError, match=r"does not compile k:\n(.|\n)*identifier \"y\" is undefined"):
        kernels(TEXT.replace("x[", "y[")).image(HOPPER, "k")


def test_devices_that_the_kernel_is_not_written_for() -> None:
    kernels(archs=("sm_80",)).check_device(HOPPER)
    kernels(archs=("sm_90a",)).check_device(HOPPER)
    with pytest.raises(RuntimeError, match="is written for sm_90a; A is sm_80"):
        kernels(archs=("sm_90a",)).check_device(DeviceInfo(0, "A", 80, 1 << 30, 108, 166912, "13.0"))
    with pytest.raises(RuntimeError, match="is written for sm_90a; B is sm_100a"):
        kernels(archs=("sm_90a",)).check_device(DeviceInfo(0, "B", 100, 1 << 30, 148, 232448, "13.0"))
