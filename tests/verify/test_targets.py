"""Which architectures a kernel is compiled for, which PTX is executed, and on which problems."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cubridge_engine.compile import Compiled, read_contract
from cubridge_engine.verify.grid import Heads, base_cases
from cubridge_engine.verify.targets import archs_of, reduced, targets

KERNEL = Path(__file__).parents[2] / "expert_kernels/flash_fwd_sm80/kernel.cu"


@pytest.fixture(scope="module")
def contract():
    found, problems = read_contract(KERNEL.with_name("contract.toml"))
    assert found is not None, problems
    return found


def test_the_usual_architectures_are_those_that_the_contract_names(contract) -> None:
    assert archs_of((), contract, b"") == ("sm_80", "sm_90")
    assert archs_of((), replace(contract, archs=("sm_90", "sm_90a")), b"") == ("sm_90",)
    assert archs_of((), replace(contract, archs=("sm_90a", "sm_100a")), b"") == ("sm_90a", "sm_100a")
    assert archs_of((), None, b"") == ("sm_80", "sm_90")
    assert archs_of(("sm_86",), contract, b"") == ("sm_86",)


def test_a_kernel_that_asks_for_its_architecture_is_compiled_for_all(contract) -> None:
    two = replace(contract, archs=("sm_80", "sm_90a"))
    assert archs_of((), two, b"#if __CUDA_ARCH__ >= 900\n#endif\n") == two.archs
    assert archs_of((), two, b"#ifdef __CUDA_ARCH_FEAT_SM90_ALL\n#endif\n") == two.archs


def _ptx(target: str, body: str) -> Compiled:
    text = f"// for {target}\n.version 9.0\n.target {target}\n{body}"
    return Compiled(target, "nvrtc", "NVRTC", text, None, {}, (), (), ())


def test_ptx_that_differs_in_its_target_only_runs_once() -> None:
    made = {
        a: _ptx(a, body) for a, body in (("sm_80", "ret;"), ("sm_90", "ret;"), ("sm_90a", "exit;"), ("sm_100", "exit;"))
    }
    first, second = targets(made)
    assert (first.compiled.arch, first.same_as) == ("sm_80", ("sm_90",))
    assert (second.compiled.arch, second.same_as) == ("sm_90a", ("sm_100",))


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_the_reduced_problems_go_round_the_ring_and_below_a_tile(stages: int) -> None:
    cases = base_cases(64, 64, 64, Heads((2, 2), (4, 2)))
    chosen = reduced(cases, 64, stages)
    tiles = [-(-c.Sk // 64) for c in chosen]
    assert len(chosen) < len(cases) / 3
    if stages < 4:  # the base grid has four tiles at most; those of the edit are longer
        assert sum(n >= max(3, stages + 1) for n in tiles) == 2
        assert any(c.Sk % 64 for c in chosen if c.Sk > 64)
    assert any(c.Sk < 64 for c in chosen)
    assert all(c.Sq for c in chosen)
