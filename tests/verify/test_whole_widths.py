"""A spec that is narrower than any instantiation of the kernel: the drop-in adds zeros, and cuts off o."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from cubridge_engine.compile import compile_contract
from cubridge_engine.spec.dropin import DropIn
from cubridge_engine.spec.dropin_padding import Padding
from cubridge_engine.spec.dropin_plain import plain_drop_in
from cubridge_engine.verify.run import padding_of
from cubridge_engine.verify.simulated_level import Plan, SimulatedJob, plans
from cubridge_engine.verify.whole import SimulatedKernel, plain_case

from .adapted_text import AdaptedText, adapt_text

ROOT = Path(__file__).parents[2]
PATH = ROOT / "expert_kernels" / "flash_fwd_sm80" / "kernel.cu"
SPEC = """import torch


def attention(q, bias, k, v):
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5 + bias
    scores = torch.where(torch.ones(scores.shape[-2:]).tril() > 0, scores, float("-inf"))
    return torch.softmax(scores, -1) @ v, torch.logsumexp(scores, -1)


def example_inputs():
    q, k, v = (torch.randn(1, 2, 80, d, dtype=torch.float16) for d in (34, 34, 24))
    return q, torch.randn(2, 80, 80, dtype=torch.float16), k, v
"""


@dataclass
class Bench:
    """The bundled kernel adapted at (48, 32) to a spec of (34, 24), compiled, and its drop-in."""

    made: AdaptedText
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
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    spec = tmp_path_factory.mktemp("widths") / "spec.py"
    spec.write_text(SPEC)
    made = adapt_text(PATH, spec)
    contract = made.instances.contract
    contract = replace(contract, instances=contract.instances[:1])
    compiled = compile_contract(contract, made.text, path="adapted.cu", want=("ptx",), arch="sm_80")
    instances = replace(made.instances, subject=replace(made.subject, contract=contract), contract=contract)
    job = SimulatedJob(contract, compiled, "adapted.cu", made.text, "keep")
    drop_in = plain_drop_in(made.program, made.attention, None, (), Padding(48, 32))
    return Bench(made, drop_in, job, plans(instances, job.asynchronous)[0][0])


def test_only_the_widths_of_the_kernel_are_left_in_its_contract(bench: Bench) -> None:
    assert bench.made.instances.contract.widths == ((48, 32),)
    padded = padding_of(bench.made.subject.kernel, bench.made.attention)
    assert padded is not None
    assert (padded.d, padded.dv) == ((34, 48), (24, 32))
    assert padded.text == "q and k 34 -> 48, v 24 -> 32"


def test_the_padded_kernel_computes_the_spec(bench: Bench) -> None:
    (case, found), inside = bench.run()
    assert (found, inside) == ((), [])
    assert case.passed
    assert case.sizes["Sk"] > 64
    assert (case.sizes["D"], case.sizes["Dv"]) == (34, 24)
    assert "q and k must have 34 columns, and v 24" in bench.drop_in.text


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("F.pad(k, (0, 48 - k.shape[-1]))", "F.pad(k, (48 - k.shape[-1], 0))"),
        ("F.pad(q, (0, 48 - q.shape[-1]))", "F.pad(q, (0, 48 - q.shape[-1]), value=1.0)"),
        ("F.pad(v, (0, 32 - v.shape[-1]))", "F.pad(v, (32 - v.shape[-1], 0))"),
        ("o[..., : v.shape[-1]]", "o[..., -v.shape[-1] :]"),
        ("return o[..., : v.shape[-1]], lse", "return o, lse"),
        ("(34, 24)", "(34, 32)"),
    ],
    ids=["k in front", "ones beside q", "v in front", "the end of o", "all of o", "other widths"],
)
def test_a_wrong_padding_is_found(bench: Bench, old: str, new: str) -> None:
    if old.startswith("F.pad(q"):  # nothing but zeros stands beside the ones: both are needed to move a score
        spoilt = replace(
            bench.drop_in, text=bench.drop_in.text.replace("48 - k.shape[-1])", "48 - k.shape[-1]), value=1.0")
        )
        bench = replace(bench, drop_in=spoilt)
    (case, found), _ = bench.run(old, new)
    assert not case.passed
    assert [d.code for d in found] == ["CB725"]
