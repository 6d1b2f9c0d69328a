"""The decoding kernel: the contract tells the truth, no instance spills, and in the simulator it computes attention
over splits, lengths, pages and packed heads under every schedule.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cubridge_engine.compile import (
    Compiled,
    Contract,
    compile_contract,
    compile_source,
    experts,
    read_contract,
    shared_limit,
)
from cubridge_engine.compile.nvrtc import load_nvrtc
from cubridge_engine.compile.toolchain import find_nvcc
from cubridge_engine.pipeline.export import export_kernel
from cubridge_engine.pipeline.files import Options
from cubridge_engine.simulate import SCHEDULES, Module, Schedule, load
from tests.kernels.decode import Problem, expect_right, instance_for, launch

FOLDER = Path(__file__).parents[2] / "expert_kernels/flash_decode"
TEXT = (FOLDER / "kernel.cu").read_text("utf-8")
SUMS = 2048  # bytes of static shared memory, at most
SMALL = ("float16", (64, 64))


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
    return compile_contract(contract, arch="sm_80")


def test_every_instance_compiles_without_a_spill(contract: Contract, compiled: Compiled) -> None:
    assert compiled.diagnostics == ()
    assert {k.expression for k in compiled.kernels} == set(contract.expressions)
    for figures in compiled.kernels:
        assert (figures.spill_stores, figures.spill_loads, figures.stack) == (0, 0, 0), figures.expression
        assert figures.shared_bytes <= SUMS, figures.expression


def test_the_parameters_are_those_of_the_text(contract: Contract) -> None:
    signature = re.search(r"\bflash_decode\((.*?)\) \{", TEXT, re.S)
    assert signature is not None
    names = [part.split()[-1].lstrip("*") for part in signature[1].split(",")]
    assert names == [p.name for p in contract.parameters]


def test_shared_bytes_are_those_of_the_text(contract: Contract) -> None:
    if load_nvrtc() is None:
        pytest.skip("NVRTC is not installed")
    checks = "".join(
        f"static_assert(kSmemBytes<{i.head_dim}, {i.value_dim}> == {contract.dynamic_shared(i)});"
        for i in contract.instances
    )
    checks += f"static_assert(kStages<128, 128> == {contract.stages}); static_assert(Bc == {contract.bc});"
    checks += f"static_assert(kThreads == {contract.block[0]});"
    checks += "static_assert(2 * kPartial<64, 128> == 128 * (128 + 2));"
    result = compile_source(f"{TEXT}\n{checks}\n__global__ void k() {{}}", path="k.cu", want=("ptx",))
    assert result.ok, [d.message for d in result.diagnostics]


def test_every_instance_fits_the_architectures_it_claims(contract: Contract) -> None:
    for arch in contract.archs:
        limit = shared_limit(arch)
        assert limit is not None
        assert all(contract.dynamic_shared(i) + SUMS <= limit for i in contract.instances), arch


def test_scratch_holds_what_a_launch_of_the_contract_writes(contract: Contract) -> None:
    for sizes in ({"B": 1, "Hkv": 1, "Sk": 0}, {"B": 4, "Hkv": 8, "Sk": 32768}, {"B": 2, "Hkv": 3, "Sk": 257}):
        every = {"H": 24, "Sq": 1, "D": 128, "Dv": 128, **sizes}
        ctas = contract.launch(every, "float16").grid[0]
        assert 1 <= ctas <= 264
        found = {p.name: n for p, n in contract.scratch(every).items()}
        assert found == {"partials": ctas * 2 * 64 * (128 + 2), "arrived": 264}


def test_the_launcher_compiles_with_nvcc() -> None:
    if find_nvcc() is None:
        pytest.skip("nvcc is not installed")
    keep = "".join(f"\nauto {n} = &{n}_flash_decode<__half, 64, 64, 32>;\n" for n in ("launch", "ctas_of"))
    result = compile_source(TEXT + keep, path="k.cu", arch="sm_80", backend="nvcc", want=("ptx",))
    assert result.ok, [d.message for d in result.diagnostics]
    assert len(result.lowered) == 1, "the launcher instantiates its kernel"


def test_it_is_not_offered_to_start_an_adaptation_from(contract: Contract) -> None:
    assert not contract.adaptable
    assert contract.name not in {expert.name for expert in experts()}


def test_it_is_not_exported_with_arguments_left_out() -> None:
    result = export_kernel(str(FOLDER / "kernel.cu"), "decode.py", None, Options())
    assert [d["code"] for d in result.diagnostics] == ["CB677"]
    assert not result.text


# ---- in the simulator


@pytest.fixture(scope="module")
def module(compiled: Compiled) -> Module:
    assert compiled.ptx is not None
    return load(compiled.ptx, {str(FOLDER / "kernel.cu"): TEXT})


PROBLEMS = [
    Problem(300, h=4, ctas=2),  # two CTAs share a head; the ring is longer than the keys
    Problem(600, sq=3, h=8, hkv=1, b=2, ctas=3, lengths=(65, 600), page=16, layout="bshd"),  # two groups of two warps
    Problem(200, sq=16, h=4, b=2, ctas=3, lengths=(200, 5), page=64),  # one group of four; rows without keys
]


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_attention_under_every_schedule(
    module: Module, contract: Contract, compiled: Compiled, problem: Problem
) -> None:
    errors: set[tuple[float, float]] = set()
    for schedule in SCHEDULES:
        instance = instance_for(contract, *SMALL, problem)
        result = launch(module, contract, compiled.lowered[instance.expression], instance, problem, schedule)
        expect_right(result, "float16")
        errors.add((result.o, result.lse))
    assert len(errors) == 1, "a correct kernel gives the same under every schedule"


GRID = [
    Problem(1), Problem(0, b=2, h=2), Problem(64), Problem(65, h=4), Problem(63, sq=3, h=4, hkv=4),
    Problem(7, sq=16), Problem(130, sq=16, h=2, hkv=2), Problem(130, sq=16, h=8, causal=False),  # two blocks of rows
    Problem(256, h=8, ctas=4), Problem(500, h=8, hkv=2, ctas=3), Problem(300, b=3, h=8, hkv=2, ctas=8),
    Problem(700, h=4, ctas=3, rise=60.0),
    Problem(128, b=3, h=4, hkv=2, ctas=7, lengths=(0, 1, 128)), Problem(128, b=2, ctas=9, lengths=(128, 64)),
    Problem(100, b=35, ctas=5, lengths=(*range(34), 100)),  # more entries than lanes
    Problem(256, h=2, page=16, ctas=2), Problem(255, h=2, page=256, b=2, lengths=(255, 17)),
    Problem(130, h=4, page=128, b=3, lengths=(128, 129, 0), ctas=2, layout="contiguous"),
]  # fmt: skip


@pytest.mark.parametrize("problem", GRID, ids=str)
def test_splits_lengths_pages_and_packed_heads(
    module: Module, contract: Contract, compiled: Compiled, problem: Problem
) -> None:
    instance = instance_for(contract, *SMALL, problem)
    lowered = compiled.lowered[instance.expression]
    expect_right(launch(module, contract, lowered, instance, problem, SCHEDULES[0]), "float16")


def test_the_grid_holds_one_to_four_parts_of_a_head() -> None:
    assert {p.parts(p.ctas) for p in (*GRID, *PROBLEMS) if p.ctas} >= {1, 2, 3, 4}


@pytest.mark.parametrize(
    ("dtype", "widths", "problem"),
    [
        ("float16", (128, 128), Problem(270, sq=3, h=8, hkv=2, ctas=3)),
        ("bfloat16", (64, 64), Problem(100, h=4)),
        ("bfloat16", (128, 128), Problem(130, sq=4, h=8, page=32, ctas=2)),
        ("bfloat16", (192, 128), Problem(140, sq=2, h=16, hkv=2, ctas=2)),
        ("float16", (192, 128), Problem(140, sq=5, h=8, hkv=1, ctas=2)),
        ("float16", (192, 128), Problem(200, sq=2, h=16, page=16, b=2, lengths=(200, 100))),
    ],
    ids=str,
)
def test_the_other_widths_and_bf16(
    module: Module, contract: Contract, compiled: Compiled, dtype: str, widths: tuple[int, int], problem: Problem
) -> None:
    instance = instance_for(contract, dtype, widths, problem)
    lowered = compiled.lowered[instance.expression]
    expect_right(launch(module, contract, lowered, instance, problem, SCHEDULES[0]), dtype)


# fault -> (text, what takes its place, whether the simulator finds it; else the numbers show it)
FAULTS = {
    "the last copies are not waited for": (
        "cp_async_wait<kStages<D, DV> - 1>();", "cp_async_wait<kStages<D, DV>>();", True,
    ),
    "a stage is filled while other warps read it": (
        "row0, qf, state);\n      group_sync<kRowWarps>(group);", "row0, qf, state);", True,
    ),
    "partial results are not published": (
        "    fence();\n    __syncthreads();\n", "    __syncthreads();\n", True,
    ),
    "the counter is left behind": ("p.arrived[first] = 0;", "", False),
    "the last key of a row is masked": ("length - p.sq + i + 1 : length", "length - p.sq + i : length", False),
    "the last part of a head is left out": ("all, ctas, 2 * kPart", "all, ctas - 1, 2 * kPart", False),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_shows(contract: Contract, name: str) -> None:
    if load_nvrtc() is None:
        pytest.skip("NVRTC is not installed")
    old, new, found = FAULTS[name]
    assert TEXT.count(old) == 1
    # Seven tiles per CTA on a ring of four stages; two warps share their keys.
    problem = Problem(820, sq=16, h=2, ctas=2, rise=1.0)
    instance = instance_for(contract, *SMALL, problem)
    changed = compile_source(
        TEXT.replace(old, new), path="k.cu", arch="sm_80", name_expressions=(instance.expression,), want=("ptx",)
    )
    assert changed.ptx is not None
    lowered = changed.lowered[instance.expression]
    result = launch(load(changed.ptx), contract, lowered, instance, problem, Schedule(order="reverse"))
    if name == "the counter is left behind":
        assert result.run.outputs["arrived"].any()
        return
    assert bool(result.run.findings) == found
    assert found or max(result.o, result.lse) > 0.02
