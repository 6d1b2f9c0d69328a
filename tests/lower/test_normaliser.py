"""The online softmax taken out of real text: goldens on both bundled kernels, other spellings, and dead code."""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path

import pytest

from cubridge_engine.lower import lower, read_back, unified_diff
from cubridge_engine.lower.called import uses_of_file
from cubridge_engine.lower.dead import dead_code
from cubridge_engine.lower.deleting import list_ranges
from cubridge_engine.lower.liveness import uses_of
from cubridge_engine.pipeline.files import lift_at
from cubridge_engine.source import parse
from cubridge_engine.transfer import transfer
from tests.transfer.builders import make_attention

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).parent / "golden"
CAUSAL = "j <= i + (Sk - Sq)"
WEIGHTS = {"normaliser": "none", "fill": "0.0", "empty_rows": "computed", "head_map": "h // (H // Hkv)"}
SPECS = {
    "sigmoid": {"score": "sigmoid(s * 0.125 - log(float(Sk)))", "mask": CAUSAL, **WEIGHTS},
    "relu": {"score": "relu(s * 0.125)", "divisor": "float(Sk)", **WEIGHTS},
    "retention": {
        "score": "s * 0.125 * pow(1.0 - pow(2.0, -5 - h), i - j)",
        "mask": "j <= i",
        **WEIGHTS,
        "normaliser": "sum",
        "divisor": "max(abs(l), 1.0)",
    },
    "retention_abs": {
        "score": "s * 0.125 * pow(1.0 - pow(2.0, -5 - h), i - j)",
        "mask": "j <= i",
        **WEIGHTS,
        "normaliser": "abs_sum",
        "divisor": "max(l, 1.0)",
    },
}


@cache
def text_of(kernel: str) -> bytes:
    return (ROOT / "expert_kernels" / f"flash_fwd_{kernel}" / "kernel.cu").read_bytes()


@cache
def lifted(data: bytes):
    return lift_at(parse("kernel.cu", data), None, 64)


@cache
def adapt(data: bytes, name: str):
    """(adapted text, hunks, findings of reading it back)."""
    result = transfer(lifted(data).kernel, make_attention(**SPECS[name], dtype="float32"))
    assert result.target is not None, [d.message for d in result.diagnostics]
    lowered = lower(lifted(data), result, parse("kernel.cu", data), spec="spec.py")
    assert lowered.text is not None, [d.message for d in lowered.diagnostics]

    def again(text: bytes):
        found = lift_at(parse("kernel.cu", text), None, 64)
        assert found.coverage.complete, found.coverage.sentence()
        return found.kernel, found.diagnostics

    _, problems = read_back(lowered.text, result.target, result.bindings, again)
    return lowered.text, lowered.hunks, [d.message for d in problems]


# On the Hopper kernel the softmax is in methods that the kernel's body calls.
CASES = [
    *((name, kernel) for name in SPECS for kernel in ("scalar", "sm80")),
    ("sigmoid", "sm90"),
    ("retention", "sm90"),
]


@pytest.mark.parametrize(("name", "kernel"), CASES)
def test_golden(name, kernel):
    data = text_of(kernel)
    text, _, problems = adapt(data, name)
    assert problems == []
    diff = unified_diff("kernel.cu", data, text, context=0)
    if kernel == "sm90":
        diff = re.sub(r"^@@.*@@", "@@", diff, flags=re.M)  # a long file: its lines move for many reasons
    path = GOLDEN / f"{name}_{kernel}.diff"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(diff)
    assert diff == path.read_text()


@pytest.mark.parametrize("kernel", ["scalar", "sm80"])
def test_nothing_of_the_softmax_is_left(kernel):
    text = adapt(text_of(kernel), "sigmoid")[0].decode()
    body = re.sub(r"//.*", "", text[text.index("__global__") : text.index("cudaError_t")])
    for word in ("m_new", "m_safe", "correction", "inv_l", "lse", "__shfl_xor_sync", "logf(l", "INFINITY"):
        assert word not in body
    # The signature stays: callers pass what they passed, and the kernel leaves LSE alone.
    assert "float* __restrict__ LSE" in body


