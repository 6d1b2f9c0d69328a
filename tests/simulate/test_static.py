"""Static findings: each planted fault is found on its line, the expert kernels are clean, also at D = 128."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cubridge_engine.compile import Contract, compile_source, read_contract
from cubridge_engine.diagnostics import Diagnostic
from cubridge_engine.simulate import Alignment, Buffer, StaticLaunch, load, static_findings
from cubridge_engine.simulate.model import Reg
from cubridge_engine.simulate.slices import LAST, Slice
from cubridge_engine.verify.static_checks import ELEMENT_BYTES, SIZES, launch_of, promises_of, static_checks

from .conftest import ROOT  # type: ignore[import-not-found]


def contract_of(name: str) -> Contract:
    found = read_contract(ROOT / "expert_kernels" / name / "contract.toml")
    contract = found[0] if isinstance(found, tuple) else found
    assert contract is not None
    return contract


@pytest.fixture
def check(build):
    """check(kernel, edits, instance=0, notes=(), **changes of the contract) -> findings, and the text."""

    def go(name: str, edits=(), instance: int = 0, notes=(), **changes) -> tuple[tuple[Diagnostic, ...], list[str]]:
        contract = replace(contract_of(name), **changes)
        text = (ROOT / "expert_kernels" / name / "kernel.cu").read_text()
        for old, new in edits:
            assert old in text, f"the kernel has no {old!r}"
            text = text.replace(old, new)
        chosen = contract.instances[instance]
        module = build(text, "kernel.cu", names=(chosen.expression,))
        size = ELEMENT_BYTES[chosen.dtype]
        launches = [
            launch_of(contract, chosen, dict(zip("BHS", sizes, strict=True)), layout)
            for sizes in SIZES[:6]
            for layout in ("bhsd", "bshd")
        ]
        promises = promises_of(contract.parameters, contract.alignment_bytes, size)
        found = static_findings(module, module.kernels[0], launches, promises=promises, notes=notes)
        return found, text.split("\n")

    return go


def lines_of(finding: Diagnostic, text: list[str]) -> list[str]:
    return [text[s.line] for s in (finding.span, *(r.span for r in finding.related)) if s is not None]


@pytest.mark.parametrize(
    ("name", "instance"), [("flash_fwd_sm80", 0), ("flash_fwd_sm80", 1), ("flash_fwd_sm80", 2), ("flash_fwd_scalar", 1)]
)
def test_expert_kernels_are_clean(check, name, instance):
    assert check(name, instance=instance)[0] == ()


@pytest.mark.parametrize(
    ("edits", "line"),
    [
        ((("long long stride_row, int row0", "int stride_row, int row0"),), "load_tile"),
        ((("out + row * o_stride_row + d", "out + row * (int)o_stride_row + d"),), "out + row"),
        ((("Q + b * q_stride_b + h * q_stride_h", "Q + (b * (int)q_stride_b + h * (int)q_stride_h)"),), "Q + "),
    ],
    ids=["row * stride of a load", "row * stride of a store", "batch and head of Q"],
)
def test_a_32_bit_product_in_an_address(check, edits, line):
    found, text = check("flash_fwd_sm80", edits)
    assert {f.code for f in found} == {"CB536"}
    assert any(line in one for f in found for one in lines_of(f, text)), [lines_of(f, text) for f in found]
    assert all("B = " in f.message and "beyond 32 bits" in f.message for f in found)


def test_sizes_that_no_gpu_holds_are_not_held_against_the_kernel(check):
    # B H Sq passes 2^31 only where Q has more than 256 GiB.
    assert check("flash_fwd_sm80", (("static_cast<long long>(b) * heads + h) * sq", "b * heads + h) * sq"),))[0] == ()


def test_the_sizes_named_do_overflow_and_the_ones_before_do_not(check):
    found, _ = check("flash_fwd_sm80", (("out + row * o_stride_row + d", "out + row * (int)o_stride_row + d"),))
    (finding,) = found
    # Rows times 64 heads of 64: 2^31 elements are passed at 2^20 rows, not at 2^17.
    assert "Sq = Sk = 1048576" in finding.message
    assert "bshd" in finding.message


def test_too_little_dynamic_shared_memory(check):
    found, text = check("flash_fwd_sm80", dynamic_shared_bytes="4 * 64 * D * element_bytes")
    assert {f.code for f in found} == {"CB534"}
    assert "32768" in found[0].message
    assert any("cp.async.cg" in one for f in found for one in lines_of(f, text))


def test_too_little_shared_memory_in_an_instance_that_needs_more(check):
    found, _ = check("flash_fwd_sm80", instance=1, dynamic_shared_bytes="40960")  # right for D = 64 alone
    assert {f.code for f in found} == {"CB534"}


def test_shared_memory_that_nothing_touches(check):
    found, _ = check("flash_fwd_sm80", dynamic_shared_bytes="6 * 64 * D * element_bytes")
    (finding,) = found
    assert finding.code == "CB535"
    assert "touches 40960" in finding.message


def test_half_of_the_alignment_that_16_byte_copies_need(check):
    found, text = check("flash_fwd_sm80", alignment_bytes=8)
    assert {f.code for f in found} == {"CB537"}
    said = " ".join(f.message for f in found)
    for name in "Q", "K", "V":
        assert f"{name} of 16 (promised: 8)" in said
        for axis in "b", "h", "row":
            assert f"{name.lower()}_stride_{axis} of 8 (promised: 4)" in said
    assert "O of" not in said  # O is stored in words of four bytes
    assert all(any("cp.async.cg" in one for one in lines_of(f, text)) for f in found)


def test_scalar_kernel_needs_no_more_than_elements(check):
    assert check("flash_fwd_scalar", alignment_bytes=4)[0] == ()


def test_notes_of_ptxas(check):
    notes = ("C7510: Potential Performance Loss: wgmma.mma_async instructions are serialized due to x", "C1234: other")
    found, _ = check("flash_fwd_scalar", notes=notes)
    (finding,) = found
    assert finding.code == "CB538"
    assert "serialised" in finding.message


GUARDED = """
extern "C" __global__ void k(float* out, int n, int stride) {
  extern __shared__ float s[];
  int t = threadIdx.x;
  if (t < 32) s[t] = t;                       // guarded: within 128 bytes
  __syncthreads();
  float sum = 0.f;
  for (int i = 0; i < n; ++i) sum += s[(i & 1) * 16 + t % 16];
  out[(long long)blockIdx.x * stride + t] = sum;
}
"""


def one(build, text: str, arguments: tuple[int | None, ...], shared: int, **options) -> tuple[Diagnostic, ...]:
    module = build(text, "k.cu")
    launch = StaticLaunch("n = 5", arguments, (4, 2, 2), (128, 1, 1), shared)
    return static_findings(module, module.kernels[0], [launch], **options)


def test_a_guarded_access_is_not_held_against_the_kernel(build):
    assert one(build, GUARDED, (1 << 40, 5, 1 << 30), 128) == ()


def test_the_stage_of_a_ring_counts(build):
    text = GUARDED.replace("(i & 1) * 16", "(i & 1) * 32")
    assert [f.code for f in one(build, text, (1 << 40, 5, 1), 128)] == ["CB534"]
    assert one(build, text, (1 << 40, 1, 1), 128) == ()  # one round: the second stage is never touched


def test_vector_store_names_the_stride(build):
    text = """extern "C" __global__ void k(float4* out, int n, int stride) {
      float* row = (float*)out + (long long)blockIdx.x * stride;
      *(float4*)(row + 4 * threadIdx.x) = make_float4(n, n, n, n);
    }"""
    promises = (Alignment("out", 0, 16), Alignment("stride", 2, 2))
    (finding,) = one(build, text, (1 << 40, 5, 64), 0, promises=promises)
    assert finding.code == "CB537"
    assert "stride of 4 (promised: 2)" in finding.message
    assert "out of" not in finding.message
    assert one(build, text, (1 << 40, 5, 64), 0, promises=(Alignment("stride", 2, 4),)) == ()


def test_slices_agree_with_execution(build):
    """Addresses in a slice are those that the simulator executes: the kernel writes its own index arithmetic."""
    text = """extern "C" __global__ void k(int* out, int n, int stride) {
      int t = threadIdx.x, r = t / 7 * stride - (t % 5), i = 0, acc = 0;
      for (; i < n; i += 3) acc = i * 11;
      out[blockIdx.x * 128 + t] = (r ^ (t << 2)) + min(t, 40) * (t >> 1) + i + (acc & 0);
    }"""
    module = build(text, "k.cu")
    launch = StaticLaunch("", (1 << 40, 10, -9), (2, 1, 1), (128, 1, 1))
    out = Buffer(np.zeros(256, np.int32), "out", "out")
    run = module.launch(module.kernels[0], (2,), (128,), [out, 10, -9])
    kernel = module.kernel(module.kernels[0])
    store = next(i for i in kernel.flow.code if i.parts[0] == "st")
    values = Slice(kernel, launch, (1, 0, 0), LAST, strict=False)
    address = values.address(next(a for a in store.args if hasattr(a, "base")))
    assert np.array_equal(address, (1 << 40) + 4 * (128 + np.arange(128)))
    stored = store.args[1]
    assert isinstance(stored, Reg)
    known = values.value(stored)
    if known is not None:  # the compiler may have removed the loop in a way that leaves no counter
        assert np.array_equal(known, run.outputs["out"][128:])


def test_a_module_that_cannot_be_read_gives_no_finding():
    module = load(".version 9.0\n.target sm_80\n.entry k() { foo.bar 1; ret; }")
    assert static_findings(module, "k", [StaticLaunch("", (), (1, 1, 1), (32, 1, 1))]) == ()


@pytest.mark.parametrize("name", ["flash_fwd_sm80", "flash_fwd_scalar"])
def test_static_checks_of_a_contract(name):
    contract = contract_of(name)
    text = contract.source_path.read_text()
    compiled = compile_source(text, path="k.cu", arch="sm_80", name_expressions=contract.expressions, want=("ptx",))
    assert compiled.ptx is not None, compiled.diagnostics
    module = load(compiled.ptx)
    for instance in contract.instances:
        assert static_checks(contract, instance, module, compiled) == ()
    noted = replace(compiled, notes=("C7510: Potential Performance Loss: serialized",))
    assert [f.code for f in static_checks(contract, contract.instances[0], module, noted)] == ["CB538"]
