"""compile_source: what compiles, what is refused, and where the messages point."""

from __future__ import annotations

from pathlib import Path

import pytest

from cubridge_engine.compile import build, compile_source, toolchain
from cubridge_engine.diagnostics import Diagnostic, Severity

PLAIN = 'extern "C" __global__ void k(float* x) { x[threadIdx.x] = 2.f * x[threadIdx.x]; }\n'
TEMPLATE = "template <typename T, int D> __global__ void k(T* x) { x[threadIdx.x] = T(D); }\n"
EXTENSION = """\
#include <torch/extension.h>
#include <cuda_fp16.h>
#include <vector>
#include <stdint.h>
#include <cfloat>
#define DEV __device__ __forceinline__
namespace ns {
inline int half_of(int a) { return (a + 1) / 2; }
DEV float square(float x) { return x * x; }  // isn't host code
template <typename T>
__global__ void k(T* x, int64_t n) {
  int i = half_of(n) + threadIdx.x;
  if (i < n) x[i] = T(square(float(x[i])) - FLT_MAX);
}
}  // namespace ns
torch::Tensor run(torch::Tensor x);
torch::Tensor run(torch::Tensor x) {
  std::vector<int> v{1, 2};
  ns::k<float><<<1, 64>>>(x.data_ptr<float>(), x.numel());
  return x;
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &run, "run {"); }
"""


def only(diagnostics: tuple[Diagnostic, ...], code: str) -> Diagnostic:
    found = [d for d in diagnostics if d.code == code]
    assert len(found) == 1, [str(d) for d in diagnostics]
    return found[0]


def test_plain_kernel_gives_code_and_figures(backend: str) -> None:
    result = compile_source(PLAIN, path="k.cu", backend=backend)
    assert result.ok
    assert result.lowered == {"k": "k"}
    assert result.ptx is not None
    assert ".target sm_80" in result.ptx
    assert result.cubin is not None
    assert result.cubin.startswith(b"\x7fELF")
    figures = result.figures("k")
    assert figures is not None
    assert 0 < figures.registers < 64
    assert (figures.spill_loads, figures.spill_stores, figures.shared_bytes, figures.stack) == (0, 0, 0, 0)


def test_template_instances_are_found_by_their_expressions(backend: str) -> None:
    expressions = ("k<float, 64>", "k<int, 8>")
    result = compile_source(TEMPLATE, path="k.cu", backend=backend, name_expressions=expressions)
    assert result.ok
    assert set(result.lowered) == set(expressions)
    assert result.lowered["k<float, 64>"] == "_Z1kIfLi64EEvPT_"
    assert {k.expression for k in result.kernels} == set(expressions)


def test_a_kernel_outside_templates_is_known_by_its_name(backend: str) -> None:
    result = compile_source("__global__ void k(float* x) { x[0] = INFINITY; }\n", path="k.cu", backend=backend)
    assert result.lowered == {"k": "_Z1kPf"}
    assert result.figures("k") is not None


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_90", "sm_90a"])
def test_architectures(nvrtc: str, arch: str) -> None:
    result = compile_source(PLAIN, path="k.cu", backend=nvrtc, arch=arch)
    assert result.ok
    assert result.ptx is not None
    assert f".target {arch}\n" in result.ptx


def test_ptx_alone_has_no_figures(nvrtc: str) -> None:
    result = compile_source(PLAIN, path="k.cu", backend=nvrtc, want=("ptx",))
    assert result.ok
    assert result.cubin is None
    assert result.kernels == ()


def test_machine_code_alone_knows_its_kernels(nvrtc: str) -> None:
    result = compile_source("__global__ void k(float* x) { x[0] = 1; }\n", path="k.cu", backend=nvrtc, want=("cubin",))
    assert result.ok
    assert result.ptx is None
    assert result.lowered == {"k": "_Z1kPf"}


def test_static_shared_memory_is_reported(backend: str) -> None:
    text = 'extern "C" __global__ void k(float* x) {\n  __shared__ float s[96];\n  s[threadIdx.x] = x[0];\n'
    text += "  __syncthreads();\n  x[1] = s[3];\n}\n"
    figures = compile_source(text, path="k.cu", backend=backend).figures("k")
    assert figures is not None
    assert figures.shared_bytes == 384


