"""The drop-in of a spec whose data decide the mask, with the kernel's PTX in it: it makes the list the kernel walks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from cubridge_engine.compile import compile_contract
from cubridge_engine.spec.dropin import DropIn
from cubridge_engine.spec.dropin_plain import plain_drop_in
from cubridge_engine.transfer.tile_builder import tile_builder
from cubridge_engine.verify.simulated_level import Plan, SimulatedJob, plans
from cubridge_engine.verify.whole import SimulatedKernel, plain_case

from .adapted_text import adapt_text

ROOT = Path(__file__).parents[2]
PATH = ROOT / "expert_kernels" / "flash_fwd_scalar" / "kernel.cu"
SPEC = ROOT / "examples" / "document_mask.py"


@dataclass
class Bench:
    """The bundled kernel adapted to documents by ids, compiled, and its drop-in."""

    drop_in: DropIn
    job: SimulatedJob
    plan: Plan

    def run(self, old: str = "", new: str = ""):
        """The whole-function case, of the drop-in with `old` replaced by `new`."""
        text = self.drop_in.text
        assert text.count(old) == 1 or not old
        changed = replace(self.drop_in, text=text.replace(old, new) if old else text)
        kernel = SimulatedKernel(self.job, self.plan, changed.attention)
        return plain_case(changed, kernel, self.plan), kernel.found


@pytest.fixture(scope="module")
def bench() -> Bench:
    made = adapt_text(PATH, SPEC)
    contract = made.instances.contract
    here = tuple(i for i in contract.instances if i.head_dim == made.subject.kernel.D)
    contract = replace(contract, instances=here)
    compiled = compile_contract(contract, made.text, path="adapted.cu", want=("ptx",), arch="sm_80")
    instances = replace(made.instances, subject=replace(made.subject, contract=contract), contract=contract)
    job = SimulatedJob(contract, compiled, "adapted.cu", made.text, "keep")
    listed = next(op for op in made.result.operands if op.tiles is not None)
    derived = tile_builder(listed.name, listed.tiles, made.attention)
    drop_in = plain_drop_in(made.program, made.attention, derived)
    return Bench(drop_in, job, plans(instances, job.asynchronous)[0][0])


def test_the_list_of_the_drop_in_makes_the_kernel_compute_the_spec(bench: Bench) -> None:
    (case, found), inside = bench.run()
    assert case.passed
    assert (found, inside) == ((), [])
    assert case.name == "whole module"
    assert case.sizes["Sk"] > 64, "some tile is left out, one is tested, one is attended whole"
    assert 0 < float(case.worst_o) < case.tolerance


WRONG = {
    "a tile is left out": ("out[..., 0] = count\n", "out[..., 0] = count.clamp(max=1)\n"),
    "all tiles are said to be attended whole": ("out[..., 1] = (live & ~whole).sum(-1)", "out[..., 1] = 0"),
    "tiles that are attended in part are taken for empty": ("tiles.any(3).any(1)", "tiles.all(3).all(1)"),
    "ids compared by order": (" == at(document_ids, b, j)", " >= at(document_ids, b, j)"),
    "64-bit numbers": ("dtype=torch.int32, device=live.device", "dtype=torch.int64, device=live.device"),
    "the list is not passed": ("v, document_ids, kv_tiles)\n", "v, document_ids)\n"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_drop_in_fails(bench: Bench, name: str) -> None:
    old, new = WRONG[name]
    if name == "the list is not passed":
        old, new = "    return kernel(q, k, " + old, "    return kernel(q, k, " + new
    (case, found), _ = bench.run(old, new)
    assert not case.passed
    assert [d.code for d in found] == ["CB725"]
