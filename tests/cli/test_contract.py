"""`cubridge contract` in this process, its job in a worker as always."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from cubridge_engine.cli.main import main
from cubridge_engine.compile import read_contract

KERNELS = Path(__file__).parents[1] / "bind" / "kernels"


@pytest.fixture
def kernel(tmp_path):
    return Path(shutil.copy(KERNELS / "raw_main.cu", tmp_path / "k.cu"))


def test_it_prints_each_fact_with_its_source_and_writes_on_request(kernel, capsys):
    assert main(["contract", str(kernel), "--no-run"]) == 0
    out = capsys.readouterr().out
    assert "launch at line" in out
    assert "causal bottom right attention" in out
    assert not (kernel.parent / "contract.toml").exists()
    assert main(["contract", str(kernel), "--no-run", "--no-trial", "--write"]) == 0
    contract, problems = read_contract(kernel.parent / "contract.toml")
    assert contract is not None, problems
    assert contract.grid == ("cdiv(Sq, 64)", "H", "B")


def test_a_contract_is_never_overwritten_without_force(kernel, capsys):
    target = kernel.parent / "contract.toml"
    target.write_text("# mine\n")
    given = ["contract", str(kernel), "--no-run", "--no-trial", "--again", "--write"]
    assert main(given) == 1
    assert "CB628" in capsys.readouterr().err
    assert target.read_text() == "# mine\n"
    assert main([*given, "--force"]) == 0
    assert read_contract(target)[0] is not None


def test_the_json_has_questions_as_data(tmp_path, capsys):
    kernel = tmp_path / "k.cu"
    kernel.write_text("__global__ void k(const float* Q, const float* K, const float* V, float* O, int x) {}\n")
    assert main(["contract", str(kernel), "--no-run", "--format", "json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["command"] == "contract"
    assert found["contract"] is None
    assert "x" in [q["subject"] for q in found["questions"]]
    assert all(d["help"] for d in found["diagnostics"])
