"""A kernel that reading refuses, adapted by watching, end to end; wrong edits are rejected by execution.

With CUBRIDGE_GRAFT=all the other specs, more wrong edits and FlashAttention-2's own forward kernel (its sdist is
fetched with pip; two compilations of minutes) run too, against what recorded.toml says.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from cubridge_engine.compile import read_contract
from cubridge_engine.diagnostics import CATALOGUE
from cubridge_engine.graft import FileEdit, Refused, Understood, gate
from cubridge_engine.graft.look import look
from cubridge_engine.ir.expr import Call, Const, Expr, Var
from cubridge_engine.pipeline.files import Options, parse_kernel_file
from cubridge_engine.pipeline.folder import plan_folder
from cubridge_engine.pipeline.graft import GraftJob, graft, result_of, visits_in_vain
from cubridge_engine.pipeline.graft_verify import verify_watched
from cubridge_engine.pipeline.tasks import adapt as adapt_task
from cubridge_engine.pipeline.tasks import verify as verify_task
from cubridge_engine.pipeline.widths import lift_at
from cubridge_engine.spec import read_spec
from cubridge_engine.verify.case_result import executed_case
from cubridge_engine.verify.gpu_level import GpuJob, GpuOutcome
from cubridge_engine.verify.measure import measure_o
from cubridge_engine.verify.stages import Stages
from cubridge_engine.verify.subject import VerifyOptions
from tests.foreign_kernels.corpus import kernels

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).parent
KERNEL = HERE / "kernels" / "fragments" / "kernel.cu"
SPECS = HERE / "specs"
RECORDED = tomllib.loads((HERE / "recorded.toml").read_text())
ALL = os.environ.get("CUBRIDGE_GRAFT") == "all"
long = pytest.mark.skipif(not ALL, reason="CUBRIDGE_GRAFT=all runs it")
CHECKS = VerifyOptions(use_gpu=False)


def quiet(*_: object) -> None:
    """No progress."""


@pytest.fixture(scope="module")
def job() -> GraftJob:
    made = GraftJob(str(KERNEL), str(SPECS / "softcap_strided.py"), Options(), CHECKS, quiet)
    made.run()
    return made


def compare(result, name: str) -> None:
    """A result against its row of the record."""
    row = next(r for r in RECORDED["adapted"] if r["spec"] == name)
    report = result.report
    assert report is not None
    assert result.level == row["level"]
    assert len({(c.name, c.seed) for c in report.cases}) == row["problems"]
    assert len(report.cases) == row["launches"]
    assert all(c.passed for c in report.cases)
    assert max(float(c.worst_o) for c in report.cases) <= 1.5 * row["worst"]
    hunks = [*result.hunks, *(h for f in result.files for h in f.hunks)]
    assert len(hunks) == row["hunks"]
    assert sorted(f.name for f in result.files) == row["files"]


def test_reading_refuses_the_kernel():
    lifted = lift_at(parse_kernel_file(str(KERNEL), KERNEL.read_bytes()), "attention", (32, 32))
    assert lifted.kernel is None or not lifted.coverage.complete


def test_it_is_adapted_at_both_copies_and_verified(job):
    result = result_of(job)
    assert [d for d in result.diagnostics if d["severity"] == "error"] == []
    compare(result, "softcap_strided")
    assert (result.evidence, result.applicability, result.exit_code) == ("observed", "verified", 0)
    assert result.text is not None
    assert result.text.count("tanhf(acc_s(elem) * 0.0441941738f) * 22.627417f : -INFINITY;") == 2
    assert result.text.count("n_block * kCols + (threadIdx.x & 3) * 2 + (elem & 1) + (elem >> 2 & 1) * 8;") == 2
    for hunk in result.hunks:  # nothing else of the user's text is touched
        assert hunk.old == ""
    said = next(d for d in result.diagnostics if d["code"] == "CB435")
    assert "observed, not read" in said["message"]
    assert "// cubridge: report observed, not read" in result.text


def test_it_has_no_level_ir_and_the_kernel_as_it_was_is_told_from_it(job):
    report = job.report
    assert report is not None
    stage = next(s for s in report.stages if s.name == "ir")
    assert (stage.state, stage.why) == ("skipped", "the kernel was watched, not read")
    assert not [c for c in report.cases if c.level == "ir"]
    power = {p.what: p.rejected for p in report.power}
    assert power["the kernel as it was"]
    assert all(power.values())


def spoiled(job: GraftJob, change: Callable[[str], str]) -> tuple[str, list[str]]:
    """Level and codes of the adapted text after another change."""
    assert job.edited is not None
    assert job.understood is not None
    assert job.attention is not None
    (file,) = job.edited.files
    text = change(file.after.decode())
    assert text != file.after.decode(), "the change does nothing"
    edited = replace(job.edited, files=(FileEdit(file.path, file.before, text.encode(), file.hunks),))
    spec = read_spec(job.spec_path)
    grafted, _ = job.grafted(job.understood, edited)
    report, found = gate(grafted, job.attention, spec.program, CHECKS, Stages(("compile", "simulate"), quiet), None)
    assert report.applicability != "verified"
    return report.level, [d.code for d in found]


def last_only(text: str) -> str:
    """The first of the two copies stays as it was."""
    start = text.index("    // cubridge: each score")
    return text[:start] + text[text.index("    tile::mask_tail(acc_s", start) :]


WRONG = {
    "one of the copies": last_only,
    "rows": lambda text: text.replace("(elem >> 1 & 1) * 8", "(elem >> 1 & 1) * 4"),
    "cap": lambda text: text.replace("0.0441941738f) * 22.627417f", "0.0441941738f) * 24.9f"),
    "keys": lambda text: text.replace("(elem & 1) + (elem >> 2 & 1) * 8;", "(elem >> 2 & 1) * 8;"),
    "window": lambda text: text.replace("q_row - key < 40", "q_row - key < 44"),
    "tail": lambda text: text.replace("tile::mask_tail(acc_s, n_block * kCols, params.cols);", ""),
}
SHORT = ("one of the copies",)


@pytest.mark.parametrize("what", [pytest.param(w, marks=() if w in SHORT else long) for w in WRONG])
def test_a_wrong_edit_does_not_pass_the_gate(job, what):
    level, codes = spoiled(job, WRONG[what])
    assert level == "compiled"
    assert "CB720" in codes


def test_tiles_in_vain_are_told_of_only_where_there_are_some(job):
    found, causal = job.understood, Call("le", (Var("j"), Var("i") + Var("Sk") - Var("Sq")))
    skips = replace(found, base=replace(found.base, mask="causal bottom-right"))
    far = Call("and", (causal, Call("lt", (Var("i") - Var("j"), Const(40)))))

    def told(understood: Understood, mask: Expr | None) -> bool:
        return visits_in_vain(understood, replace(job.attention, mask=mask))

    assert told(found, causal)
    assert not told(skips, causal)
    assert told(skips, far)
    assert not told(found, None)


def test_a_place_that_misses_some_scores_is_none(job):
    found = job.understood
    with pytest.raises(Refused) as refused:
        look(found.builder, [found.sites[0].place], found.texts, found.base)
    (said,) = refused.value.diagnostics
    assert said.code == "CB432"
    assert "passed none of the places" in said.message


@pytest.fixture(scope="module")
def sunk(tmp_path_factory) -> Path:
    """The kernel adapted to a soft cap, a window and a sink, written to a folder of its own with its contract."""
    out = tmp_path_factory.mktemp("sunk")
    result = graft(str(KERNEL), str(SPECS / "softcap_window_sink.py"), Options(), CHECKS)
    compare(result, "softcap_window_sink")
    assert result.text is not None
    assert result.text.count("softmax.sum[r] += exp2f(params.sinks[head] * 1.44269504f") == 1
    power = {p.what: p.rejected for p in result.report.power}
    assert power["the spec without its sink"]
    assert [d["severity"] for d in result.diagnostics if d["code"] == "CB442"] == ["note"]
    own, others = result.text.encode(), {f.path: f.text.encode() for f in result.files}
    plan = plan_folder(out, KERNEL, own, others)
    for path, data in {**plan.texts, **plan.copies}.items():
        path.write_bytes(data)
    return out


def test_a_sink_joins_behind_the_loop_and_the_contract_has_its_tensor(sunk):
    assert {p.name for p in sunk.iterdir()} == {"kernel.cu", "fragments.h", "contract.toml"}
    before, _ = read_contract(KERNEL.parent / "contract.toml")
    after, _ = read_contract(sunk / "contract.toml")
    assert before is not None
    assert after is not None
    (old,), (new,) = before.parameters, after.parameters
    assert (new.size, old.size) == (64, 56)
    (field,) = set(new.fields) - set(old.fields)
    assert (field.offset, field.parameter.role, field.parameter.type) == (56, "operand:sinks", "float*")


def test_what_was_adapted_is_verified_again_by_watching(sunk):
    spec = str(SPECS / "softcap_window_sink.py")
    params = {"kernel": str(sunk / "kernel.cu"), "spec": spec, "use_gpu": False, "watch": True}
    value = verify_task(params, quiet)
    assert [d for d in value["diagnostics"] if d["severity"] == "error"] == []
    assert (value["level"], value["applicability"], value["exit_code"]) == ("simulated", "verified", 0)
    assert value["bindings"] == {"scale": 32**-0.5}
    assert "CB439" in [d["code"] for d in value["diagnostics"]]


def behind_every_tile(text: str) -> str:
    """The brace that ends the loop over keys stands behind the sink."""
    inside = text.replace("    __syncwarp();\n  }\n  // cubridge: the", "  // cubridge: the")
    return inside.replace("* 0.25f;\n    }\n  }\n", "* 0.25f;\n    }\n  }\n  __syncwarp();\n  }\n")


WRONG_SINKS = {
    "counted by each lane": lambda text: text.replace("0.255034862f) * 0.25f", "0.255034862f)"),
    "of the first head": lambda text: text.replace("params.sinks[head]", "params.sinks[0]"),
    "in other units": lambda text: text.replace("params.sinks[head] * 1.44269504f", "params.sinks[head]"),
    "left out": lambda text: text.replace("softmax.sum[r] +=", "const float unused ="),
    "behind every tile": behind_every_tile,
    "one more key in the window": lambda text: text.replace("q_row - key < 40", "q_row - key < 41"),
}


@pytest.mark.parametrize("what", [pytest.param(w, marks=() if w == "of the first head" else long) for w in WRONG_SINKS])
def test_a_wrong_sink_is_rejected(sunk, tmp_path, what):
    folder = tmp_path / "kernel"
    shutil.copytree(sunk, folder)
    text = (folder / "kernel.cu").read_text()
    changed = WRONG_SINKS[what](text)
    assert changed != text
    (folder / "kernel.cu").write_text(changed)
    result = verify_watched(str(folder / "kernel.cu"), str(SPECS / "softcap_window_sink.py"), Options(), CHECKS)
    assert (result.level, result.exit_code) == ("compiled", 1)
    assert "CB720" in [d["code"] for d in result.diagnostics]


def test_tensors_that_spec_and_contract_do_not_share_are_refused(sunk):
    result = verify_watched(str(sunk / "kernel.cu"), str(SPECS / "softcap_strided.py"), Options(), CHECKS)
    (error,) = [d for d in result.diagnostics if d["severity"] == "error"]
    assert (error["code"], result.level) == ("CB430", "none")
    assert "the contract has the tensor sinks, and the spec has not" in error["message"]


def test_a_device_gives_level_gpu(sunk, monkeypatch):
    """No device here: what is checked is that the grid, the text for the device and the result reach where they go."""
    asked: list[GpuJob] = []

    def ran(job, instances, rounds, tick):
        asked.append(job)
        (instance,) = instances
        problem = job.problems[instance.head_dim]
        prepared = [problem.preparer.get(c, instance.dtype) for c in problem.cases]
        fine = [
            executed_case(p, "gpu", p.dtype, "device", [measure_o(p.o, p.o, p.dtype, p.dead, "keep")], True)
            for p in prepared
        ]
        return GpuOutcome(fine)

    room = sys.modules["cubridge_engine.graft.gate"]
    monkeypatch.setattr(room, "device_available", lambda: SimpleNamespace(arch="sm_90"))
    monkeypatch.setattr(room, "run_gpu", ran)
    checks = VerifyOptions(use_simulator=False)
    result = verify_watched(str(sunk / "kernel.cu"), str(SPECS / "softcap_window_sink.py"), Options(), checks)
    assert (result.level, result.applicability) == ("gpu", "verified")
    assert asked[0].compiled.arch == "sm_90"
    assert {p.name for p in asked[0].contract.leaves} >= {"sinks"}


LSE = """
import torch


