"""Headers, flags and macros of the project that a file lies in: found where there is no doubt, else named."""

from __future__ import annotations

import pytest

from cubridge_engine.compile.alone import AloneOptions, compiled_alone
from cubridge_engine.compile.checkout import Doubt, Place, in_checkout, roots
from cubridge_engine.compile.owners import missing_header
from cubridge_engine.compile.scripts import scripted
from cubridge_engine.compile.search import find_header, usual_dirs
from cubridge_engine.compile.toolchain import find_nvcc

KERNEL = "__global__ void k(float* o) { o[threadIdx.x] = VALUE; }\n"
SETUP = """
nvcc = ["-O3", "-std=c++20", "--use_fast_math", "-DVALUE=2.0f", f"-DNAME={1}"]
cxx = ["-DONLY_HOST"]
if target == "h100":
    nvcc.append("-DHOPPER")
"""


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("CUBRIDGE_CACHE", str(tmp_path_factory.mktemp("cache")))
    for name in ("CUTLASS_HOME", "CUTLASS_PATH", "CUTLASS_DIR"):
        monkeypatch.delenv(name, raising=False)


def save(folder, name, text=""):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_library_in_a_checkout_has_two_roots_and_the_inner_one_decides(tmp_path):
    save(tmp_path, "setup.py")
    save(tmp_path, "third_party/lib/CMakeLists.txt")
    save(tmp_path, "third_party/lib/include/lib/value.h", "#define VALUE 4.0f\n")
    save(tmp_path, "elsewhere/value.h", "#define VALUE 5.0f\n")
    save(tmp_path, "elsewhere/other.h")
    path = save(tmp_path, "third_party/lib/src/cuda/k.cu", '#include "value.h"\n' + KERNEL)
    assert roots(path) == (tmp_path / "third_party/lib", tmp_path)
    found = find_header(path, "value.h")
    assert isinstance(found, Place)
    assert found.folder == tmp_path / "third_party/lib/include/lib"
    other = find_header(path, "other.h")
    assert isinstance(other, Place)
    assert other.folder == tmp_path / "elsewhere"
    alone = compiled_alone(path)
    assert alone.ok, alone.diagnostics
    assert alone.found == ("value.h and others of third_party/lib/include/lib: in the project",)


def test_a_repository_and_site_packages_end_the_way_up(tmp_path):
    save(tmp_path, "setup.py")
    path = save(tmp_path, "venv/site-packages/pack/csrc/k.cu")
    assert roots(path) == (tmp_path / "venv/site-packages/pack",)
    (tmp_path / "repo/.git").mkdir(parents=True)
    assert roots(save(tmp_path, "repo/a/k.cu")) == (tmp_path / "repo",)
    assert tmp_path / "repo" in usual_dirs(tmp_path / "repo/a/k.cu")
    assert tmp_path not in usual_dirs(tmp_path / "repo/a/k.cu")


def test_cutlass_of_the_environment_that_the_file_lies_in_is_found(tmp_path):
    path = save(tmp_path, "lib/site-packages/pack/csrc/k.cu")
    save(tmp_path, "lib/site-packages/cutlass_library/source/include/cute/of_this_test.hpp")
    found = find_header(path, "cute/of_this_test.hpp")
    assert isinstance(found, Place)
    assert found.folder == tmp_path / "lib/site-packages/cutlass_library/source/include"
    assert find_header(path, "cute/of_no_test.hpp") is None


def test_copies_that_are_alike_are_one_unless_they_include_what_lies_beside_them(tmp_path):
    save(tmp_path, "setup.py")
    path = save(tmp_path, "csrc/k.cu")
    for folder in ("one", "two"):
        save(tmp_path, f"{folder}/value.cuh", '#include "part.cuh"\n')
    assert isinstance(in_checkout(path, "value.cuh"), Place)
    save(tmp_path, "two/part.cuh", "#define VALUE 1.0f\n")
    assert in_checkout(path, "value.cuh") == Doubt((tmp_path / "one", tmp_path / "two"))


def test_a_loader_beside_the_file_says_which_of_two_headers_is_meant(tmp_path):
    save(tmp_path, "setup.py")
    save(tmp_path, "new/cuda/value.cuh", "#define VALUE 1.0f\n")
    save(tmp_path, "old/cuda/value.cuh", "#define VALUE 2.0f\n")
    path = save(tmp_path, "attn/k.cu")
    loader = save(tmp_path, "attn/__init__.py", 'DIR = HERE.parent / "old" / "cuda"\n')
    assert in_checkout(path, "value.cuh") == Place(tmp_path / "old/cuda", "__init__.py names it")
    loader.write_text('DIRS = "old/cuda", "new/cuda"\n')
    assert isinstance(in_checkout(path, "value.cuh"), Doubt)


