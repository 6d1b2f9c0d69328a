"""Both expert kernels: the contract tells the truth about the text, and every instance compiles without a spill.

That they compute attention is shown on a device (tests/gpu) and by the verifier.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cubridge_engine.compile import (
    Compiled,
    Contract,
    Instance,
    compile_contract,
    compile_source,
    read_contract,
    shared_limit,
)
from cubridge_engine.compile.nvrtc import load_nvrtc

ROOT = Path(__file__).parents[2] / "expert_kernels"
NAMES = ("flash_fwd_sm80", "flash_fwd_scalar")
ARCHS = ("sm_80", "sm_86", "sm_90")
# Instances that need more shared memory than a CTA of these architectures has: the contract's `archs` are the kernel's.
TOO_LARGE = {
    (f"flash_fwd_sm80<{element}, 192, 128>", arch)
    for element in ("__half", "__nv_bfloat16")
    for arch in ("sm_86", "sm_89", "sm_120")
}
PTX_TYPE = {"int32": "u32", "int64": "u64", "float32": "f32"}


@pytest.fixture(scope="module")
def contracts() -> dict[str, Contract]:
    found: dict[str, Contract] = {}
    for name in NAMES:
        contract, diagnostics = read_contract(ROOT / name / "contract.toml")
        assert diagnostics == ()
        assert contract is not None
        found[name] = contract
    return found


@pytest.fixture(scope="module")
def compiled(contracts: dict[str, Contract]) -> dict[tuple[str, str], Compiled]:
    if load_nvrtc() is None:
        pytest.skip("NVRTC is not installed")
    return {
        (n, a): compile_contract(contracts[n], arch=a, instances=fitting(contracts[n], a)) for n in NAMES for a in ARCHS
    }


def fitting(contract: Contract, arch: str) -> tuple[Instance, ...]:
    """The instances whose shared memory a CTA of `arch` has."""
    return tuple(i for i in contract.instances if (i.expression, arch) not in TOO_LARGE)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("arch", ARCHS)
def test_every_instance_compiles_without_a_spill(
    name: str, arch: str, contracts: dict[str, Contract], compiled: dict[tuple[str, str], Compiled]
) -> None:
    result = compiled[name, arch]
    assert result.ok
    assert result.diagnostics == ()
    assert {k.expression for k in result.kernels} == {i.expression for i in fitting(contracts[name], arch)}
    for figures in result.kernels:
        assert (figures.spill_stores, figures.spill_loads, figures.stack) == (0, 0, 0)
        assert figures.shared_bytes == 0, "all shared memory is dynamic"


@pytest.mark.parametrize("name", NAMES)
def test_the_parameters_are_those_of_the_generated_code(
    name: str, contracts: dict[str, Contract], compiled: dict[tuple[str, str], Compiled]
) -> None:
    result = compiled[name, "sm_80"]
    assert result.ptx is not None
    wanted = ["u64" if p.is_pointer else PTX_TYPE[p.type] for p in contracts[name].parameters]
    for expression in contracts[name].expressions:
        entry = re.search(rf"\.entry {re.escape(result.lowered[expression])}\((.*?)\)", result.ptx, re.S)
        assert entry is not None
        types = re.findall(r"\.param \.(\w+) (?:\.ptr )?", entry[1])
        assert types == wanted


@pytest.mark.parametrize("name", NAMES)
def test_the_parameters_have_the_names_of_the_text(name: str, contracts: dict[str, Contract]) -> None:
    text = contracts[name].source_path.read_text("utf-8")
    signature = re.search(rf"\b{name}\((.*?)\) \{{", text, re.S)
    assert signature is not None
    assert [part.split()[-1].lstrip("*") for part in signature[1].split(",")] == [
        p.name for p in contracts[name].parameters
    ]


@pytest.mark.parametrize("name", NAMES)
def test_shared_bytes_tiles_and_threads_are_those_of_the_text(name: str, contracts: dict[str, Contract]) -> None:
    if load_nvrtc() is None:
        pytest.skip("NVRTC is not installed")
    contract = contracts[name]
    text = contract.source_path.read_text("utf-8")
    values = [f"kSmemBytes<{d}, {dv}>" for d, dv in contract.widths] + ["Br", "Bc", "kThreads"]
    stores = "".join(f"x[{i}] = {value};" for i, value in enumerate(values))
    probe = f'{text}\nextern "C" __global__ void probe(int* x) {{ {stores} }}\n'
    result = compile_source(probe, path="probe.cu", want=("ptx",))
    assert result.ptx is not None
    body = result.ptx[result.ptx.index(".entry probe") :]
    constants = dict(re.findall(r"mov\.[bu]32\s+(%r\d+), (\d+);", body))
    stored: list[int] = []
    for operands in re.findall(r"st\.global\.(?:v\d\.)?[bu]32\s+\[[^\]]*\], \{?([^;}]*)\}?;", body):
        stored += [int(constants.get(part.strip(), part)) for part in operands.split(",")]
    shared = [contract.shared_at(widths, contract.dtypes[0]) for widths in contract.widths]
    assert sorted(stored) == sorted([*shared, contract.br, contract.bc, contract.block[0]])
    shape = contract.launch({"B": 3, "H": 5, "Hkv": 5, "Sq": contract.br + 1, "Sk": 1, "D": 64}, contract.dtypes[0])
    assert shape.grid == (2, 5, 3)


@pytest.mark.parametrize("name", NAMES)
def test_every_instance_fits_the_architectures_it_claims(name: str, contracts: dict[str, Contract]) -> None:
    contract = contracts[name]
    for arch in contract.archs:
        limit = shared_limit(arch)
        assert limit is not None, arch
        for instance in contract.instances:
            assert (contract.dynamic_shared(instance) > limit) == ((instance.expression, arch) in TOO_LARGE)


@pytest.mark.parametrize("name", NAMES)
def test_other_widths_of_the_rule_compile(name: str, contracts: dict[str, Contract]) -> None:
    if load_nvrtc() is None:
        pytest.skip("NVRTC is not installed")
    contract = contracts[name]
    widths = contract.candidates((34, 30))[0]
    assert widths == {"flash_fwd_sm80": (48, 32), "flash_fwd_scalar": (34, 32)}[name]
    result = compile_contract(contract.for_widths(widths))
    assert result.ok, [d.message for d in result.diagnostics]
    assert {k.expression for k in result.kernels} == {
        contract.rule.instance(t, widths).expression for t in contract.dtypes
    }


@pytest.mark.parametrize("name", NAMES)
def test_the_launcher_compiles_with_nvcc(name: str, contracts: dict[str, Contract]) -> None:
    from cubridge_engine.compile.toolchain import find_nvcc

    if find_nvcc() is None:
        pytest.skip("nvcc is not installed")
    contract = contracts[name]
    arguments = contract.expressions[0].partition("<")[2]
    keep = f"\nauto keep = &launch_{name}<{arguments};\n"
    result = compile_source(contract.source_path.read_text("utf-8") + keep, path="k.cu", backend="nvcc", want=("ptx",))
    assert result.ok, [d.message for d in result.diagnostics]
    assert len(result.lowered) == 1, "the launcher instantiates its kernel"
