"""Finding compilers and headers where pip puts them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cubridge_engine.compile import toolchain

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="file names of Linux")


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment in which only this folder could hold NVRTC."""
    root = tmp_path / "site" / "nvidia" / "cu13"
    (root / "lib").mkdir(parents=True)
    (root / "include").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    monkeypatch.setattr(toolchain, "_toolkits", list)
    return root


def test_a_wheel_is_found_with_its_builtins(wheel: Path) -> None:
    assert toolchain.find_nvrtc() is None
    for name in ("libnvrtc.so.13", "libnvrtc.alt.so.13", "libnvrtc-builtins.so.13.0", "libnvrtc-builtins.alt.so.13.0"):
        (wheel / "lib" / name).touch()
    files = toolchain.find_nvrtc()
    assert files is not None
    assert files.nvrtc.name == "libnvrtc.so.13"
    assert files.builtins is not None
    assert files.builtins.name == "libnvrtc-builtins.so.13.0"


def test_headers_are_found_by_what_they_hold(wheel: Path) -> None:
    assert toolchain.cuda_include_dirs() == ()
    (wheel / "include" / "cuda_fp16.h").touch()
    assert toolchain.cuda_include_dirs() == (wheel / "include",)