def test_a_row_sum_stays_where_the_divisor_needs_it():
    text = adapt(text_of("sm80"), "retention")[0].decode()
    assert "l[e / 2] += s[nb][e];" in text
    assert "inv_l[r] = 1.f / fmaxf(fabsf(l[r]), 1.f);" in text
    assert text.count("__shfl_xor_sync") == 2
    assert "m_new" not in text


OTHERS = {
    "one declaration for both": (b"float m = -INFINITY;\n  float l = 0.f;", b"float m = -INFINITY, l = 0.f;"),
    "an fma": (b"l = correction * l + row_sum;", b"l = fmaf(l, correction, row_sum);"),
    "divided in place": (
        b"const float inv_l = l == 0.f ? 0.f : 1.f / l;\n",
        b"const float inv_l = l == 0.f ? 0.f : 1.f / l;\n    const float unused_before = 1.f;\n",
    ),
    "the rescaling written out": (b"o[i] *= correction;", b"o[i] = o[i] * correction;"),
    "fast intrinsics": (b"expf(", b"__expf("),
}


@pytest.mark.parametrize("change", OTHERS)
@pytest.mark.parametrize("name", ["sigmoid", "retention"])
def test_other_spellings(change, name):
    old, new = OTHERS[change]
    data = text_of("scalar")
    assert old in data
    text, _, problems = adapt(data.replace(old, new), name)
    assert problems == []
    assert b"correction" not in re.sub(rb"//.*", b"", text)
    # What was useless before is not this edit's business.
    assert (b"unused_before" in text) == (change == "divided in place")
    if change == "fast intrinsics" and name == "sigmoid":
        assert b"__fdividef(1.f, 1.f + __expf(log_n - s[i]))" in text


def test_line_endings_stay():
    data = text_of("scalar").replace(b"\n", b"\r\n")
    text, _, problems = adapt(data, "sigmoid")
    assert problems == []
    assert text.count(b"\n") == text.count(b"\r\n")
    assert text.replace(b"\r\n", b"\n") == adapt(text_of("scalar"), "sigmoid")[0]


def test_nothing_of_the_softmax_is_left_in_the_methods():
    text = adapt(text_of("sm90"), "sigmoid")[0].decode()
    code = re.sub(r"//.*", "", text[: text.index("cudaError_t")])
    # Members, parameters, arguments, helpers and constants that only the softmax had are gone too.
    gone = ("reference", "correction", "grew", "raise_references", "row_maxima", "finish_sums", "inverse", "kHeadroom")
    assert not re.search(rf"\b({'|'.join((*gone, 'kLn2'))})\b", code)
    assert "float l[2]" not in code
    assert "void exponentials() {" in code
    assert "consumer.run(shared_items, O, o_stride_b" in code
    # Where the vote was a branch that ptxas needs, a wait that is long over stands.
    loop = text[text.index("for (; tile > item.kv_lo") :]
    assert re.search(r"next_softmax\(\);\n *barrier_wait\(smem.v_full\(.*\n *finish_step\(v_ring\);", loop)


HELPER = b"__device__ void rescale(float& m, float& l, float c) { l *= c; }\n\n"


def with_helper(more: bytes = b"") -> bytes:
    """The scalar kernel with a step of its softmax in a function."""
    data = text_of("scalar").replace(b"// grid = (ceil", HELPER + more + b"// grid = (ceil", 1)
    return data.replace(b"l = correction * l + row_sum;", b"rescale(m, l, correction);\n    l += row_sum;")


@pytest.mark.parametrize("name", ["sigmoid", "retention"])
def test_a_softmax_in_a_helper(name):
    text, _, problems = adapt(with_helper(), name)
    assert problems == []
    assert b"rescale" not in text
    assert (b"l += row_sum;" in text) == (name == "retention")


