"""A kernel that reading refuses, adapted by watching, end to end; wrong edits are rejected by execution.

With CUBRIDGE_GRAFT=all the other specs, more wrong edits and FlashAttention-2's own forward kernel (its sdist is
fetched with pip; two compilations of minutes) run too, against what recorded.toml says.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cubridge_engine.compile import read_contract
from cubridge_engine.graft import FileEdit, Refused, gate
from cubridge_engine.graft.look import look
from cubridge_engine.pipeline.files import Options, parse_kernel_file
from cubridge_engine.pipeline.graft import GraftJob, graft, result_of
from cubridge_engine.pipeline.tasks import adapt as adapt_task
from cubridge_engine.pipeline.widths import lift_at
from cubridge_engine.spec import read_spec
from cubridge_engine.verify.stages import Stages
from cubridge_engine.verify.subject import VerifyOptions

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


def test_a_place_that_misses_some_scores_is_none(job):
    found = job.understood
    with pytest.raises(Refused) as refused:
        look(found.builder, [found.sites[0].place], found.texts, found.base)
    (said,) = refused.value.diagnostics
    assert said.code == "CB432"
    assert "passed none of the places" in said.message


SINK = """
import torch


def attention(q, k, v, sinks):
    s = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    column = sinks[None, :, None, None].expand(*s.shape[:3], 1)
    return torch.softmax(torch.cat([s, column], dim=-1), dim=-1)[..., :-1] @ v


def example_inputs():
    return *(torch.randn(1, 2, 64, 32) for _ in range(3)), torch.zeros(2)
"""


def test_a_sink_is_refused_with_its_line_before_anything_is_watched(tmp_path):
    path = tmp_path / "sink.py"
    path.write_text(SINK)
    result = graft(str(KERNEL), str(path), Options(), CHECKS)
    (error,) = [d for d in result.diagnostics if d["severity"] == "error"]
    assert (error["code"], result.exit_code, result.text) == ("CB434", 1, None)
    assert "the sink" in error["message"]
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
@pytest.mark.parametrize("name", ["fa2_softcap_fixed", "fa2_documents"])
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
    assert [h.new.count(row["line"]) for h in kernel.hunks] == [1, 1]


def test_the_record_has_a_row_for_each_spec():
    assert {r["spec"] for r in RECORDED["adapted"]} == {p.stem for p in SPECS.glob("*.py")}
