"""The parts of binding: fitting numbers, evaluating host code, names, signatures, launches, instances."""

from __future__ import annotations

import pytest

from cubridge_engine.bind import hints
from cubridge_engine.bind.fit import fit_float, fit_int, fit_stride
from cubridge_engine.bind.instances import demangled
from cubridge_engine.bind.launch import evaluate_launch, launches_of
from cubridge_engine.bind.propose import propose, tile_of
from cubridge_engine.bind.recorder import host_functions, parameter_bytes
from cubridge_engine.bind.samples import PROBLEMS, RAGGED, SCALES, Sample, strides_of
from cubridge_engine.bind.signature import signature_of
from cubridge_engine.compile import evaluate_size
from cubridge_engine.source import parse


def samples(layout: str = "bhsd", pad: int = 0) -> list[Sample]:
    found: list[Sample] = []
    for n, problem in enumerate([*PROBLEMS, RAGGED]):
        sizes = {**problem, "D": 64}
        strides: dict[str, int] = {}
        for index, role in enumerate(("q", "k", "v", "o")):
            strides |= strides_of(role, sizes, layout, pad * (index + 1))
        found.append(Sample(sizes, (1, 1, 1), (1, 1, 1), 0, (), strides, SCALES[n]))
    return found


@pytest.mark.parametrize(
    "text",
    [
        "B", "H", "Hkv", "Sq", "Sk", "B * H", "cdiv(Sq, 64)", "cdiv(Sk, 128)", "cdiv(Sq, 16) * 16", "H // Hkv",
        "cdiv(Sq, 64) * B * H", "Sq * D", "B * H * Sq", "3 * Sk + 5", "cdiv(Sq, 128) * 128",
    ],
)  # fmt: skip
def test_an_expression_is_found_from_its_values(text):
    seen = samples()
    values = [evaluate_size(text, {"Dv": 64, **s.sizes}) for s in seen]
    found = fit_int(values, seen)
    assert found is not None
    # Another problem, which was not among the samples: it is the expression, not its values.
    other = {"B": 7, "H": 15, "Hkv": 5, "Sq": 1003, "Sk": 777, "D": 64, "Dv": 64}
    assert evaluate_size(found, other) == evaluate_size(text, other)


def test_a_number_that_never_changes_is_a_constant_and_what_fits_nothing_is_nothing():
    seen = samples()
    assert fit_int([64] * len(seen), seen) == "64"
    assert fit_int([64] * len(seen), seen, ("D",)) == "D"
    assert fit_int([17, 4, 99, 3, 1001], seen) is None


def test_padded_strides_are_told_apart():
    seen = samples("bshd", 8)
    for role in ("q.b", "k.row", "v.row", "o.h"):
        assert fit_stride([s.strides[role] for s in seen], seen) == f"stride:{role}"


def test_scales_are_known_in_both_units():
    seen = samples()
    assert fit_float([s.scale for s in seen], seen) == "scale"
    assert fit_float([s.scale * 1.4426950408889634 for s in seen], seen) == "scale_log2"
    assert fit_float([0.125] * len(seen), seen) == "scale"
    assert fit_float([0.7] * len(seen), seen) == "0.7"
    assert fit_float([0.7, 0.1, 0.3, 0.2, 0.9], seen) is None


@pytest.mark.parametrize(
    ("name", "role"),
    [("d_Q", "q"), ("q_ptr", "q"), ("query", "q"), ("pK", "k"), ("V_d", "v"), ("out", "o"), ("softmax_lse", "lse"),
     ("scores", "")],
)  # fmt: skip
def test_names_of_tensors(name, role):
    assert hints.tensor_role(name) == role


@pytest.mark.parametrize(
    ("name", "want"),
    [("stride_qm", ("q", "row")), ("q_stride_b", ("q", "b")),
     ("v_head_stride", ("v", "h")), ("o_stride_row", ("o", "row")),
     ("stride_kk", ("k", "col")), ("rows", ("", ""))],
)  # fmt: skip
def test_names_of_strides(name, want):
    assert hints.stride_of(name) == want


