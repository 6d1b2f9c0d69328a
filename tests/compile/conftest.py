from __future__ import annotations

from pathlib import Path

import pytest

from cubridge_engine.compile.nvrtc import load_nvrtc
from cubridge_engine.compile.toolchain import find_nvcc


@pytest.fixture(autouse=True)
def private_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own: nothing is read from or written to the user's."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("CUBRIDGE_CACHE", str(folder))
    return folder


@pytest.fixture(params=["nvrtc", "nvcc"])
def backend(request: pytest.FixtureRequest) -> str:
    there = {"nvrtc": load_nvrtc() is not None, "nvcc": find_nvcc() is not None}
    if not there[request.param]:
        pytest.skip(f"{request.param} is not installed")
    return request.param


@pytest.fixture
def nvrtc() -> str:
    if load_nvrtc() is None:
        pytest.skip("NVRTC is not installed")
    return "nvrtc"