def test_the_nearest_copy_of_cutlass_is_taken_and_of_other_headers_none(tmp_path):
    save(tmp_path, "setup.py")
    path = save(tmp_path, "a/src/k.cu")
    for name in ("cute/x.hpp", "mine/x.hpp"):
        save(tmp_path, f"a/deps/include/{name}", "// one\n")
        save(tmp_path, f"b/deps/include/{name}", "// two\n")
    found = in_checkout(path, "cute/x.hpp")
    assert isinstance(found, Place)
    assert found.folder == tmp_path / "a/deps/include"
    assert isinstance(in_checkout(path, "mine/x.hpp"), Doubt)


def test_flags_of_setup_py_count_where_they_stand_under_no_condition(tmp_path):
    save(tmp_path, "setup.py", "# cuda\n" + SETUP)
    path = save(tmp_path, "csrc/k.cu", KERNEL)
    read = scripted(path)
    assert (read.std, read.defines) == ("c++20", ("VALUE=2.0f",))
    assert dict(read.choices) == {"ONLY_HOST": "setup.py:4", "HOPPER": "setup.py:6"}
    alone = compiled_alone(path)
    assert alone.ok, alone.diagnostics
    assert "2.0f" in " ".join(alone.found)


def test_a_macro_of_the_settings_is_not_given_twice(tmp_path):
    save(tmp_path, "setup.py", "# cuda\n" + SETUP)
    path = save(tmp_path, "csrc/k.cu", KERNEL)
    alone = compiled_alone(path, None, AloneOptions(settings={"define": ["VALUE=3.0f"]}))
    assert alone.defines == ("VALUE=3.0f",)
    assert alone.ok


@pytest.mark.parametrize("script", ["", "(", "x = [", "\0", "-std=c++20"])
def test_a_script_that_says_nothing_or_is_broken_gives_no_flags(tmp_path, script):
    save(tmp_path, "setup.py", script)
    assert scripted(save(tmp_path, "k.cu")).defines == ()


def test_the_standard_of_cmake_counts_from_cpp20(tmp_path):
    cmake = save(tmp_path, "CMakeLists.txt", "set(CMAKE_CUDA_STANDARD 20)\n")
    path = save(tmp_path, "src/k.cu")
    assert scripted(path).std == "c++20"
    cmake.write_text("set(CMAKE_CUDA_STANDARD 17)\n")
    assert scripted(path).std == ""


def test_a_macro_that_an_error_asks_for_is_named(tmp_path):
    text = '#if 1\n#ifndef TILE\n#  if 0\n#  endif\n#  error "give it"\n#endif\n#endif\n' + KERNEL
    path = save(tmp_path, "k.cu", text)
    told = [d for d in compiled_alone(path, None, AloneOptions(defines=("VALUE=1",))).diagnostics if d.code == "CB619"]
    assert [d.data["macro"] for d in told] == ["TILE"]
    assert "TILE=VALUE" in told[0].help


def test_a_macro_that_setup_py_gives_under_a_condition_is_named_where_the_file_asks_for_it(tmp_path):
    save(tmp_path, "setup.py", "# cuda\n" + SETUP.replace("-DVALUE=2.0f", ""))
    path = save(tmp_path, "k.cu", "#ifdef HOPPER\n#define VALUE 1\n#endif\n" + KERNEL)
    told = [d for d in compiled_alone(path).diagnostics if d.code == "CB619"]
    assert [d.data["macro"] for d in told] == ["HOPPER"]
    assert "setup.py:6" in told[0].message


@pytest.mark.parametrize(
    ("header", "word"),
    [
        ("cute/tensor.hpp", "nvidia-cutlass"),
        ("hip/hip_runtime.h", "AMD"),
        ("ggml-backend.h", "llama-cpp-python"),
        ("mine/tiles.cuh", "include = "),
    ],
)
def test_a_missing_header_says_whose_it_is(header, word):
    assert word in missing_header(header, None).help


@pytest.mark.skipif(find_nvcc() is None, reason="needs nvcc, which reads host code")
def test_a_macro_that_instantiates_a_host_template_needs_the_host_code(tmp_path):
    text = "#define VALUE 1\n" + KERNEL + "template <int N> void launch(float* o) { k<<<1, N>>>(o); }\n"
    text += "#define CASE(N) template void launch<N>(float*)\nextern CASE(4);\n"
    alone = compiled_alone(save(tmp_path, "k.cu", text))
    assert alone.ok, alone.diagnostics
    assert alone.kernels == ("_Z1kPf",)


def test_headers_that_a_package_brings_with_it_come_before_those_of_the_toolkit(tmp_path):
    own = save(tmp_path, "site-packages/pack/data/cccl/libcudacxx/include/cuda/of_this_test").parents[1]
    path = save(tmp_path, "site-packages/pack/data/include/pack/k.cuh", KERNEL)
    assert own in usual_dirs(path)