def test_a_helper_that_is_of_use_elsewhere_stays():
    used = b"__device__ float twice(float x) {\n  float m = 0.f;\n  rescale(m, x, 2.f);\n  return x;\n}\n\n"
    data = with_helper(used)
    result = transfer(lifted(data).kernel, make_attention(**SPECS["sigmoid"], dtype="float32"))
    lowered = lower(lifted(data), result, parse("kernel.cu", data), spec="spec.py")
    # `c` is no correction there, so that the product with it cannot lose the factor.
    assert lowered.text is None
    assert [d.code for d in lowered.diagnostics] == ["CB401"]


OTHER = b"""template <typename T, int D, int DV>
__global__ void other(Consumer<T, D, DV>* consumer, float* out) {
  float sum[2];
  consumer->exponentials(sum);
  out[0] = sum[0];
}

"""


def test_a_function_of_two_kernels_is_refused():
    before = b"#ifndef __CUDACC_RTC__\n\n// cuTensorMapEncodeTiled of the driver"
    data = text_of("sm90").replace(before, OTHER + before, 1)
    found = lift_at(parse("kernel.cu", data), "flash_fwd_sm90", 64)
    result = transfer(found.kernel, make_attention(**SPECS["sigmoid"], dtype="float32"))
    lowered = lower(found, result, parse("kernel.cu", data), spec="spec.py")
    assert lowered.text is None
    assert [d.code for d in lowered.diagnostics] == ["CB412"]
    assert "exponentials, which kernel other" in lowered.diagnostics[0].message


CODE = """
void f(float* out, float* in, int n) {
  float a = 1.f, b = 2.f;
  float c[2];
  for (int i = 0; i < 2; ++i) {
    c[i] = a;
  }
  float d = c[0] + b;
  if (n > 3) {
    d += 1.f;
  }
  float kept = b;
  float never = a;
  float* p = in + n;
  p[0] = d;
  out[0] = kept;
}
"""


def test_dead_code_follows_definitions_and_loops():
    tree = parse("f.cu", CODE.encode())
    body = tree.functions()["f"][0].body
    uses = uses_of(body, CODE.encode())
    store = tree.root.descendant_for_byte_range(CODE.index("p[0] = d;"), CODE.index("p[0] = d;") + 9)
    dead = dead_code(uses, [store], [], {})
    gone = sorted(CODE[n.start_byte : n.end_byte].split("\n")[0] for n in dead.statements)
    assert gone == [
        "float c[2];",
        "float d = c[0] + b;",
        "float* p = in + n;",
        "for (int i = 0; i < 2; ++i) {",
        "if (n > 3) {",
        "p[0] = d;",
    ]
    # `never` was useless before, so it and what it reads stay; `b` is still read.
    assert dead.parts == ()
    assert dead.names == {"c", "d", "p"}


PROGRAM = """
struct State {
  float top[2];
  float total[2];
  float seen;
  void raise(float (&by)[2]) {
    by[0] = 1.f;
    top[0] = by[0] * 2.f;
  }
  void add(float x) {
    asm volatile("" : "+f"(total[0]), "+f"(top[0])::"memory");
    total[0] += x;
  }
  void run(float* out) {
    float by[2];
    raise(by);
    add(3.f);
    out[0] = top[0];
    out[1] = total[0];
  }
};
__global__ void k(float* out) {
  State state;
  state.run(out);
  out[2] = state.seen;
}
"""


def test_dead_code_follows_members_parameters_and_calls():
    source = parse("k.cu", PROGRAM.encode())
    uses = uses_of_file(source, source.kernels()[0].body)
    at = PROGRAM.index("out[0] = top[0];")
    dead = dead_code(uses, [source.root.descendant_for_byte_range(at, at + 16)], [], {})
    gone = sorted(PROGRAM[n.start_byte : n.end_byte].split("\n")[0] for n in dead.statements)
    assert gone == ["float by[2];", "float top[2];", "out[0] = top[0];", "raise(by);", "void raise(float (&by)[2]) {"]
    assert [PROGRAM[n.start_byte : n.end_byte] for n in dead.parts] == ['"+f"(top[0])']
    assert [PROGRAM[a:b] for a, b in list_ranges(dead.parts)] == [', "+f"(top[0])']
    # `seen` is used through an object, and `total` is stored.
    assert dead.names == {"by", "top"}
