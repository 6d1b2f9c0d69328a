"""The cache: a second compilation is read, and anything that could change the result misses."""

from __future__ import annotations

from pathlib import Path

import pytest

from cubridge_engine.compile import cache, compile_source
from cubridge_engine.compile.model import Raw

TEXT = '#include "scale.cuh"\nextern "C" __global__ void k(float* x) { x[0] *= SCALE; }\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "scale.cuh").write_text("#define SCALE 2.f\n")
    return tmp_path


def test_the_second_time_is_read_and_equal(nvrtc: str, folder: Path) -> None:
    first = compile_source(TEXT, path=str(folder / "k.cu"), backend=nvrtc)
    second = compile_source(TEXT, path=str(folder / "k.cu"), backend=nvrtc)
    assert (first.cached, second.cached) == (False, True)
    assert (second.ptx, second.cubin, second.lowered, second.kernels) == (
        first.ptx,
        first.cubin,
        first.lowered,
        first.kernels,
    )


def test_what_decides_the_result_is_in_the_key(nvrtc: str, folder: Path) -> None:
    path = str(folder / "k.cu")
    compile_source(TEXT, path=path, backend=nvrtc)
    assert not compile_source(TEXT + "\n", path=path, backend=nvrtc).cached
    assert not compile_source(TEXT, path=path, backend=nvrtc, arch="sm_90").cached
    assert not compile_source(TEXT, path=path, backend=nvrtc, defines=("A=1",)).cached
    assert not compile_source(TEXT, path=path, backend=nvrtc, want=("ptx",)).cached
    (folder / "scale.cuh").write_text("#define SCALE 3.f\n")
    assert not compile_source(TEXT, path=path, backend=nvrtc).cached


def test_failures_are_not_kept(nvrtc: str, private_cache: Path) -> None:
    compile_source("__global__ void k() { oops }\n", path="k.cu", backend=nvrtc)
    assert not list(private_cache.rglob("*.json"))


def test_a_damaged_entry_is_a_miss(nvrtc: str, folder: Path, private_cache: Path) -> None:
    path = str(folder / "k.cu")
    compile_source(TEXT, path=path, backend=nvrtc)
    (entry,) = private_cache.rglob("*.json")
    entry.write_text(entry.read_text()[:100])
    assert not compile_source(TEXT, path=path, backend=nvrtc).cached
    assert compile_source(TEXT, path=path, backend=nvrtc).cached


def test_an_unwritable_cache_is_no_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = folder / "file"
    blocked.write_text("")
    monkeypatch.setenv("CUBRIDGE_CACHE", str(blocked))
    cache.store("ab12", Raw(True, "log", "ptx"))
    assert cache.load("ab12") is None


def test_the_cache_can_be_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBRIDGE_CACHE", "off")
    assert cache.cache_dir() is None
    monkeypatch.delenv("CUBRIDGE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache.cache_dir() == Path("/somewhere/cubridge/compiled")
