"""Bad input: each kind gives a code, a line where there is one, a sentence and a way out, and never a traceback."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from cubridge_engine.verify import compile_level

GOOD = """
import torch
import torch.nn.functional as F


def attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v)


def example_inputs():
    return tuple(torch.randn(1, 2, 64, 64, dtype=torch.float16) for _ in range(3))
"""


def only_errors(out: str) -> list[dict]:
    data = json.loads(out)
    errors = [d for d in data["diagnostics"] if d["severity"] == "error"]
    assert all(d["code"].startswith("CB") and d["message"] and d["help"] for d in data["diagnostics"])
    return errors


def test_a_file_that_is_no_kernel(cubridge, write_spec, tmp_path: Path) -> None:
    path = tmp_path / "notes.cu"
    path.write_text("int add(int a, int b) { return a + b; }\n")
    code, out, _ = cubridge("adapt", path, write_spec(GOOD), "--format", "json")
    assert code == 1
    assert "CB023" in {d["code"] for d in only_errors(out)}
    assert json.loads(out)["text"] is None


def test_a_missing_file(cubridge, write_spec, tmp_path: Path) -> None:
    code, out, _ = cubridge("adapt", tmp_path / "nowhere.cu", write_spec(GOOD), "--format", "json")
    assert code == 1
    assert [d["code"] for d in only_errors(out)] == ["CB001"]


def test_a_kernel_with_a_syntax_error(cubridge, write_spec, kernel: Path, tmp_path: Path) -> None:
    text = kernel.read_text()
    broken = tmp_path / "kernel.cu"
    broken.write_text(text.replace("const int lane = threadIdx.x % 32;", "const int lane = threadIdx.x % % 32;", 1))
    code, out, _ = cubridge("adapt", broken, write_spec(GOOD), "--format", "json")
    data = json.loads(out)
    line = text[: text.index("const int lane = threadIdx.x % 32;")].count("\n")
    assert code == 1
    located = [d for d in data["diagnostics"] if d["span"] and abs(d["span"]["line"] - line) <= 1]
    assert located, [d["message"] for d in data["diagnostics"]]
    assert data["applicability"] == "sketch"


@pytest.mark.parametrize(
    ("text", "code", "line"),
    [
        ("import nothing_of_that_name\n\n\ndef attention(q, k, v):\n    return q\n", "CB203", 0),
        ("def attention(q, k, v:\n    return q\n", "CB202", None),
        ("def other(q, k, v):\n    return q\n", "CB204", None),
        (
            GOOD.replace(
                "return tuple(torch.randn(1, 2, 64, 64, dtype=torch.float16) for _ in range(3))",
                "return torch.randn(1, 2, 64, 64), torch.randn(1, 2, 64, 32), torch.randn(1, 2, 64, 32)",
            ),
            None,
            None,
        ),
        (GOOD.replace("    return F.", "    while True:\n        pass\n    return F."), "CB211", 6),
    ],
    ids=["does not import", "syntax error", "no attention", "inputs disagree", "loops for ever"],
)
def test_bad_specs(cubridge, write_spec, kernel: Path, text: str, code: str | None, line: int | None) -> None:
    path = write_spec(text)
    rc, out, _ = cubridge("adapt", kernel, path, "--format", "json", "--time-limit", "4")
    errors = only_errors(out)
    assert rc == 1
    assert errors
    assert errors[0]["code"].startswith("CB2") if code is None else errors[0]["code"] == code
    if line is not None:
        assert errors[0]["span"]["path"] == str(path)
        assert abs(errors[0]["span"]["line"] - line) <= 1


def test_a_head_dimension_the_kernel_cannot_hold_is_refused_with_the_bytes(cubridge, write_spec, kernel: Path) -> None:
    path = write_spec(GOOD.replace("64, 64, dtype", "64, 512, dtype"))
    rc, out, _ = cubridge("adapt", kernel, path, "--format", "json")
    found = [d for d in only_errors(out) if d["code"] == "CB021"]
    assert rc == 1
    assert found
    assert str(5 * 64 * 512 * 2) in found[0]["message"]
    assert str(163 * 1024) in found[0]["message"]


def test_no_compiler_is_an_environment_problem_and_the_level_stays_ir(
    cubridge, write_spec, kernel: Path, monkeypatch
) -> None:
    from cubridge_engine.compile import Compiled
    from cubridge_engine.diagnostics import make

    def none_here(*args, **kwargs) -> Compiled:
        return Compiled("sm_80", "", "", None, None, {}, (), (), (make("CB600", install="pip install it"),))

    monkeypatch.setattr(compile_level, "compile_contract", none_here)
    rc, out, _ = cubridge("verify", kernel, write_spec(GOOD), "--format", "json")
    data = json.loads(out)
    assert rc == 3
    assert data["level"] == "ir"
    assert "CB600" in {d["code"] for d in only_errors(out)}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_no_write_permission(cubridge, write_spec, kernel: Path, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir()
    closed.chmod(0o500)
    rc, _, err = cubridge("adapt", kernel, write_spec(GOOD), "-o", closed / "out.cu")
    assert rc == 1
    assert "CB004" in err


def test_an_output_below_a_file_cannot_be_written(cubridge, write_spec, kernel: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    rc, _, err = cubridge("adapt", kernel, write_spec(GOOD), "-o", tmp_path / "file" / "out.cu")
    assert rc == 1
    assert "CB004" in err


def test_a_file_that_changes_while_the_job_runs_is_refused(
    cubridge, write_spec, kernel: Path, tmp_path: Path, monkeypatch
) -> None:
    from cubridge_engine.pipeline import adapt

    path = tmp_path / "kernel.cu"
    path.write_bytes(kernel.read_bytes())
    real = adapt.verify

    def meanwhile(*args, **kwargs):
        path.write_bytes(kernel.read_bytes() + b"\n")
        return real(*args, **kwargs)

    monkeypatch.setattr(adapt, "verify", meanwhile)
    out_path = tmp_path / "out.cu"
    rc, out, _ = cubridge("adapt", path, write_spec(GOOD), "--format", "json", "-o", out_path)
    assert rc == 1
    assert "CB020" in {d["code"] for d in only_errors(out)}
    assert json.loads(out)["applicability"] == "sketch"
    assert not out_path.exists()


def test_bad_arguments_are_named(cubridge, write_spec, kernel: Path, tmp_path: Path) -> None:
    spec = write_spec(GOOD)
    existing = tmp_path / "there.cu"
    existing.write_text("")
    for extra, code in (
        (("--set", "causal"), "CB005"),
        (("--arch", "pascal"), "CB008"),
        (("-o", existing), "CB002"),
        (("-o", kernel), "CB003"),
    ):
        rc, _, err = cubridge("adapt", kernel, spec, *extra)
        assert rc == 2
        assert code in err


def test_a_kernel_name_that_is_not_there(cubridge, write_spec, kernel: Path) -> None:
    rc, out, _ = cubridge("verify", kernel, write_spec(GOOD), "--kernel", "nothing", "--format", "json")
    assert rc == 1
    found = [d for d in only_errors(out) if d["code"] == "CB025"]
    assert found
    assert "flash_fwd_sm80" in found[0]["message"]
