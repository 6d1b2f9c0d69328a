"""Both expert kernels: the contract tells the truth about the text, and every instance compiles without a spill.

That they compute attention is shown on a device (tests/gpu) and by the verifier.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cubridge_engine.compile import Compiled, Contract, compile_contract, compile_source, read_contract, shared_limit
from cubridge_engine.compile.nvrtc import load_nvrtc

ROOT = Path(__file__).parents[2] / "expert_kernels"
NAMES = ("flash_fwd_sm80", "flash_fwd_scalar")
ARCHS = ("sm_80", "sm_86", "sm_90")
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
    return {(n, a): compile_contract(contracts[n], arch=a) for n in NAMES for a in ARCHS}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("arch", ARCHS)
def test_every_instance_compiles_without_a_spill(
    name: str, arch: str, contracts: dict[str, Contract], compiled: dict[tuple[str, str], Compiled]
) -> None:
    result = compiled[name, arch]
    assert result.ok
    assert result.diagnostics == ()
    assert {k.expression for k in result.kernels} == set(contracts[name].expressions)
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
    values = [f"kSmemBytes<{d}>" for d in contract.head_dims] + ["Br", "Bc", "kThreads"]
    stores = "".join(f"x[{i}] = {value};" for i, value in enumerate(values))
    probe = f'{text}\nextern "C" __global__ void probe(int* x) {{ {stores} }}\n'
    result = compile_source(probe, path="probe.cu", want=("ptx",))
    assert result.ptx is not None
    body = result.ptx[result.ptx.index(".entry probe") :]
    constants = dict(re.findall(r"mov\.[bu]32\s+(%r\d+), (\d+);", body))
    stored: list[int] = []
    for operands in re.findall(r"st\.global\.(?:v\d\.)?[bu]32\s+\[[^\]]*\], \{?([^;}]*)\}?;", body):
        stored += [int(constants.get(part.strip(), part)) for part in operands.split(",")]
    shared = [
        contract.dynamic_shared(next(i for i in contract.instances if i.head_dim == d)) for d in contract.head_dims
    ]
    assert sorted(stored) == sorted([*shared, contract.br, contract.bc, contract.block[0]])
    shape = contract.launch({"B": 3, "H": 5, "Hkv": 5, "Sq": contract.br + 1, "Sk": 1, "D": 64}, contract.dtypes[0])
    assert shape.grid == (2, 5, 3)


@pytest.mark.parametrize("name", NAMES)
def test_every_instance_fits_the_architectures_it_claims(name: str, contracts: dict[str, Contract]) -> None:
    contract = contracts[name]
    for arch in contract.archs:
        limit = shared_limit(arch)
        assert limit is not None, arch
        assert all(contract.dynamic_shared(instance) <= limit for instance in contract.instances)


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
