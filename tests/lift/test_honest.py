"""What is no attention, or not understood, is said so; nothing raises."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cubridge_engine.diagnostics import Severity
from cubridge_engine.ir.nodes import Opaque
from cubridge_engine.lift import lift
from cubridge_engine.lift.units import operations
from cubridge_engine.source import parse
from tests.lift.conftest import SCALAR, SM80, STYLES, edited, lift_text

GEMM = """
__global__ void __launch_bounds__(256) gemm(const float* A, const float* B, float* C, int n) {
  __shared__ float a[16][16], b[16][16];
  int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  float sum = 0.f;
  for (int k = 0; k < n; k += 16) {
    a[ty][tx] = A[(blockIdx.y * 16 + ty) * n + k + tx];
    b[ty][tx] = B[(k + ty) * n + blockIdx.x * 16 + tx];
    __syncthreads();
    for (int i = 0; i < 16; ++i) sum += a[ty][i] * b[i][tx];
    __syncthreads();
  }
  C[(blockIdx.y * 16 + ty) * n + blockIdx.x * 16 + tx] = sum;
}
"""
SUM = """
__global__ void total(const float* x, float* y, int n) {
  float s = 0.f;
  for (int i = threadIdx.x; i < n; i += blockDim.x) s += expf(x[i]);
  for (int w = 16; w > 0; w >>= 1) s += __shfl_xor_sync(~0u, s, w);
  if (threadIdx.x == 0) y[blockIdx.x] = s;
}
"""


@pytest.mark.parametrize("text", [GEMM, SUM], ids=["gemm", "sum"])
def test_other_kernels_are_not_claimed(text):
    lifted = lift_text(text)
    assert lifted.kernel is None
    assert not lifted.coverage.complete
    assert any(d.code == "CB122" for d in lifted.diagnostics)
    assert "not recognised" in lifted.summary


def test_no_kernel():
    lifted = lift_text("int main() { return 0; }")
    assert lifted.kernel is None
    assert [d.code for d in lifted.diagnostics] == ["CB120"]


def test_unknown_kernel_name():
    lifted = lift_text(SM80, kernel="nothing")
    assert [d.code for d in lifted.diagnostics] == ["CB121"]
    assert "flash_fwd_sm80" in lifted.diagnostics[0].help


def test_attention_is_found_beside_another_kernel():
    lifted = lift_text(GEMM + SCALAR)
    assert lifted.kernel is not None
    assert lifted.kernel.name == "flash_fwd_scalar"
    assert lifted.choices == ("gemm", "flash_fwd_scalar")


def test_unknown_function_is_opaque_at_its_line():
    text = edited(SCALAR, ("s[i] *= scale;", "s[i] = mystery(s[i], scale);"))
    lifted = lift_text(text)
    assert lifted.kernel is not None
    assert not lifted.coverage.complete
    line = text[: text.index("mystery")].count("\n")
    assert any(d.span is not None and d.span.line == line and "mystery" in d.message for d in lifted.diagnostics)
    assert any(isinstance(op, Opaque) for op in operations(lifted.kernel.body))


def test_incomplete_product_is_not_taken_for_scores():
    text = edited(SCALAR, ("for (int d = 0; d < D; ++d) {", "for (int d = 0; d < D - 1; ++d) {"))
    lifted = lift_text(text)
    assert not lifted.coverage.complete


def test_wrong_swizzle_is_noticed():
    text = edited(
        SM80, ("swizzle<D>(np * 16 + lane % 8 + 8 * (lane / 16)", "swizzle<D>(np * 16 + lane % 8 + 8 * (lane / 8)")
    )
    lifted = lift_text(text)
    assert not lifted.coverage.complete


def test_syntax_error_is_survived():
    broken = edited(SM80, ("float m[2];", "float m[2"))
    assert not any(d.code == "CB127" for d in lift_text(broken).diagnostics)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.integers(0, len(STYLES["block2d"]) - 1),
    st.integers(1, 400),
    st.sampled_from(["", "}", "(", "int", ";", "*", "[0]"]),
)
def test_any_damage_is_survived(at, length, inserted):
    text = STYLES["block2d"]
    lifted = lift_text(text[:at] + inserted + text[at + length :])
    assert not any(d.code == "CB127" for d in lifted.diagnostics)


@settings(max_examples=30, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_survived(data):
    lifted = lift(parse("x.cu", data))
    assert lifted.kernel is None
    assert not any(d.code == "CB127" for d in lifted.diagnostics)


ENDLESS = "__global__ void w(float* x) { while (true) { x[0] += 1.f; } }"
RECURSIVE_MACRO = "#define A(x) B(x)\n#define B(x) A(x)\n__global__ void w(float* x) { x[0] = A(1); }"


@pytest.mark.parametrize(("text", "words"), [(ENDLESS, "trips"), (RECURSIVE_MACRO, "macros")])
def test_what_never_ends_is_refused(text, words):
    lifted = lift_text(text)
    assert lifted.kernel is None
    assert any(d.code == "CB123" and words in d.message for d in lifted.diagnostics)


@pytest.mark.parametrize("name", ["part", "r", "tid"])
def test_a_name_without_its_declaration_is_the_one_cause(name: str) -> None:
    text = SCALAR
    declared = next(line for line in text.split("\n") if f"const int {name} =" in line)
    lifted = lift_text(text.replace(declared, "", 1))
    found = [d.message for d in lifted.diagnostics if d.severity in (Severity.ERROR, Severity.WARNING)]
    assert found == [f"{name} is not declared in this file"]