HOST = """
#define BLOCK 64
#define UP(a, b) (((a) + (b) - 1) / (b))
constexpr int kBlockN = 32;
inline int ceil_up(int a, int b) { return (a + b - 1) / b; }
__global__ void k(float* Q, float* K, float* V, float* O, int n, int tiles, float scale) {}
void go(torch::Tensor a, torch::Tensor b, torch::Tensor c, torch::Tensor out) {
  const auto sizes = a.sizes();
  const int B = sizes[0], nh = a.size(1);
  int n = a.size(-2); int d = a.size(3);
  const int smem = (2 * kBlockN * d + BLOCK) * sizeof(float);
  dim3 block(BLOCK);
  auto grid = dim3(EXPRESSION, nh, B);
  k<<<grid, block, smem>>>((float*)a.data_ptr(), b.data_ptr<float>(), static_cast<float*>(c.data_ptr()),
      out.data_ptr<float>(), n, n > 0 ? ceil_up(n, kBlockN) : 1, 1.f / sqrtf((float)d));
}
"""


@pytest.mark.parametrize(
    "expression", ["UP(n, BLOCK)", "(n + BLOCK - 1) / BLOCK", "(int)ceil((float)n / BLOCK)", "ceil_up(n, 2 * kBlockN)"]
)
def test_a_launch_is_evaluated_however_it_is_written(expression):
    source = parse("k.cu", HOST.replace("EXPRESSION", expression).encode())
    kernel = signature_of(source, source.kernels()[0])
    (launch,) = launches_of(source, "k")
    found = evaluate_launch(source, kernel, launch, "float32", 64, "bhsd")
    assert not found.unknown
    made = propose(found.samples, kernel.arguments, "bhsd", found.unknown, True)
    assert made.grid == ("cdiv(Sq, 64)", "H", "B")
    assert made.block == (64, 1, 1)
    assert made.shared == str((2 * 32 * 64 + 64) * 4)
    assert [(p.role, p.value) for p in made.parameters if p is not None] == [
        ("q", ""), ("k", ""), ("v", ""), ("o", ""), ("Sq", ""), ("value", "cdiv(Sq, 32)"), ("scale", ""),
    ]  # fmt: skip
    assert made.requires == ("Sq == Sk", "H == Hkv")


def test_what_a_launch_does_not_tell_is_named():
    source = parse("k.cu", HOST.replace("EXPRESSION", "read_config()").encode())
    kernel = signature_of(source, source.kernels()[0])
    found = evaluate_launch(source, kernel, launches_of(source, "k")[0], "float32", 64, "bhsd")
    assert "grid" in found.unknown
    assert propose(found.samples, kernel.arguments, "bhsd", found.unknown, True).grid is None


def test_renaming_what_is_no_hint_changes_nothing():
    text = HOST.replace("EXPRESSION", "UP(n, BLOCK)").replace("smem", "zz").replace("grid", "yy").replace("block", "xx")
    source = parse("k.cu", text.encode())
    kernel = signature_of(source, source.kernels()[0])
    found = evaluate_launch(source, kernel, launches_of(source, "k")[0], "float32", 64, "bhsd")
    assert propose(found.samples, kernel.arguments, "bhsd", found.unknown, True).grid == ("cdiv(Sq, 64)", "H", "B")


def test_launchers_that_lead_to_a_kernel_come_outermost_first():
    text = b"""
    __global__ void k(float* x) {}
    void inner(float* x) { k<<<1, 1>>>(x); }
    void outer(float* x) { inner(x); }
    void unrelated() {}
    int main() { outer(nullptr); return 0; }
    """
    found = [f.name for _, f in host_functions(parse("k.cu", text), "k")]
    assert found == ["outer", "inner", "main"]


def test_parameter_bytes_are_read_from_ptx():
    rows = (
        ".param .u64 k_0",
        ".param .u64 .ptr .global .align 1 k_1",
        ".param .align 8 .b8 k_2[136]",
        ".param .f32 k_3",
    )
    assert parameter_bytes(f".visible .entry k({', '.join(rows)})\n{{\nret;\n}}\n") == {"k": (8, 8, 136, 4)}


def test_a_mangled_name_is_an_expression():
    assert demangled("_ZN2ns1kI6__halfLi64ELb0EEEvPT_") == "ns::k<__half, 64, false>"
    assert demangled("plain") == "plain"


@pytest.mark.parametrize(
    ("grid", "rows"),
    [
        (("cdiv(Sq, 64)", "H", "B"), 64),
        (("B * H", "cdiv(Sq, 16)", "1"), 16),
        (("Sq", "H", "B"), 1),
        (("B", "H", "1"), 0),
    ],
)
def test_rows_of_a_tile_are_read_from_the_grid(grid, rows):
    assert tile_of(grid) == rows
