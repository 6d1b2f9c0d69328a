"""Level simulated: a right kernel passes with a record of what ran; faults that reading cannot see are found, with the
code and the user's line.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from cubridge_engine.compile import compile_contract
from cubridge_engine.pipeline.check import verify_kernel
from cubridge_engine.verify.instances import Instances
from cubridge_engine.verify.simulated_level import (
    SimulatedJob,
    SimulatedOutcome,
    plans,
    run_simulated,
)
from cubridge_engine.verify.subject import Subject, Variant, VerifyOptions

from .adapted_text import adapt_text

ROOT = Path(__file__).parents[2]
PATH = ROOT / "expert_kernels" / "flash_fwd_sm80" / "kernel.cu"
SPEC = ROOT / "examples" / "sdpa_with_bias.py"
ALL = ("late forward", "early forward", "late reverse", "early reverse")


@dataclass
class Bench:
    """The bundled kernel adapted to a spec with a bias, and runs of changed texts under the same binding."""

    text: str
    subject: Subject
    instances: Instances

    def run(
        self, text: str, cases: tuple[str, ...], *, both: bool = False, dynamic: str = "", arch: str = "sm_80",
        again: bool = False,
    ) -> SimulatedOutcome:  # fmt: skip
        """Run the primary instantiation (`both`: and the one of bf16) of `text` on the named cases.

        `again`: as PTX that differs from what the whole grid ran on.
        """
        whole = self.instances
        kept = tuple(i for i in whole.contract.instances if i == whole.primary() or (both and "bfl" in i.dtype))
        contract = replace(whole.contract, instances=tuple(i for i in kept if i.head_dim == self.subject.kernel.D))
        contract = replace(contract, dynamic_shared_bytes=dynamic or contract.dynamic_shared_bytes)
        compiled = compile_contract(
            contract, text.encode(), path="adapted.cu", want=("ptx",), options=("-lineinfo",), arch=arch
        )
        assert compiled.ptx is not None, compiled.diagnostics
        at = lambda a, k: tuple(c for c in whole.cases_at(a, k) if c.name in cases)  # noqa: E731
        chosen = Instances(self.subject, contract, whole.attention, whole.preparer, at)
        job = SimulatedJob(contract, compiled, "adapted.cu", text.encode(), "keep", ("sm_86",), whole=not again)
        return run_simulated(job, chosen, lambda *_: None)


@pytest.fixture(scope="module")
def bench() -> Bench:
    made = adapt_text(PATH, SPEC)
    return Bench(made.text.decode(), made.subject, made.instances)


def test_a_right_kernel_passes_and_the_record_says_what_ran(bench: Bench) -> None:
    names = ("rising-max", "short-query", "below-tile", "decode", "no-keys", "no-queries")
    outcome = bench.run(bench.text, names, both=True)
    assert outcome.passed, [d.message for d in outcome.diagnostics]
    first, other = outcome.results
    assert (first.dtype, first.schedules) == ("float16", ALL)
    assert (other.dtype, other.schedules) == ("bfloat16", ("late reverse", "early forward"))
    assert set(first.cases) == set(other.cases) == set(names)
    assert (first.launches, other.launches) == (20, 10), "nothing is launched for zero queries"
    assert first.bank_conflict_ways == 1.0
    assert len(outcome.cases) == 36
    assert 1e-5 < max(float(c.worst_o) for c in outcome.cases if c.dtype == "float16") < 4e-3
    assert first.same_as == ("sm_86",)
    assert first.values == bench.subject.binding.values
    assert other.cost is None
    cost = first.cost
    assert cost is not None
    assert (cost.case, cost.schedule) == ("rising-max", "late forward"), "the most scores of these cases"
    # The others, as many in every kernel, are of headers (logf) and of no line.
    assert sum(c.instructions for c in cost.lines) == pytest.approx(cost.instructions, rel=0.025)
    lines = bench.text.split("\n")
    assert all(c.text == " ".join(lines[c.line].split()) for c in cost.lines if len(c.text) < 100)
    (load,) = (c for c in cost.calls if "ldmatrix_x4(kf" in c.text)
    assert load.bank_ways == 1.0
    assert load.shared_read == 64 * 64 * 2 * 4 * load.passes * cost.ctas, "each of four warps reads the K tile"
    by_case = {(c.name, c.worst_o) for c in outcome.cases if c.dtype == "float16"}
    assert len(by_case) == len(names), "a right kernel gives the same under every schedule"


def test_every_instantiation_runs_the_whole_grid_the_own_one_under_all_schedules(bench: Bench) -> None:
    """As if only fp16 had asynchronous copies: the others need no early and late."""
    own = bench.subject.kernel.D
    there = replace(bench.subject, at_head_dim=lambda d: _variant(bench, d))
    todo, missing = plans(replace(bench.instances, subject=there, _made={}), lambda i: i.dtype == "float16")
    assert missing == {}
    assert {(p.instance.dtype, p.instance.head_dim) for p in todo} == {
        (t, d) for t in ("float16", "bfloat16") for d in (64, 128)
    }
    assert [len(p.schedules) for p in todo] == [4, 2, 1, 1]
    assert (todo[0].instance.dtype, todo[0].instance.head_dim) == ("float16", own)
    assert all(p.problem.cases == bench.instances.cases_at(p.problem.attention, p.problem.kernel) for p in todo)


def _variant(bench: Bench, head_dim: int) -> Variant:
    kernel = replace(bench.subject.kernel, D=head_dim)
    return Variant(kernel, bench.instances.attention, None, bench.subject.binding)


def test_a_head_dimension_that_the_spec_does_not_have_is_named(bench: Bench) -> None:
    todo, missing = plans(bench.instances, lambda i: True)  # no `at_head_dim`: there is no other one
    assert {p.instance.head_dim for p in todo} == {64}
    assert set(missing) == {"flash_fwd_sm80<__half, 128>", "flash_fwd_sm80<__nv_bfloat16, 128>"}
    assert all("128" in why for why in missing.values())


@dataclass(frozen=True)
class Fault:
    """An edit, the cases to run, the code that must be found, and a text of the line it must be on."""

    name: str
    old: str
    new: str
    case: str
    code: str
    line: str


WAIT = "    cp_async_wait<0>();\n    __syncthreads();\n    if (tile + 1"
BIAS = "        if (row < sq && col < sk) {\n          s[nb][e] += static_cast<float>(pair_bias"
V_TILE = "kTileBytes<DV>, v, v_stride_row,"
FAULTS = (
    Fault("no-barrier", WAIT, WAIT.replace("    __syncthreads();\n", ""), "rising-max", "CB516", "load_kv_tile"),
    Fault("wait-too-weak", WAIT, WAIT.replace("<0>", "<1>"), "rising-max", "CB517", "ldmatrix_x4(kf"),
    Fault("bias-tail", BIAS, BIAS.replace(" && col < sk", ""), "short-query", "CB513", "pair_bias_h[row"),
    Fault("bias-rows", BIAS, BIAS.replace("row < sq && ", ""), "short-query", "CB513", "pair_bias_h[row"),
    Fault("stride-of-v", V_TILE, V_TILE.replace("v_stride", "k_stride"), "below-tile", "CB513", "v, k_stride_row"),
    Fault("head-stride-of-v", "hk * v_stride_h", "hk * k_stride_h", "below-tile", "CB513", "v, v_stride_row"),
    Fault("unwritten", "if (row < sq) {\n", "if (row + 1 < sq) {\n", "decode", "CB523", ""),
)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.name)
def test_faults_are_found_on_the_users_line(bench: Bench, fault: Fault) -> None:
    assert fault.old in bench.text
    text = bench.text.replace(fault.old, fault.new)
    outcome = bench.run(text, (fault.case,))
    assert not outcome.passed
    found = [d for d in outcome.diagnostics if d.code == fault.code]
    assert found, [d.message for d in outcome.diagnostics]
    assert fault.case in found[0].message
    rows = text.splitlines()
    spans = [s for d in found for s in (d.span, *(r.span for r in d.related)) if s is not None]
    assert all(s.path == "adapted.cu" for s in spans)
    assert not fault.line or any(fault.line in rows[s.line] for s in spans), [rows[s.line] for s in spans]


def test_a_wrong_number_without_a_finding_is_an_error_of_its_own(bench: Bench) -> None:
    changed = bench.text.replace("correction[r] = exp2_approx(", "correction[r] = 1.01f * exp2_approx(")
    outcome = bench.run(changed, ("rising-max",))
    assert not outcome.passed
    (found,) = outcome.diagnostics
    assert found.code == "CB720"
    assert "case 'rising-max'" in found.message
    assert outcome.cases[0].counterexample is not None


def test_too_little_shared_memory_is_found(bench: Bench) -> None:
    outcome = bench.run(bench.text, ("square",), dynamic="4 * 64 * D * element_bytes")
    assert any(d.code == "CB515" for d in outcome.diagnostics)
    assert not outcome.passed


def test_an_unknown_instruction_skips_the_level_and_is_no_fault_of_the_kernel(bench: Bench) -> None:
    text = bench.text.replace("  const int lane =", '  asm volatile("frobnicate.sync;");\n  const int lane =', 1)
    outcome = bench.run(text, ("one",))
    assert "frobnicate" in outcome.skipped
    assert not outcome.passed
    assert outcome.cases == []
    assert {d.severity.name for d in outcome.diagnostics} == {"WARNING"}


def test_through_the_whole_pipeline(bench: Bench, tmp_path: Path) -> None:
    """A fault that the program read from the text does not show: everything below `simulated` passes."""
    path = tmp_path / "edited.cu"
    header = "// cubridge: param pair_bias = operand:pair_bias\n"
    path.write_text(header + bench.text.replace(BIAS, BIAS.replace(" && col < sk", "")))
    done = verify_kernel(str(path), str(SPEC), checks=VerifyOptions(archs=("sm_80",), use_gpu=False))
    assert {s.name: s.state for s in done.stages}["ir"] == "passed"
    stage = next(s for s in done.stages if s.name == "simulate")
    assert stage.state == "failed"
    assert done.level == "compiled"
    assert done.applicability == "sketch"
    (found,) = (d for d in done.diagnostics if d["code"] == "CB513")
    assert "pair_bias_h[row" in path.read_text().splitlines()[found["span"]["line"]]
    assert found["span"]["path"] == str(path)


def test_without_a_contract_the_stage_says_so(tmp_path: Path) -> None:
    path = tmp_path / "own.cu"
    path.write_text(PATH.read_text().replace("flash_fwd_sm80", "my_attention"))
    spec = ROOT / "examples" / "causal_bottom_right.py"
    done = verify_kernel(str(path), str(spec), checks=VerifyOptions(archs=("sm_80",), use_gpu=False))
    stage = next(s for s in done.stages if s.name == "simulate")
    assert (done.level, done.applicability) == ("compiled", "unverified")
    assert stage.state == "skipped"
    assert "contract.toml" in stage.why
    (said,) = (d for d in done.diagnostics if d["code"] == "CB712")
    assert "contract.toml" in said["help"]


def test_a_fault_in_the_code_of_another_architecture_is_found_there(bench: Bench) -> None:
    """The whole grid ran on sm_80, where the barrier is; the reduced problems are enough to miss it on sm_90."""
    barrier = "    __syncthreads();\n"
    guarded = "#if __CUDA_ARCH__ < 900\n    __syncthreads();\n#endif\n"
    text = bench.text.replace(WAIT, WAIT.replace(barrier, guarded))
    assert text != bench.text
    names = ("rising-max", "short-query", "square", "below-tile", "one")
    assert bench.run(text, ("rising-max",)).passed
    outcome = bench.run(text, names, arch="sm_90", again=True)
    assert not outcome.passed
    races = [d.message for d in outcome.diagnostics if d.code == "CB516"]
    assert races
    assert all(" for sm_90, schedule" in message for message in races), races
    right = bench.run(bench.text, names, arch="sm_90", again=True)
    assert right.passed, [d.message for d in right.diagnostics]
    (result,) = right.results
    assert (result.arch, result.cost, result.schedules) == ("sm_90", None, ("late reverse", "early forward"))
    assert {"short-query", "rising-max"} <= set(result.cases) < set(names)
    assert {c.arch for c in right.cases} == {"sm_90"}
