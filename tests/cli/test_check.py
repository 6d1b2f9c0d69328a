"""`cubridge check`: output in each form, exit codes, baseline."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

WAIT = ("    cp_async_wait<0>();", "    cp_async_wait<1>();")
GUARD = ("inv_l[r] = l[r] == 0.f ? 0.f : 1.f / l[r];", "inv_l[r] = 1.f / l[r];")


@pytest.fixture
def faulty(kernel: Path, tmp_path: Path):
    """The bundled kernel with an edit, its contract beside it."""

    def make(*edits: tuple[str, str]) -> Path:
        text = kernel.read_text()
        for old, new in edits:
            assert text.count(old) == 1
            text = text.replace(old, new)
        shutil.copy(kernel.parent / "contract.toml", tmp_path)
        (tmp_path / "kernel.cu").write_text(text)
        return tmp_path / "kernel.cu"

    return make


def test_a_clean_kernel_is_ok(cubridge, kernel):
    code, out, err = cubridge("check", kernel)
    assert code == 0
    assert "kernel.cu: nothing found" in out
    assert "error" not in err
    assert "warning" not in err


def test_a_finding_is_shown_with_its_line_and_a_fix_that_was_tried(cubridge, faulty):
    code, out, err = cubridge("check", faulty(WAIT))
    assert code == 1
    assert "error[CB850]" in err
    assert "221 |     cp_async_wait<1>();" in err
    assert "the read" in err
    assert "line 221: a fix that was tried: Leave 0 groups in flight" in out
    assert "kernel.cu: 1 error" in out


def test_a_warning_alone_is_no_failure(cubridge, faulty):
    code, out, err = cubridge("check", faulty(GUARD))
    assert code == 0
    assert "warning[CB867]" in err
    assert "kernel.cu: 1 warning" in out


def test_json_has_findings_with_kind_method_and_fix(cubridge, faulty):
    code, out, _ = cubridge("check", faulty(WAIT), "--format", "json")
    result = json.loads(out)
    assert code == result["exit_code"] == 1
    assert result["command"] == "check"
    assert result["read"] is True
    (found,) = result["findings"]
    assert (found["code"], found["kind"], found["method"], found["confidence"]) == (
        "CB850", "pipeline", "reading", "certain",
    )  # fmt: skip
    assert found["span"]["line"] == 220
    assert [e["text"] for e in found["fix"]["edits"]] == ["0"]
    assert "CB850" in {d["code"] for d in result["diagnostics"]}


def test_sarif_and_github_name_the_line(cubridge, faulty):
    path = faulty(WAIT)
    _, out, _ = cubridge("check", path, "--format", "sarif")
    run = json.loads(out)["runs"][0]
    assert [r["ruleId"] for r in run["results"]] == ["CB850"]
    assert run["tool"]["driver"]["rules"][0]["shortDescription"]["text"]
    code, out, _ = cubridge("check", path, "--format", "github")
    assert code == 1
    assert out.startswith("::error ")
    assert "line=221" in out


def test_a_baseline_hides_what_is_known(cubridge, faulty, tmp_path):
    path, known = faulty(WAIT), tmp_path / "known.json"
    code, out, _ = cubridge("check", path, "--write-baseline", known)
    assert code == 1
    assert "now the baseline" in out
    code, out, _ = cubridge("check", path, "--baseline", known)
    assert code == 0
    assert "1 of the baseline" in out
    code, _, err = cubridge("check", path, "--baseline", tmp_path / "none.json")
    assert code == 2
    assert "CB893" in err


def test_an_expectation_is_compared(cubridge, kernel):
    code, _, err = cubridge("check", kernel, "--expect", "causal,window=9,gqa")
    assert code == 1
    assert "CB882" in err
    assert cubridge("check", kernel, "--expect", "causal,gqa")[0] == 0
    code, _, err = cubridge("check", kernel, "--expect", "casual")
    assert code == 2
    assert "CB875" in err


def test_a_file_that_is_not_there(cubridge, tmp_path):
    code, _, err = cubridge("check", tmp_path / "none.cu")
    assert code == 1
    assert "CB001" in err


def test_settings_beside_the_kernel_count(cubridge, faulty):
    path = faulty(WAIT)
    (path.parent / "cubridge.toml").write_text('[check]\nseverity = { CB850 = "note" }\n')
    code, _, err = cubridge("check", path)
    assert code == 0
    assert "note[CB850]" in err
