"""The drop-in of a spec whose data decide the mask, with the kernel's PTX in it: it makes the list the kernel walks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from cubridge_engine.compile import compile_contract
from cubridge_engine.lower import lower
from cubridge_engine.pipeline.files import contract_of, lift_at
from cubridge_engine.source import parse
from cubridge_engine.spec import read_spec
from cubridge_engine.spec.dropin import DropIn
from cubridge_engine.spec.dropin_plain import plain_drop_in
from cubridge_engine.transfer import transfer
from cubridge_engine.transfer.tile_builder import tile_builder
from cubridge_engine.verify.bindings import Given, bind_kernel
from cubridge_engine.verify.contracts import extended
from cubridge_engine.verify.derive import choose_heads, grid_for, natural_scale
from cubridge_engine.verify.inputs import Tile
from cubridge_engine.verify.instances import Instances
from cubridge_engine.verify.prepare import Preparer
from cubridge_engine.verify.simulated_level import Plan, SimulatedJob, plans
from cubridge_engine.verify.subject import Subject
from cubridge_engine.verify.whole import SimulatedKernel, plain_case

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
    read = read_spec(str(SPEC))
    assert read.attention is not None
    source = parse("adapted.cu", PATH.read_bytes())
    lifted = lift_at(source, None, read.attention.specialised.get("D"))
    result = transfer(lifted.kernel, read.attention)
    lowered = lower(lifted, result, source, spec="spec.py")
    assert lowered.text is not None
    again = lift_at(parse("adapted.cu", lowered.text), None, lifted.kernel.D).kernel
    operands = {op.param: op.name for op in result.operands}
    bound = bind_kernel(again, read.attention, Given(result.bindings, operands))
    contract, _ = contract_of(str(PATH), lifted.kernel)
    assert contract is not None
    contract = extended(contract, again, operands)
    contract = replace(contract, instances=tuple(i for i in contract.instances if i.head_dim == again.D))
    compiled = compile_contract(contract, lowered.text, path="adapted.cu", want=("ptx",), arch="sm_80")
    subject = Subject("adapted.cu", lowered.text, again, bound.binding, contract)
    tile = Tile(again.Br, again.Bc, natural_scale(read.attention, again.D))
    heads = choose_heads(read.attention)
    assert heads is not None
    preparer = Preparer(read.attention, read.program, tile)
    instances = Instances(subject, contract, read.attention, preparer, lambda a, k: grid_for(a, k, heads).cases)
    job = SimulatedJob(contract, compiled, "adapted.cu", lowered.text, "keep")
    listed = next(op for op in result.operands if op.tiles is not None)
    derived = tile_builder(listed.name, listed.tiles, read.attention)
    made = plain_drop_in(read.program, read.attention, derived)
    return Bench(made, job, plans(instances, job.asynchronous)[0][0])


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
