"""The Hopper kernel: compiles without a spill, and computes attention in the simulator under every schedule."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cubridge_engine.compile import Compiled, Contract, compile_contract, compile_source, experts, read_contract
from cubridge_engine.compile.nvrtc import load_nvrtc
from cubridge_engine.compile.toolchain import find_nvcc
from cubridge_engine.simulate import SCHEDULES, Module, Schedule, load
from tests.kernels.hopper import Problem, expect_right, launch

FOLDER = Path(__file__).parents[2] / "expert_kernels/flash_fwd_sm90"
TEXT = (FOLDER / "kernel.cu").read_text("utf-8")


@pytest.fixture(scope="module")
def contract() -> Contract:
    found, diagnostics = read_contract(FOLDER / "contract.toml")
    assert diagnostics == ()
    assert found is not None
    return found


@pytest.fixture(scope="module")
def compiled(contract: Contract) -> Compiled:
    if load_nvrtc() is None:
        pytest.skip("NVRTC is not installed")
    return compile_contract(contract, arch="sm_90a")


def test_every_instance_compiles_without_a_spill(contract: Contract, compiled: Compiled) -> None:
    assert compiled.diagnostics == (), "among them: wgmma that ptxas made wait (C75xx)"
    assert {k.expression for k in compiled.kernels} == set(contract.expressions)
    for figures in compiled.kernels:
        assert (figures.spill_stores, figures.spill_loads, figures.stack) == (0, 0, 0), figures.expression
        assert figures.registers == 168, "65536 registers for 384 threads"
        assert figures.shared_bytes == 0, "all shared memory is dynamic"


def test_the_parameters_are_those_of_the_text(contract: Contract) -> None:
    signature = re.search(r"\bflash_fwd_sm90\((.*?)\) \{", TEXT, re.S)
    assert signature is not None
    names = [part.split()[-1].lstrip("*") for part in signature[1].split(",")]
    assert names == [p.name for p in contract.parameters]


def test_shared_bytes_are_those_of_the_text(contract: Contract) -> None:
    if load_nvrtc() is None:
        pytest.skip("NVRTC is not installed")
    checks = "".join(
        f"static_assert(kSmemBytes<{i.head_dim}, {i.value_dim}> == {contract.dynamic_shared(i)});"
        f"static_assert(Tiles<{i.head_dim}, {i.value_dim}>::Bc == {64 if i.head_dim == 256 else contract.bc});"
        for i in contract.instances
    )
    checks += f"static_assert(Br == {contract.br}); static_assert(kThreads == {contract.block[0]});"
    result = compile_source(f"{TEXT}\n{checks}\n__global__ void k() {{}}", path="k.cu", arch="sm_90a", want=("ptx",))
    assert result.ok, [d.message for d in result.diagnostics]
    assert all(contract.dynamic_shared(i) <= 227 * 1024 for i in contract.instances)


def test_the_launcher_compiles_with_nvcc() -> None:
    if find_nvcc() is None:
        pytest.skip("nvcc is not installed")
    keep = "\nauto keep = &launch_flash_fwd_sm90<__nv_bfloat16, 64, 64>;\n"
    result = compile_source(TEXT + keep, path="k.cu", arch="sm_90a", backend="nvcc", want=("ptx",))
    assert result.ok, [d.message for d in result.diagnostics]
    assert len(result.lowered) == 1, "the launcher instantiates its kernel"


def test_it_is_offered_to_start_an_adaptation_from(contract: Contract) -> None:
    assert contract.adaptable
    assert contract.persistent
    assert contract.name in {expert.name for expert in experts()}


# ---- in the simulator


@pytest.fixture(scope="module")
def module(compiled: Compiled) -> Module:
    assert compiled.ptx is not None
    return load(compiled.ptx, {str(FOLDER / "kernel.cu"): TEXT})


SMALL = "flash_fwd_sm90<__nv_bfloat16, 64, 64>"
PROBLEMS = [
    Problem(130, 300, h=2, causal=True, ctas=1),  # several items per CTA, tiles without a mask, a ring that goes round
    Problem(70, 33, b=2, h=2, hkv=2, causal=True, ctas=2, layout="bshd"),  # rows that see no key
    Problem(5, 0, ctas=1),
    Problem(5, 40, ctas=3),  # more CTAs than work
]


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_attention_under_every_schedule(
    module: Module, contract: Contract, compiled: Compiled, problem: Problem
) -> None:
    errors: set[tuple[float, float]] = set()
    for schedule in SCHEDULES:
        result = launch(module, contract, compiled.lowered[SMALL], SMALL, problem, schedule)
        expect_right(result, "bfloat16")
        errors.add((result.o, result.lse))
    assert len(errors) == 1, "a correct kernel gives the same under every schedule"


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("flash_fwd_sm90<__half, 64, 64>", Problem(1, 1)),
        ("flash_fwd_sm90<__half, 128, 128>", Problem(100, 270, h=2, causal=True)),
        ("flash_fwd_sm90<__nv_bfloat16, 192, 128>", Problem(64, 140)),
        ("flash_fwd_sm90<__nv_bfloat16, 256, 256>", Problem(64, 140, causal=True)),
    ],
    ids=str,
)
def test_the_other_widths_and_fp16(
    module: Module, contract: Contract, compiled: Compiled, expression: str, problem: Problem
) -> None:
    result = launch(module, contract, compiled.lowered[expression], expression, problem, SCHEDULES[0])
    expect_right(result, "float16" if "half" in expression else "bfloat16")


# fault -> (text, what takes its place, whether the simulator finds it; else the numbers show it)
FAULTS = {
    "the producer does not wait for an empty stage": (
        "barrier_wait(smem.k_empty(stage), k_ring.parity ^ 1);", "", True,
    ),
    "V is released while the product runs": (
        "    wgmma_wait<0>();\n    keep_behind(o);\n    release(smem.v_empty(v_ring.stage));",
        "    release(smem.v_empty(v_ring.stage));\n    wgmma_wait<0>();\n    keep_behind(o);", True,
    ),
    "a grown reference does not correct the output": ("        correct_output();\n", "", False),
    "the top bits are not looked at": ("bits & 0x40004000u", "bits & 0u", False),
    "the last key of a row is masked": ("p.sk - p.sq + 1 :", "p.sk - p.sq :", False),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_shows(contract: Contract, name: str) -> None:
    if load_nvrtc() is None:
        pytest.skip("NVRTC is not installed")
    old, new, found = FAULTS[name]
    assert old in TEXT
    changed = compile_source(
        TEXT.replace(old, new), path="k.cu", arch="sm_90a", name_expressions=(SMALL,), want=("ptx",)
    )
    assert changed.ptx is not None
    # Six tiles on a ring of four stages. The scores rise by more than 2^8; under such scores a mask would not matter.
    problem = Problem(16, 700, causal=True, rise=1.0 if "mask" in name else 60.0)
    result = launch(load(changed.ptx), contract, changed.lowered[SMALL], SMALL, problem, Schedule())
    assert bool(result.run.findings) == found
    assert found or max(result.o, result.lse) > 0.02
