"""The JSON contract is what its documents say."""

from __future__ import annotations

import json
from pathlib import Path

from cubridge_engine.results import RESULTS, SCHEMA_VERSION, Report, json_schema

DOCS = Path(__file__).parents[2] / "docs"


def test_the_schema_file_is_that_of_the_models() -> None:
    assert json.loads((DOCS / "json-contract.schema.json").read_text()) == json_schema()


def test_every_field_is_documented() -> None:
    text = (DOCS / "json-contract.md").read_text()
    fields = {name for model in (*RESULTS.values(), Report) for name in model.model_fields}
    assert {name for name in fields if f"`{name}`" not in text} == set()
    assert f"`schema_version` is {SCHEMA_VERSION}" in text


def test_adapt_has_the_promised_fields_at_the_top(cubridge, write_spec, tmp_path: Path) -> None:
    kernel = tmp_path / "k.cu"
    kernel.write_text("nothing")
    _, out, _ = cubridge("adapt", kernel, write_spec("x = 1\n"), "--format", "json")
    data = json.loads(out)
    assert {"schema_version", "level", "applicability", "hunks", "diagnostics", "report"} <= set(data)
    assert RESULTS["adapt"].model_validate(data).level == "none"


def test_sarif_and_github_speak_of_the_same_findings(cubridge, write_spec, kernel: Path) -> None:
    spec = write_spec("def attention(q, k, v:\n    return q\n")
    code, out, _ = cubridge("verify", kernel, spec, "--format", "sarif")
    assert code == 1
    run = json.loads(out)["runs"][0]
    ids = {result["ruleId"] for result in run["results"]}
    assert "CB202" in ids
    assert ids <= {rule["id"] for rule in run["tool"]["driver"]["rules"]}
    code, out, _ = cubridge("verify", kernel, spec, "--format", "github")
    assert code == 1
    assert out.startswith("::")
    assert "CB202" in out
