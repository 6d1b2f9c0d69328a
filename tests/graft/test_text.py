"""Statements, blocks and declarations around a line, in text that no parser needs to understand."""

from __future__ import annotations

from cubridge_engine.graft.places import fragment_of, integers_at
from cubridge_engine.graft.text import Text

CODE = b"""
namespace deep {
template <typename Traits, int kRows, class Params>
inline __device__ void one_tile(const Params &params, const int head, float scale) {
  constexpr int kCols = Traits::kCols;
  __shared__ float tile[kRows][kCols];
  float4 packed; float s[4][kCols / 8], best = 0.f;
  int n = (params.cols + kCols - 1) / kCols, m(3);
  auto go = [&](int inner) { int hidden = inner; return hidden; };
  #pragma unroll
  for (int step = 0; step < n; ++step) {
    Tensor acc_s = make(Shape<Int<4>, Int<8>>{});  // a ; in a comment
    const int at = step * kCols;
    Traits::template gemm</*in_regs=*/false>(
        acc_s, tile, s, [&](int k) { return k; });
    if (at > 3) acc_s(0) = 0.f; else acc_s(1) = 1.f;
    for (int k = 0; k < 4; ++k) for (int c = 0; c < 8; ++c) s[k][c] += 1.f;
    best = 1.f;
  }
}
}
"""
TEXT = Text(CODE)


def line(part: str) -> int:
    return CODE.decode().split(part)[0].count("\n")


def statement(part: str) -> str:
    start, end = TEXT.statement(line(part))
    return CODE[start:end].decode()


def test_statements_end_where_they_do():
    assert statement("template gemm").startswith("Traits::template gemm<")
    assert statement("acc_s, tile").endswith("{ return k; });")
    assert statement("if (at").endswith("acc_s(1) = 1.f;")
    assert statement("for (int k").startswith("for (int k = 0")
    assert statement("for (int k").endswith("+= 1.f;")


def test_the_function_is_the_one_and_not_a_lambda_or_a_loop():
    function = TEXT.function_around(CODE.index(b"best = 1.f"))
    assert function is not None
    assert "one_tile" in function.header


def test_integers_in_scope_and_no_others():
    found = dict(integers_at(TEXT, CODE.index(b"best = 1.f")))
    assert found == {"at": False, "step": False, "n": False, "kCols": True, "kRows": True, "head": False}


def test_what_holds_scores_and_how_its_elements_are_written():
    function = TEXT.function_around(CODE.index(b"best = 1.f"))
    assert function is not None
    at = CODE.index(b"best = 1.f")
    fragments = {name: fragment_of(name, TEXT, function.header_start, at) for name in ("s", "acc_s", "best", "tile")}
    assert fragments["s"] is not None
    assert (fragments["s"].element, fragments["s"].extents) == ("s[{0}][{1}]", ("4", "kCols / 8"))
    assert fragments["acc_s"] is not None
    assert (fragments["acc_s"].element, fragments["acc_s"].extents) == ("acc_s({0})", ("size(acc_s)",))
    assert fragments["best"] is not None
    assert fragments["best"].extents == ()
    assert fragments["tile"] is None  # shared memory: no thread has all of it
    assert fragment_of("acc_s", TEXT, function.header_start, CODE.index(b"for (int step")) is None
