import importlib
import json
import os
import pkgutil
import re
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import pytest

import cubridge_engine
from cubridge_engine.diagnostics import (
    CATALOGUE,
    Diagnostic,
    Severity,
    diagnostic_from_json,
    diagnostic_to_json,
    render_text,
    to_github,
    to_json,
    to_sarif,
    wants_colour,
)

GOLDEN = Path(__file__).parent / "golden"
ROOT = "/repo"


def check_golden(name: str, text: str) -> None:
    """Compare with the golden file; CUBRIDGE_UPDATE_GOLDEN=1 writes it instead."""
    path = GOLDEN / name
    if os.environ.get("CUBRIDGE_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def test_text(findings: list[Diagnostic], sources: dict[str, bytes]) -> None:
    check_golden("findings.txt", render_text(findings, sources))


def test_text_colour_adds_nothing_but_colour(findings: list[Diagnostic], sources: dict[str, bytes]) -> None:
    coloured = render_text(findings, sources, colour=True)
    assert coloured != render_text(findings, sources)
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == render_text(findings, sources)


def test_carets_stand_below_the_span(findings: list[Diagnostic], sources: dict[str, bytes]) -> None:
    lines = render_text(findings[:1], sources).splitlines()
    shown, marks = lines[3], lines[4]
    before = shown[: shown.index("値")]
    assert marks.index("^") == len(before), "a tab is four columns, é and 𝜎 one each"
    assert marks.count("^") == 2, "a wide character is two columns"


def test_json_round_trip(findings: list[Diagnostic]) -> None:
    document = to_json(findings)
    check_golden("findings.json", json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    for found in findings:
        back = diagnostic_from_json(json.loads(json.dumps(diagnostic_to_json(found))))
        assert (back.code, back.message, back.severity, back.span) == (
            *(found.code, found.message, found.severity, found.span),
        )
        assert (back.help, back.related) == (found.help, found.related)


def test_github(findings: list[Diagnostic], sources: dict[str, bytes]) -> None:
    text = to_github(findings, sources, root=ROOT)
    check_golden("findings.github", text)
    assert text.count("\n") == len(findings), "each finding is one line"
    assert "100%25, before" in text, "% is escaped, or GitHub eats it"


def test_sarif(findings: list[Diagnostic], sources: dict[str, bytes]) -> None:
    log = to_sarif(findings, sources, root=ROOT, version="1.2.3")
    check_golden("findings.sarif", json.dumps(log, indent=2, ensure_ascii=False) + "\n")
    assert (log["version"], len(log["runs"])) == ("2.1.0", 1)
    run = log["runs"][0]
    rules = run["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == sorted({found.code for found in findings})
    for found, result in zip(findings, run["results"], strict=True):
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"] == found.code
        assert result["level"] in ("error", "warning", "note")
        assert ("locations" in result) == (found.span is not None)
        assert len(result.get("relatedLocations", [])) == len(found.related)
        for place in (*result.get("locations", []), *result.get("relatedLocations", [])):
            uri = place["physicalLocation"]["artifactLocation"]["uri"]
            region = place["physicalLocation"]["region"]
            assert not uri.startswith("/")
            assert " " not in uri
            assert unquote(uri) in {*sources, "gone.py"}
            assert (region["endLine"], region["endColumn"]) >= (region["startLine"], region["startColumn"]) >= (1, 1)
    prints = [result["partialFingerprints"]["cubridge/v1"] for result in run["results"]]
    assert len(set(prints)) == len(prints)


def test_fingerprints_survive_a_shift_of_lines(findings: list[Diagnostic], sources: dict[str, bytes]) -> None:
    def fingerprint(found: Diagnostic, data: bytes) -> str:
        run = to_sarif([found], {"kernels/a b.cu": data}, root=ROOT)["runs"][0]
        return run["results"][0]["partialFingerprints"]["cubridge/v1"]

    first = findings[0]
    data = sources["kernels/a b.cu"]
    span = first.span
    assert span is not None
    below = replace(span, start=span.start + 4, end=span.end + 4, line=span.line + 1, end_line=span.line + 1)
    moved = Diagnostic(first.code, first.message, first.severity, below)
    assert fingerprint(moved, b"// \n" + data) == fingerprint(first, data)
    assert fingerprint(first, data.replace(b"tile", b"TILE")) != fingerprint(first, data)


def test_files_outside_the_root_are_absolute() -> None:
    from cubridge_engine.diagnostics import Span

    outside = Diagnostic("CB103", "m", Severity.ERROR, Span("/else where/k.cu", 0, 1, 0, 0, 0, 1))
    location = to_sarif([outside], {}, root=ROOT)["runs"][0]["results"][0]["locations"][0]["physicalLocation"]
    assert location["artifactLocation"] == {"uri": "file:///else%20where/k.cu"}
    inside = Diagnostic("CB103", "m", Severity.ERROR, Span("/repo/src/k.cu", 0, 1, 0, 0, 0, 1))
    assert to_github([inside], {}, root=ROOT) == "::error file=src/k.cu,line=1,col=1,endColumn=1,title=CB103::m\n"


class _Stream:
    def __init__(self, tty: bool) -> None:
        self.tty = tty

    def isatty(self) -> bool:
        return self.tty


@pytest.mark.parametrize(
    ("tty", "env", "want"),
    [(True, {}, True), (False, {}, False), (True, {"NO_COLOR": "1"}, False), (True, {"TERM": "dumb"}, False)],
)
def test_wants_colour(monkeypatch: pytest.MonkeyPatch, tty: bool, env: dict[str, str], want: bool) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert wants_colour(_Stream(tty)) is want  # pyright: ignore[reportArgumentType]


def all_codes() -> dict[str, str]:
    """Code -> room, after importing every room's codes."""
    for module in pkgutil.walk_packages(cubridge_engine.__path__, "cubridge_engine."):
        if module.name.endswith(".codes"):
            importlib.import_module(module.name)
    return {code: row.message for code, row in CATALOGUE.items()}


def test_every_row_has_a_sentence_and_a_way_out() -> None:
    rows = all_codes()
    assert len(rows) > 20
    for code in rows:
        row = CATALOGUE[code]
        assert re.fullmatch(r"CB[0-9]{3}", code)
        assert row.message.strip(), code
        assert row.help.strip(), f"{code} says no way out"


def test_every_row_is_a_template() -> None:
    """Each field named in a template can be filled; stray braces would raise while reporting."""
    from string import Formatter

    from cubridge_engine.diagnostics import make

    all_codes()
    for code, row in CATALOGUE.items():
        parsed = [*Formatter().parse(row.message), *Formatter().parse(row.help)]
        fields = {name: (spec or "") for _, name, spec, _ in parsed if name is not None}
        numeric = {name: 1 if spec and spec[-1] in "fgde%" else "x" for name, spec in fields.items()}
        assert make(code, None, **{name.split(".")[0].split("[")[0]: value for name, value in numeric.items()}).message
