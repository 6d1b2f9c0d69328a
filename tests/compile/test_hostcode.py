"""Blanking host code keeps every offset and every byte of device code."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cubridge_engine.compile.hostcode import blank_host_code, mask_noise


def blank(text: str, *known: str) -> str:
    return blank_host_code(text.encode(), lambda header: header in known).text.decode()


def test_device_code_types_and_constants_stay() -> None:
    text = (
        "constexpr int N = 4;\nstruct P { int a[2] = {1, 2}; };\nusing T = float;\n"
        "template <int D = 3> __global__ void k(P p) { if (p.a[0]) { } }\n"
        '__constant__ float table[2] = {1.f, 2.f};\nextern "C" { __device__ int f() { return 1; } }\n'
    )
    assert blank(text) == text
    aligned = "struct alignas(64) Map { unsigned long long opaque[16]; };\n"
    assert blank(aligned + text) == aligned + text


def test_host_functions_go_and_offsets_stay() -> None:
    host = "static int run(int n) {\n  k<<<1, n>>>(\"}\");\n  return '{';\n}"
    text = f"__global__ void k(const char*) {{ }}\n{host}\n__device__ int after;\n"
    result = blank(text)
    assert len(result) == len(text)
    assert result.count("\n") == text.count("\n")
    assert "run" not in result
    assert result.index("__device__ int after") == text.index("__device__ int after")


def test_a_host_function_that_a_kernel_calls_stays() -> None:
    text = "int inner(int a) { return a; }\nint outer(int a) { return inner(a); }\nint main() { return 0; }\n"
    text += "__global__ void k(int* x) { x[0] = outer(1); }\n"
    result = blank_host_code(text.encode(), lambda header: True)
    assert b"inner(int a)" in result.text
    assert b"outer(int a)" in result.text
    assert b"main" not in result.text
    assert result.host_helpers


def test_a_macro_that_means_device_is_honoured() -> None:
    text = "#define FN __device__ inline\nFN int f() { return 1; }\n"
    assert blank(text) == text


def test_includes_go_only_when_they_do_not_resolve() -> None:
    text = "#include <known.h>\n#include <torch/all.h>\n__global__ void k() {}\n"
    result = blank(text, "known.h")
    assert "known.h" in result
    assert "torch" not in result


def test_unbalanced_text_is_left_alone() -> None:
    text = "int main() { (} \n__global__ void k() {}\n"
    assert blank(text, "x") == text


def test_noise_is_masked_with_its_length() -> None:
    text = b'a /* } */ b // {\nc "{\\"" R"x(}"})x" \'}\' 1\'000 d\n#define X { \\\n }\n{'
    masked = mask_noise(text)
    assert len(masked) == len(text)
    assert masked.count(b"{") == 1
    assert b"}" not in masked
    assert masked.split() == [b"a", b"b", b"c", b"1'000", b"d", b"{"]


@given(st.binary(max_size=200))
def test_any_bytes_keep_their_length_and_lines(data: bytes) -> None:
    result = blank_host_code(data, lambda header: False).text
    assert len(result) == len(data)
    assert [i for i, c in enumerate(result) if c == 10] == [i for i, c in enumerate(data) if c == 10]