def test_errors_point_at_the_users_columns(backend: str) -> None:
    text = 'extern "C" __global__ void k(float* x) {\n  x[0] = yonder + 1;\n}\n'
    result = compile_source(text, path="some dir/k.cu", backend=backend)
    assert not result.ok
    assert result.ptx is None
    finding = only(result.diagnostics, "CB603")
    assert finding.span is not None
    assert text[finding.span.start : finding.span.end] == "yonder"
    assert (finding.span.path, finding.span.line) == ("some dir/k.cu", 1)
    assert "yonder" in finding.message


def test_an_error_in_a_template_names_its_instantiation(backend: str) -> None:
    text = "template <typename T> __device__ T f(T a) {\n  return a.foo;\n}\n"
    text += "template <typename T> __global__ void k(T* x) {\n  x[0] = f(x[1]);\n}\n"
    result = compile_source(text, path="k.cu", backend=backend, name_expressions=("k<float>",))
    finding = only(result.diagnostics, "CB603")
    assert finding.span is not None
    assert finding.span.line == 1
    assert [r.span.line for r in finding.related] == [4]


def test_an_error_in_a_header_points_into_the_header(nvrtc: str, tmp_path: Path) -> None:
    header = tmp_path / "part.cuh"
    header.write_text("__device__ float half_of(float x) {\n  return x / two;\n}\n")
    text = '#include "part.cuh"\nextern "C" __global__ void k(float* x) { x[0] = half_of(x[0]); }\n'
    finding = only(compile_source(text, path=str(tmp_path / "k.cu"), backend=nvrtc).diagnostics, "CB603")
    assert finding.span is not None
    assert (finding.span.path, finding.span.line) == (str(header), 1)
    assert header.read_bytes()[finding.span.start : finding.span.end] == b"two"


def test_a_missing_header_is_named(backend: str) -> None:
    text = '#include "helper.cuh"\nextern "C" __global__ void k(float* x) { x[0] = helper(1); }\n'
    finding = only(compile_source(text, path="k.cu", backend=backend).diagnostics, "CB606")
    assert finding.span is not None
    assert finding.span.line == 0
    assert "helper.cuh" in finding.message


@pytest.mark.parametrize("expression", ["nope<float, 64>", "k<floot, 64>", "k<float>"])
def test_a_name_expression_that_does_not_resolve(backend: str, expression: str) -> None:
    result = compile_source(TEMPLATE, path="k.cu", backend=backend, name_expressions=(expression,))
    assert [d.code for d in result.diagnostics] == ["CB608"]
    assert expression in result.diagnostics[0].message


def test_a_template_alone_generates_nothing(backend: str) -> None:
    assert [d.code for d in compile_source(TEMPLATE, path="k.cu", backend=backend).diagnostics] == ["CB607"]


def test_ptxas_errors_point_at_the_asm_statement(backend: str) -> None:
    text = 'extern "C" __global__ void k(float* x) {\n  asm volatile("cp.async.bulk.commit_group;");\n}\n'
    finding = only(compile_source(text, path="k.cu", backend=backend).diagnostics, "CB605")
    assert finding.span is not None
    assert finding.span.line == 1


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_instructions_of_another_architecture_are_one_error(backend: str, arch: str) -> None:
    lines = ["wgmma.fence.sync.aligned;", "wgmma.commit_group.sync.aligned;", "wgmma.wait_group.sync.aligned 0;"]
    body = "".join(f'  asm volatile("{line}");\n' for line in lines)
    text = f'// wgmma\nextern "C" __global__ void k(float* x) {{\n{body}}}\n'
    found = compile_source(text, path="k.cu", backend=backend, arch=arch).diagnostics
    assert [d.code for d in found if d.severity is Severity.ERROR] == ["CB617"]
    finding = only(found, "CB617")
    assert finding.span is not None
    assert finding.span.line == 2
    assert f"wgmma needs sm_90a; the kernel was compiled for {arch}" in finding.message
    assert compile_source(text, path="k.cu", backend=backend, arch="sm_90a").ok


