"""Suppression, severities, baseline and settings: the frame that findings of every kind are put in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cubridge_engine.check import CheckConfig, Checked, check, check_file, config_for
from cubridge_engine.check.baseline import read_baseline, without_known, write_baseline
from cubridge_engine.check.rules import BY_CODE
from cubridge_engine.diagnostics import Severity
from cubridge_engine.lift import lift
from cubridge_engine.source import parse
from cubridge_engine.source.settings import find_settings

EXAMPLE = BY_CODE["CB865"].example
assert EXAMPLE is not None
FAULTY = EXAMPLE.text
LINE = "      if (col > sk) {"


def checked(text: str, config: CheckConfig | None = None) -> Checked:
    source = parse("kernel.cu", text.encode())
    return check(source, lift(source), None, config)


def codes(found: Checked) -> list[str]:
    return [f.code for f in found.findings]


@pytest.mark.parametrize(
    "text",
    [
        f"{LINE}  // cubridge: ignore[CB865] the caller pads K",
        f"      // cubridge: ignore[CB865] the caller pads K\n{LINE}",
        f"      // cubridge: ignore[CB865, CB864]: the caller pads K\n      // and more words\n\n{LINE}",
    ],
)
def test_a_comment_with_a_reason_ignores_a_finding(text: str):
    found = checked(FAULTY.replace(LINE, text))
    assert "CB865" not in codes(found)
    assert [f.code for f in found.suppressed] == ["CB865"]


@pytest.mark.parametrize("reason", ["", " ", " <reason>"])
def test_a_comment_without_a_reason_ignores_nothing(reason: str):
    found = checked(FAULTY.replace(LINE, f"{LINE}  // cubridge: ignore[CB865]{reason}"))
    assert codes(found) == ["CB865", "CB891"]
    assert found.suppressed == ()


def test_a_comment_that_finds_nothing_is_told():
    found = checked(FAULTY.replace(LINE, f"{LINE}  // cubridge: ignore[CB850] that is another one"))
    assert codes(found) == ["CB865", "CB890"]


def test_a_comment_about_what_only_watching_finds_is_left_alone_by_reading():
    source = parse("kernel.cu", FAULTY.replace(LINE, f"{LINE}  // cubridge: ignore[CB880] known").encode())
    assert codes(check(source, lift(source))) == ["CB865"]
    assert codes(check_file(source, (lift(source),), watched=True)) == ["CB865", "CB890"]


def test_a_code_that_is_none_is_told():
    found = checked(FAULTY.replace(LINE, f"{LINE}  // cubridge: ignore[tail-keys] padded"))
    assert "CB892" in codes(found)


def test_a_comment_inside_a_text_is_none():
    found = checked(FAULTY + 'const char* words = "// cubridge: ignore[CB850] no";\n')
    assert codes(found) == ["CB865"]


def test_severities_are_configured(tmp_path: Path):
    (tmp_path / "cubridge.toml").write_text('[check]\nseverity = { CB865 = "note", CB869 = "off" }\narch = "sm_90"\n')
    config, problems = config_for(tmp_path / "sub" / "kernel.cu")
    assert problems == ()
    assert config.arch == "sm_90"
    assert [f.severity for f in checked(FAULTY, config).findings] == [Severity.NOTE]
    off = CheckConfig({"CB865": None})
    assert checked(FAULTY, off).findings == ()


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('[check]\nseverity = { CB865 = "fatal" }', "error, warning"),
        ('[check]\nseverity = { CB999 = "off" }', "no code"),
        ("[check]\nstrict = true", "the keys are"),
        ("check = 3", "a table"),
        ("[check", "cannot be read"),
    ],
)
def test_settings_that_mean_nothing_are_told(tmp_path: Path, text: str, word: str):
    (tmp_path / "cubridge.toml").write_text(text)
    config, problems = config_for(tmp_path / "kernel.cu")
    assert config == CheckConfig()
    assert [word in p.message for p in problems] == [True]
    assert problems[0].span is not None
    assert problems[0].span.path == str(tmp_path / "cubridge.toml")


def test_settings_may_stand_in_pyproject(tmp_path: Path):
    (tmp_path / "pyproject.toml").write_text('[tool.cubridge]\ninclude = ["csrc"]\n')
    assert find_settings(tmp_path / "a" / "b.cu").table == {"include": ["csrc"]}
    (tmp_path / "cubridge.toml").write_text('include = ["own"]\n')
    assert find_settings(tmp_path / "a" / "b.cu").table == {"include": ["own"]}


def test_a_baseline_knows_findings_again_when_lines_move(tmp_path: Path):
    file = tmp_path / "known.json"
    first = checked(FAULTY)
    write_baseline(file, first.findings, {"kernel.cu": FAULTY.encode()})
    moved = "// a line above\n" + FAULTY.replace(LINE, "    " + LINE)
    known, problems = read_baseline(file)
    assert problems == ()
    new, old = without_known(checked(moved).findings, known, {"kernel.cu": moved.encode()}, tmp_path)
    assert (new, [f.code for f in old]) == ([], ["CB865"])
    changed = FAULTY.replace("(col > sk)", "(col > sk + 1)")
    new, old = without_known(checked(changed).findings, known, {"kernel.cu": changed.encode()}, tmp_path)
    assert ([f.code for f in new], old) == (["CB865"], [])


def test_a_baseline_hides_as_many_as_it_counts(tmp_path: Path):
    file = tmp_path / "known.json"
    found = checked(FAULTY).findings
    write_baseline(file, found, {"kernel.cu": FAULTY.encode()})
    known, _ = read_baseline(file)
    new, old = without_known([*found, *found], known, {"kernel.cu": FAULTY.encode()}, tmp_path)
    assert (len(new), len(old)) == (1, 1)


@pytest.mark.parametrize("text", ["", "[]", json.dumps({"version": 2, "findings": {}}), '{"version": 1}'])
def test_a_file_that_is_no_baseline_is_told(tmp_path: Path, text: str):
    (tmp_path / "b.json").write_text(text)
    _, problems = read_baseline(tmp_path / "b.json")
    assert [p.code for p in problems] == ["CB893"]


def test_a_text_that_is_no_kernel_is_checked_without_an_error():
    for text in ("", "int main() {}", "__global__ void k( {", FAULTY[: len(FAULTY) // 2]):
        source = parse("kernel.cu", text.encode())
        lifts = [lift(source, kernel=k.name) for k in source.kernels()]
        assert check_file(source, lifts).notes == ()
