"""What of a kernel's file goes into an exported module."""

from __future__ import annotations

from pathlib import Path

from cubridge_engine.export.sources import gather

KERNEL = "__global__ void k(float* x) { x[0] = one(); }\n"
LAUNCHER = "void run(float* x) { k<<<1, 1>>>(x); }\n"


def test_headers_beside_the_kernel_and_those_that_nvrtc_lacks(tmp_path: Path) -> None:
    (tmp_path / "a.cuh").write_text('#pragma once\n#include "deep/b.cuh"\n')
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "b.cuh").write_text("#include <cstdint>\n__device__ float one() { return 1.f; }\n")
    text = '#include "a.cuh"\n#include <cuda_fp16.h>\n' + KERNEL
    sources, problems = gather(tmp_path / "k.cu", text)
    assert sources is not None, problems
    assert sources.text == text
    assert list(sources.headers) == ["a.cuh", "cstdint", "deep/b.cuh"]


def test_a_header_of_two_meanings_is_refused(tmp_path: Path) -> None:
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.cuh").write_text('#include "same.cuh"\n')
        (tmp_path / folder / "same.cuh").write_text("")
    text = '#include "x/a.cuh"\n#include "y/a.cuh"\n' + KERNEL
    sources, problems = gather(tmp_path / "k.cu", text)
    assert sources is None
    assert [d.code for d in problems] == ["CB675"]
    assert "two different files" in problems[0].message


def test_host_code_that_nvrtc_does_not_see_stays(tmp_path: Path) -> None:
    guarded = f"#ifndef __CUDACC_RTC__\n#if 1\n#include <torch/extension.h>\n#endif\n{LAUNCHER}#endif\n"
    sources, _ = gather(tmp_path / "k.cu", guarded + KERNEL)
    assert sources is not None
    assert sources.text == guarded + KERNEL


def test_other_host_code_is_blanked_in_place(tmp_path: Path) -> None:
    text = "#include <torch/extension.h>\n" + LAUNCHER + KERNEL
    sources, _ = gather(tmp_path / "k.cu", text)
    assert sources is not None
    assert len(sources.text) == len(text)
    assert sources.text.endswith(KERNEL)
    assert not sources.text[: -len(KERNEL)].strip()
