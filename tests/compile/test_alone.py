"""Files that need libraries for their host code compile alone; what is not there is said by name."""

from __future__ import annotations

import json
import re

import pytest

from cubridge_engine.compile.alone import AloneOptions, compiled_alone
from cubridge_engine.compile.checkout import Doubt
from cubridge_engine.compile.search import build_of, find_header, stub_for

KERNEL = "__global__ void k(float* o) { o[threadIdx.x] = VALUE; }\n"
HOST = """#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
#include <cublas_v2.h>
#include <vector>

#define VALUE 3.0f
%s
std::vector<torch::Tensor> launch(torch::Tensor o) {
    const at::cuda::OptionalCUDAGuard guard(device_of(o));
    cublasHandle_t handle;
    k<<<1, 32, 0, at::cuda::getCurrentCUDAStream()>>>(o.data_ptr<float>());
    return {o};
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("launch", &launch); }
"""


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("CUBRIDGE_CACHE", str(tmp_path_factory.mktemp("cache")))


def save(folder, name, text):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_torch_extension_compiles_without_torch_and_keeps_its_lines(tmp_path):
    path = save(tmp_path, "k.cu", HOST % KERNEL)
    found = compiled_alone(path)
    assert found.ok, found.diagnostics
    assert found.kernels == ("_Z1kPf",)
    line = next(n for n, text in enumerate(path.read_text().splitlines(), 1) if "__global__" in text)
    assert {int(n) for n in re.findall(r"\.loc\s+\d+\s+(\d+)", found.ptx or "")} <= {line}


def test_headers_are_found_in_the_tree_around_the_file(tmp_path):
    (tmp_path / "setup.py").touch()
    save(tmp_path, "lib/deep/inside/value.cuh", "#define VALUE 4.0f\n")
    path = save(tmp_path, "csrc/k.cu", '#include "value.cuh"\n' + KERNEL)
    found = compiled_alone(path)
    assert found.ok, found.diagnostics
    assert tmp_path / "lib/deep/inside" in found.include_dirs


def test_two_headers_of_one_name_are_not_chosen_from(tmp_path):
    (tmp_path / "setup.py").touch()
    save(tmp_path, "one/value.cuh", "#define VALUE 4.0f\n")
    save(tmp_path, "two/value.cuh", "#define VALUE 5.0f\n")
    path = save(tmp_path, "csrc/k.cu", '#include "value.cuh"\n' + KERNEL)
    assert find_header(path, "value.cuh") == Doubt((tmp_path / "one", tmp_path / "two"))
    found = compiled_alone(path, None, AloneOptions(backend="nvrtc"))
    assert not found.ok
    assert found.missing == ("value.cuh",)
    told = next(d for d in found.diagnostics if d.code == "CB618")
    assert "one, two" in told.message
    assert 'include = ["one"]' in told.help


def test_a_missing_header_is_named(tmp_path):
    path = save(tmp_path, "k.cu", '#include "mylib/tiles.cuh"\n' + KERNEL)
    found = compiled_alone(path, None, AloneOptions(backend="nvrtc"))
    assert not found.ok
    assert "mylib/tiles.cuh" in [*found.missing, *(d.message for d in found.diagnostics if d.code == "CB606")]


def test_the_settings_and_the_build_give_folders_and_macros(tmp_path):
    save(tmp_path, "include/a.h", "")
    path = save(tmp_path, "src/k.cu", KERNEL)
    commands = [
        {"directory": str(tmp_path), "file": "src/k.cu", "command": "nvcc -Iinclude -DVALUE=6.0f -std=c++20 -c k.cu"}
    ]
    save(tmp_path, "compile_commands.json", json.dumps(commands))
    build = build_of(path, {"define": {"FAST": True, "N": 4}, "include": ["other"]}, tmp_path)
    assert build.include_dirs == (tmp_path / "other", tmp_path / "include")
    assert build.defines == ("FAST", "N=4", "VALUE=6.0f")
    assert build.std == "c++20"
    (tmp_path / "setup.py").touch()
    assert compiled_alone(path).ok


def test_an_edited_header_is_noticed_however_it_is_included(tmp_path):
    (tmp_path / "setup.py").touch()
    header = save(tmp_path, "include/value.h", "#define VALUE 1.0f\n")
    path = save(tmp_path, "src/k.cu", "#include <value.h>\n" + KERNEL)
    first = compiled_alone(path)
    assert compiled_alone(path).cached
    header.write_text("#define VALUE 2.0f\n")
    second = compiled_alone(path)
    assert not second.cached
    assert first.ptx != second.ptx


def test_a_template_is_instantiated_by_its_expression(tmp_path):
    path = save(tmp_path, "k.cu", "template <int N> __global__ void k(float* o) { o[0] = N; }\n")
    assert "CB607" in [d.code for d in compiled_alone(path).diagnostics]
    found = compiled_alone(path, None, AloneOptions(expressions=("k<5>",)))
    assert found.lowered["k<5>"] in found.kernels


def test_a_file_that_cannot_be_read(tmp_path):
    assert [d.code for d in compiled_alone(tmp_path / "none.cu").diagnostics] == ["CB615"]


@pytest.mark.parametrize(
    ("header", "stubbed"),
    [
        ("torch/extension.h", True),
        ("ATen/ATen.h", True),
        ("cublasLt.h", True),
        ("mine/torch.h", False),
        ("vector", False),
    ],
)
def test_only_headers_of_host_libraries_have_stubs(header, stubbed):
    assert (stub_for(header) is not None) is stubbed
