"""The plain Hopper kernel: compiles without a spill, and computes attention in the simulator under every schedule."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cubridge_engine.compile import Compiled, Contract, compile_contract, compile_source, experts, read_contract
from cubridge_engine.compile.nvrtc import load_nvrtc
from cubridge_engine.compile.toolchain import find_nvcc
from cubridge_engine.simulate import SCHEDULES, Module, Schedule, load
from tests.kernels.hopper import Problem, expect_right, launch

FOLDER = Path(__file__).parents[2] / "expert_kernels/flash_fwd_sm90_plain"
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


@pytest.fixture(scope="module")
def module(compiled: Compiled) -> Module:
    assert compiled.ptx is not None
    return load(compiled.ptx, {str(FOLDER / "kernel.cu"): TEXT})


def test_every_instance_compiles_without_a_spill(contract: Contract, compiled: Compiled) -> None:
    assert compiled.diagnostics == (), "among them: wgmma that ptxas made wait (C75xx)"
    assert {k.expression for k in compiled.kernels} == set(contract.expressions)
    for figures in compiled.kernels:
        assert (figures.spill_stores, figures.spill_loads, figures.stack) == (0, 0, 0), figures.expression
        assert figures.registers == 168, "65536 registers for 384 threads"


def test_parameters_and_sizes_are_those_of_the_text(contract: Contract) -> None:
    signature = re.search(r"\bflash_fwd_sm90_plain\((.*?)\) \{", TEXT, re.S)
    assert signature is not None
    names = [part.split()[-1].lstrip("*") for part in signature[1].split(",")]
    assert names == [p.name for p in contract.parameters]
    if load_nvrtc() is None:
        pytest.skip("NVRTC is not installed")
    checks = "".join(
        f"static_assert(kSmemBytes<{i.head_dim}> == {contract.dynamic_shared(i)});" for i in contract.instances
    )
    checks += f"static_assert(Br == {contract.br} && Bc == {contract.bc} && kStages == {contract.stages});"
    checks += f"static_assert(kThreads == {contract.block[0]});"
    result = compile_source(f"{TEXT}\n{checks}\n__global__ void k() {{}}", path="k.cu", arch="sm_90a", want=("ptx",))
    assert result.ok, [d.message for d in result.diagnostics]


def test_the_launcher_compiles_with_nvcc() -> None:
    if find_nvcc() is None:
        pytest.skip("nvcc is not installed")
    keep = "\nauto keep = &launch_flash_fwd_sm90_plain<__half, 64>;\n"
    result = compile_source(TEXT + keep, path="k.cu", arch="sm_90a", backend="nvcc", want=("ptx",))
    assert result.ok, [d.message for d in result.diagnostics]
    assert len(result.lowered) == 1, "the launcher instantiates its kernel"


def test_it_is_offered_to_start_an_adaptation_from(contract: Contract) -> None:
    assert contract.name in {expert.name for expert in experts()}


SMALL = "flash_fwd_sm90_plain<__half, 64>"


@pytest.mark.parametrize(
    "problem",
    [
        Problem(140, 400, h=2, causal=True),
        Problem(70, 33, b=2, h=2, hkv=2, causal=True, layout="bshd"),  # rows that see no key
        Problem(5, 0),
    ],
    ids=str,
)
def test_attention_under_every_schedule(
    module: Module, contract: Contract, compiled: Compiled, problem: Problem
) -> None:
    errors: set[tuple[float, float]] = set()
    for schedule in SCHEDULES:
        result = launch(module, contract, compiled.lowered[SMALL], SMALL, problem, schedule)
        expect_right(result, "float16")
        errors.add((result.o, result.lse))
    assert len(errors) == 1, "a correct kernel gives the same under every schedule"


def test_wide_heads_and_bfloat16(module: Module, contract: Contract, compiled: Compiled) -> None:
    wide = "flash_fwd_sm90_plain<__nv_bfloat16, 128>"
    result = launch(module, contract, compiled.lowered[wide], wide, Problem(100, 270, h=2), Schedule())
    expect_right(result, "bfloat16")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("barrier_wait(k_empty + 8 * stage, parity);", ""),
        ("barrier_wait(v_full + 8 * stage, parity);", ""),
        ("int parity = 1;", "int parity = 0;"),
    ],
)
def test_a_fault_of_synchronisation_is_found(contract: Contract, old: str, new: str) -> None:
    if load_nvrtc() is None:
        pytest.skip("NVRTC is not installed")
    assert old in TEXT
    text = TEXT.replace(old, new)
    changed = compile_source(text, path="k.cu", arch="sm_90a", name_expressions=(SMALL,), want=("ptx",))
    assert changed.ptx is not None
    result = launch(load(changed.ptx), contract, changed.lowered[SMALL], SMALL, Problem(16, 520), Schedule())
    assert result.run.findings