def test_too_much_static_shared_memory(backend: str) -> None:
    text = 'extern "C" __global__ void k(float* x) { __shared__ float s[20000]; s[threadIdx.x] = x[0];'
    text += " __syncthreads(); x[1] = s[3]; }\n"
    finding = only(compile_source(text, path="k.cu", backend=backend).diagnostics, "CB610")
    assert "80000 bytes" in finding.message


def test_spills_are_a_warning(nvrtc: str) -> None:
    text = 'extern "C" __global__ void __launch_bounds__(1024, 2) k(float* x) {\n  float a[64];\n'
    text += "#pragma unroll\n  for (int i = 0; i < 64; ++i) a[i] = x[i * 1024 + threadIdx.x];\n  __syncthreads();\n"
    text += "#pragma unroll\n  for (int i = 0; i < 64; ++i) x[i * 1024 + threadIdx.x] = a[63 - i] * a[i];\n}\n"
    result = compile_source(text, path="k.cu", backend=nvrtc)
    finding = only(result.diagnostics, "CB609")
    figures = result.figures("k")
    assert finding.severity is Severity.WARNING
    assert figures is not None
    assert figures.spill_stores > 0
    assert str(figures.spill_stores) in finding.message
    assert result.ok


def test_an_extension_with_bindings_compiles_without_torch(nvrtc: str) -> None:
    result = compile_source(EXTENSION, path="ext.cu", backend=nvrtc, name_expressions=("ns::k<float>", "ns::k<__half>"))
    assert result.ok, [d.message for d in result.diagnostics]
    assert set(result.lowered) == {"ns::k<float>", "ns::k<__half>"}
    assert only(result.diagnostics, "CB612").severity is Severity.NOTE


def test_lines_stay_true_when_host_code_is_left_out(nvrtc: str) -> None:
    text = EXTENSION.replace("x[i] = T(square", "x[i] = T(sqare")
    result = compile_source(text, path="ext.cu", backend=nvrtc, name_expressions=("ns::k<float>",))
    finding = only(result.diagnostics, "CB603")
    assert finding.span is not None
    assert text[finding.span.start : finding.span.end] == "sqare"


def test_defines_and_include_dirs(nvrtc: str, tmp_path: Path) -> None:
    (tmp_path / "three.cuh").write_text("#define THREE 3\n")
    text = '#include "three.cuh"\nextern "C" __global__ void k(float* x) { x[0] = THREE * FOUR; }\n'
    assert not compile_source(text, path="k.cu", backend=nvrtc, include_dirs=[tmp_path]).ok
    assert compile_source(text, path="k.cu", backend=nvrtc, include_dirs=[tmp_path], defines=("FOUR=4",)).ok


@pytest.mark.parametrize("arch", ["sm_35", "hopper", ""])
def test_unknown_architectures_are_refused(backend: str, arch: str) -> None:
    result = compile_source(PLAIN, path="k.cu", backend=backend, arch=arch)
    assert [d.code for d in result.diagnostics] == ["CB602"]


@pytest.mark.parametrize("data", [b"", b"\xff\xfe\x00 \x80 {{{ ", b"\0" * 40, b"__global__ void", b"}" * 50, b'"'])
def test_any_bytes_give_a_diagnostic(nvrtc: str, data: bytes) -> None:
    result = compile_source(data, path="k.cu", backend=nvrtc)
    assert not result.ok
    assert result.diagnostics


def test_no_compiler_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "load_nvrtc", lambda: None)
    monkeypatch.setattr(build, "find_nvcc", lambda: None)
    finding = compile_source(PLAIN, path="k.cu").diagnostics[0]
    assert finding.code == "CB600"
    assert "pip install" in finding.help
    monkeypatch.setattr(build, "find_nvrtc", lambda: None)
    assert compile_source(PLAIN, path="k.cu", backend="nvrtc").diagnostics[0].code == "CB601"
    assert compile_source(PLAIN, path="k.cu", backend="clang").diagnostics[0].code == "CB601"


def test_auto_falls_back_to_nvcc(monkeypatch: pytest.MonkeyPatch) -> None:
    if toolchain.find_nvcc() is None:
        pytest.skip("nvcc is not installed")
    monkeypatch.setattr(build, "load_nvrtc", lambda: None)
    result = compile_source(PLAIN, path="k.cu")
    assert result.ok
    assert result.backend == "nvcc"