def attention(q, k, v, sinks):
    s = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    column = sinks[None, :, None, None].expand(*s.shape[:3], 1)
    s = torch.cat([s, column], dim=-1)
    return torch.softmax(s, dim=-1)[..., :-1] @ v, torch.logsumexp(s, dim=-1)


def example_inputs():
    return *(torch.randn(1, 2, 64, 32) for _ in range(3)), torch.zeros(2)
"""


def test_what_no_place_can_give_is_refused_before_anything_is_watched(tmp_path):
    path = tmp_path / "lse.py"
    path.write_text(LSE)
    result = graft(str(KERNEL), str(path), Options(), CHECKS)
    (error,) = [d for d in result.diagnostics if d["severity"] == "error"]
    assert (error["code"], result.exit_code, result.text) == ("CB434", 1, None)
    assert "the LSE of rows with a sink" in error["message"]
    assert error["span"]["path"] == str(path)
    assert [s.name for s in result.stages] == ["spec"]


def test_the_task_watches_only_where_it_is_asked_to(tmp_path):
    params = {"kernel": str(KERNEL), "spec": str(SPECS / "softcap_strided.py"), "use_gpu": False}
    value = adapt_task(params, quiet)
    assert value["evidence"] == "read"
    assert value["text"] is None
    assert any("adapt --watch" in (d.get("help") or "") for d in value["diagnostics"])


@long
@pytest.mark.parametrize("name", ["documents"])
def test_tensors_go_through_the_struct(name):
    result = graft(str(KERNEL), str(SPECS / f"{name}.py"), Options(), CHECKS)
    compare(result, name)
    assert result.text is not None
    assert "  const int *document_ids;  // [B, Sq]\n};" in result.text


@long
@pytest.mark.parametrize("name", ["fa2_softcap_fixed", "fa2_documents", "fa2_softcap_window_sink"])
def test_flash_attention_2_is_adapted_by_hunks(name, flash_attention_2):
    contract = HERE / "contracts" / "flash_attention_2.toml"
    folder = flash_attention_2 / "csrc" / "flash_attn" / "src"
    shutil.copy(contract, folder / "contract.toml")
    read, _ = read_contract(contract)
    assert read is not None
    result = graft(str(folder / read.source), str(SPECS / f"{name}.py"), Options(), CHECKS)
    compare(result, name)
    kernel = next(f for f in result.files if f.name == "flash_fwd_kernel.h")
    row = next(r for r in RECORDED["adapted"] if r["spec"] == name)
    assert [n for h in kernel.hunks if (n := h.new.count(row["line"]))] == [1, 1]


def test_every_foreign_kernel_was_adapted_or_has_a_code():
    table = json.loads((HERE / "foreign.json").read_text())
    assert set(table) <= set(kernels())
    done = [row for row in table.values() if row["level"] == "simulated"]
    assert {row["family"] for row in done} >= {"scalar"}
    assert all(row["launches"] >= 2 * row["problems"] >= 20 for row in done)
    for row in (r for r in table.values() if r not in done):
        assert row["level"] in ("refused", "compiled")
        assert row["code"] in CATALOGUE
        assert row["why"]


def test_the_record_has_a_row_for_each_spec():
    assert {r["spec"] for r in RECORDED["adapted"]} == {p.stem for p in SPECS.glob("*.py")}
