"""`cubridge explain` and `cubridge diff`: pages, JSON, exit codes, and what is kept between runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cubridge_engine.results import Diffed, Explained
from cubridge_engine.watch import Watched
from tests.cli.conftest import KERNEL, ROOT

SCALAR = ROOT / "expert_kernels" / "flash_fwd_scalar" / "kernel.cu"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBRIDGE_CACHE", str(tmp_path / "cache"))


def changed(tmp_path: Path, old: str, new: str, of: Path = SCALAR) -> Path:
    text = of.read_text()
    assert old in text
    path = tmp_path / "changed.cu"
    path.write_text(text.replace(old, new))
    return path


def test_explain_says_it_in_a_paragraph_with_lines_and_evidence(cubridge) -> None:
    code, out, err = cubridge("explain", SCALAR)
    assert code == 0
    assert "error" not in err
    assert "flash_fwd_scalar computes softmax attention" in out
    assert "lse = log(sum over j of exp(x))" in out
    assert "How this is known:" in out
    assert "<<<(cdiv(Sq, 32), H, B), 128, " in out  # from its contract
    assert max(map(len, out.split("\n\n")[1].splitlines())) <= 100


def test_explain_as_markdown_and_as_json_say_the_same(cubridge) -> None:
    _, page, _ = cubridge("explain", SCALAR, "--format", "md")
    code, out, _ = cubridge("explain", SCALAR, "--format", "json")
    found = Explained.model_validate(json.loads(out))
    assert code == found.exit_code == 0
    assert found.understood
    assert all(s.text in page for s in found.sentences)
    said = {s.topic: s for s in found.sentences}
    assert said["mask"].evidence == "executed"
    text = SCALAR.read_text().splitlines()
    (line,) = {first for first, _ in said["lse"].lines}
    assert "lse[row] =" in text[line]


def test_the_second_time_is_kept_and_equal_and_an_edit_is_not(cubridge, tmp_path: Path) -> None:
    path = changed(tmp_path, "s[i] *= scale;", "s[i] *= 0.125f;")
    results = [Explained.model_validate_json(cubridge("explain", path, "--format", "json")[1]) for _ in range(2)]
    assert [s.state for s in results[0].stages] == ["passed", "passed", "passed"]
    assert [s.why for s in results[1].stages] == ["kept from an earlier run"] * 3
    assert results[0].model_copy(update={"stages": ()}) == results[1].model_copy(update={"stages": ()})
    path.write_text(path.read_text().replace("0.125f", "0.25f"))
    _, out, _ = cubridge("explain", path)
    assert "0.25; 1 / sqrt(D) would be 0.125" in out


def test_watching_adds_what_was_seen_and_is_kept_apart(cubridge) -> None:
    _, read, _ = cubridge("explain", SCALAR)
    code, out, _ = cubridge("explain", SCALAR, "--watch", "--format", "json")
    found = Explained.model_validate_json(out)
    if "watch" in {s.name for s in found.stages if s.state == "failed"}:
        pytest.skip(next(s.why for s in found.stages if s.name == "watch"))
    assert code == 0
    assert found.watched
    seen = [s for s in found.sentences if s.evidence == "observed"]
    assert any("Run in the simulator" in s.text for s in seen)
    assert any(f.lines for f in found.facts if f.evidence == "observed")
    assert "Run in the simulator" not in read
    assert "Run in the simulator" not in cubridge("explain", SCALAR)[1]


def test_a_run_that_could_not_be_made_is_not_kept(cubridge, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_compiler(contract, **_):
        return Watched(contract.name, str(contract.source_path), "", None, False, None)

    with monkeypatch.context() as patched:
        patched.setattr("cubridge_engine.pipeline.watched.watch_contract", without_compiler)
        first = Explained.model_validate_json(cubridge("explain", SCALAR, "--watch", "--format", "json")[1])
    assert [s.state for s in first.stages if s.name == "watch"] == ["failed"]
    second = Explained.model_validate_json(cubridge("explain", SCALAR, "--watch", "--format", "json")[1])
    assert "watch" in {s.name for s in second.stages}  # made again
    third = Explained.model_validate_json(cubridge("explain", SCALAR, "--watch", "--format", "json")[1])
    kept = all(s.why == "kept from an earlier run" for s in third.stages)
    assert kept is (second.stages[-1].state == "passed")


def test_a_kernel_that_is_not_understood_is_exit_code_1_with_the_reason(cubridge, tmp_path: Path) -> None:
    path = changed(tmp_path, "s[i] *= scale;", "s[i] = mystery(s[i], scale);")
    code, out, _ = cubridge("explain", path)
    assert code == 1
    assert "mystery" in out
    assert "computes softmax attention" not in out
    code, _, err = cubridge("explain", tmp_path / "missing.cu")
    assert code == 1
    assert "CB001" in err
    code, _, err = cubridge("explain", SCALAR, "--kernel", "other")
    assert code == 1
    assert "CB025" in err


def test_a_missing_header_is_named(cubridge, tmp_path: Path) -> None:
    path = tmp_path / "k.cu"
    path.write_text('#include "helpers_that_are_elsewhere.cuh"\n' + SCALAR.read_text())
    _, out, _ = cubridge("explain", path)
    assert "helpers_that_are_elsewhere.cuh" in out


def test_a_header_that_changed_is_read_again(cubridge, tmp_path: Path) -> None:
    header = tmp_path / "factor.cuh"
    header.write_text("#define FACTOR 0.125f\n")
    path = changed(tmp_path, "s[i] *= scale;", "s[i] *= FACTOR;")
    path.write_text('#include "factor.cuh"\n' + path.read_text())
    assert "that is 1 / sqrt(64)" in cubridge("explain", path)[1]
    header.write_text("#define FACTOR 0.25f\n")
    assert "1 / sqrt(D) would be 0.125" in cubridge("explain", path)[1]


def test_diff_of_equal_functions_is_0_and_says_how_they_differ(cubridge) -> None:
    code, out, _ = cubridge("diff", KERNEL, ROOT / "tests" / "lift" / "kernels" / "tma_wgmma.cu")
    assert code == 0
    assert "Both compute the same function" in out
    assert "TMA, completing on an mbarrier" in out


def test_diff_of_a_file_with_itself_finds_nothing(cubridge) -> None:
    code, out, _ = cubridge("diff", SCALAR, SCALAR)
    assert code == 0
    assert "no difference was found" in out


def test_diff_names_the_part_the_element_and_both_lines(cubridge, tmp_path: Path) -> None:
    path = changed(tmp_path, "if (col >= sk) {", "if (col >= sk || col > row) {")
    code, out, _ = cubridge("diff", SCALAR, path, "--format", "json")
    assert code == 1
    found = Diffed.model_validate_json(out)
    assert found.same is False
    (mask,) = found.semantic
    assert (mask.part, mask.a) == ("mask", "every key")
    assert mask.witness is not None
    assert (mask.witness.in_a, mask.witness.in_b) == ("attended", "masked")
    assert mask.witness.j == mask.witness.i + 1
    assert "col > row" in path.read_text().splitlines()[mask.b_lines[0][0]]
    assert found.orchestration == ()
    _, page, _ = cubridge("diff", SCALAR, path)
    assert "They compute different functions" in page


def test_diff_sees_what_only_executing_shows(cubridge, tmp_path: Path) -> None:
    """The formulas of the two are the same; a row without keys is not."""
    path = changed(tmp_path, "const float inv_l = l == 0.f ? 0.f : 1.f / l;", "const float inv_l = 1.f / l;")
    code, out, _ = cubridge("diff", SCALAR, path)
    assert code == 1
    assert "a row without keys gives 0 in the first, NaN in the second" in out


def test_diff_of_what_is_not_understood_is_not_agreement(cubridge, tmp_path: Path) -> None:
    path = changed(tmp_path, "s[i] *= scale;", "s[i] = mystery(s[i], scale);")
    for pair in ((SCALAR, path), (path, path)):
        code, out, _ = cubridge("diff", *pair)
        assert code == 1
        assert "is not decided" in out
