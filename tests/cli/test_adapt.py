"""The main job by the command line: adapt, write, verify what was written, reject what was spoiled."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from cubridge_engine.lower import parse_header


def test_adapt_write_verify_and_reject(cubridge, simulator, kernel: Path, examples: Path, tmp_path: Path) -> None:
    spec, out_path = examples / "mistral_sliding_window.py", tmp_path / "out" / "mistral.cu"
    code, out, err = cubridge("adapt", kernel, spec, "-o", out_path, "--arch", "sm_80", "--no-gpu")
    assert code == 0, err
    assert "--- a/kernel.cu" in out
    assert "level simulated" in out
    assert "applicability verified" in out
    assert re.search(r"in the simulator +bfloat16 +(\d+) of \1 ", out)
    assert str(out_path) in out

    text = out_path.read_text()
    header = parse_header(text)
    assert header.spec == "mistral_sliding_window.py"
    assert header.level == "simulated"
    assert set(header.bindings) == {"scale_log2", "causal"}
    other = re.search(r"report at D = (\d+) it was executed with scale_log2 = (\S+)", text)
    assert other is not None
    assert float(other[2]) == pytest.approx(math.log2(math.e) * int(other[1]) ** -0.5)
    assert f"at D = {other[1]}: scale_log2 = {float(other[2]):g}" in out, "a launch at another D needs another scale"
    body = [line for line in text.splitlines() if not line.startswith("// cubridge:")]
    kept = set(kernel.read_text().splitlines()) & set(body)
    assert len(kept) > 0.95 * len(set(kernel.read_text().splitlines())), "the user's text is left alone"

    code, out, err = cubridge(
        "verify", out_path, spec, "--arch", "sm_80", "--no-gpu", "--no-simulator", "--format", "json"
    )
    result = json.loads(out)
    assert code == 0, result["diagnostics"]
    assert result["level"] == "compiled"
    assert next(s for s in result["stages"] if s["name"] == "simulate")["why"] == "switched off"
    assert all(case["passed"] for case in result["report"]["cases"])

    # A window one key longer, in the element test alone.
    line, row = next((n, row) for n, row in enumerate(text.splitlines()) if "if (col >= sk" in row)
    wider = re.sub(r"\b(\d\d+)\b", lambda m: str(int(m[1]) + 1), row)
    assert wider != row
    spoiled = tmp_path / "spoiled.cu"
    spoiled.write_text(text.replace(row, wider))
    code, out, _ = cubridge("verify", spoiled, spec, "--no-gpu", "--format", "json")
    result = json.loads(out)
    assert code == 1
    assert result["level"] == "lifted"
    found = {d["code"]: d for d in result["diagnostics"]}
    assert {"CB702", "CB701"} <= set(found)
    assert found["CB702"]["span"]["line"] == line
    assert found["CB702"]["related"][0]["span"]["path"] == str(spec)


def test_the_diff_format_is_a_patch(cubridge, kernel: Path, examples: Path) -> None:
    code, out, _ = cubridge("adapt", kernel, examples / "causal_bottom_right.py", "--format", "diff", "--arch", "sm_80")
    assert code == 0
    changed = [row for row in out.splitlines() if row[:1] in "+-" and row[:3] not in ("+++", "---")]
    assert changed
    assert all(row.startswith("+// cubridge:") for row in changed), "a dormant feature needs no hunk, only a binding"


def test_a_mask_that_data_decide_comes_with_its_drop_in(cubridge, examples: Path, tmp_path: Path) -> None:
    kernel, out_path = examples.parent / "expert_kernels" / "flash_fwd_scalar" / "kernel.cu", tmp_path / "docs.cu"
    spec = examples / "document_mask.py"
    code, out, err = cubridge("adapt", kernel, spec, "-o", out_path, "--arch", "sm_80", "--format", "json")
    assert code == 0, err
    result = json.loads(out)
    made = result["derived"]
    assert len(made) == 1
    assert made[0]["name"] == "kv_tiles"
    assert made[0]["shape"] == ["B", "ceil(Sq / 32)", "2 + ceil(Sk / 32)"]
    assert made[0]["bytes"] == 4 * 2 * 6 * 8, "B = 2, Sq = Sk = 192"
    assert made[0]["built_by"] == "build_tile_list"

    drop_in = tmp_path / "docs_drop_in.py"
    assert result["drop_in_written"] == str(drop_in)
    scope: dict[str, Any] = {}
    exec(drop_in.read_text(), scope)
    assert {"attention", "build_tile_list"} <= set(scope)
    assert "  same_document = document_ids" in drop_in.read_text()

    lines = [row for row in out_path.read_text().splitlines() if row.startswith("// cubridge: build ")]
    assert len(lines) == 1
    assert "kv_tiles = build_tile_list(q, k, document_ids)" in lines[0]
    assert "docs_drop_in.py" in lines[0]
    assert parse_header(out_path.read_text()).operands == {"document_ids": ("document_ids", ("B", "Sq"))}
