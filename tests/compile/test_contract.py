"""contract.toml: what is read, what is refused and with which field."""

from __future__ import annotations

from pathlib import Path

import pytest

from cubridge_engine.compile import (
    Parameter,
    check_shared,
    contract_beside,
    evaluate_size,
    parse_contract,
    shared_limit,
)
from cubridge_engine.compile.contract import is_role
from cubridge_engine.compile.model import KernelFigures

GOOD = """
schema = 1
name = "toy"
source = "toy.cu"
parameters = [
  { name = "q", role = "q", type = "T*" }, { name = "k", role = "k", type = "T*" },
  { name = "v", role = "v", type = "T*" }, { name = "o", role = "o", type = "T*" },
  { name = "n", role = "Sq", type = "int32" },
]
[launch]
grid = ["cdiv(Sq, 64)", "H", "B"]
block = [128, 1, 1]
dynamic_shared_bytes = "3 * 64 * D * element_bytes"
[tiles]
br = 64
bc = 64
[semantics]
masks = ["full"]
gqa = false
lse = "none"
empty_rows = "undefined"
[limits]
archs = ["sm_80"]
alignment_bytes = 16
scale_positive = true
grid_max = [2147483647, 65535, 65535]
[[instances]]
expression = "toy<64>"
dtype = "float16"
head_dim = 64
"""


def test_a_good_contract() -> None:
    contract, diagnostics = parse_contract(GOOD, "dir/contract.toml")
    assert diagnostics == ()
    assert contract is not None
    assert contract.source_path == Path("dir/toy.cu")
    assert contract.stages == 1
    shape = contract.launch({"B": 2, "H": 3, "Hkv": 1, "Sq": 65, "Sk": 9, "D": 64}, "float16")
    assert (shape.grid, shape.block, shape.dynamic_shared_bytes) == ((2, 3, 2), (128, 1, 1), 3 * 64 * 64 * 2)
    assert contract.dynamic_shared(contract.instances[0]) == 3 * 64 * 64 * 2
    assert contract.instance("float16", 64) is contract.instances[0]
    assert contract.instance("float16", 128) is None
    assert "float16 D=64" in contract.missing_instance("float16", 128).message


def test_an_adapted_kernel_has_more_parameters() -> None:
    contract, _ = parse_contract(GOOD, "contract.toml")
    assert contract is not None
    slopes = Parameter("slopes", "operand:slopes", "float*")
    assert contract.with_parameters((slopes,)).parameters == (*contract.parameters, slopes)


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ("schema = 1", "schema = 9", "schema"),
        ('name = "toy"', "name = 3", "name"),
        ('role = "Sq"', 'role = "Squeeze"', "parameters[4].role"),
        ('role = "Sq", type = "int32"', 'role = "Sq", type = "T*"', "parameters[4].type"),
        ('type = "int32"', 'type = "long"', "parameters[4].type"),
        ('role = "o"', 'role = "k"', "parameters"),
        ('"cdiv(Sq, 64)"', '"Sq / 64"', "launch.grid"),
        ('"cdiv(Sq, 64)"', '"__import__(1)"', "launch.grid"),
        ('grid = ["cdiv(Sq, 64)", "H", "B"]', 'grid = ["1"]', "launch.grid"),
        ("block = [128, 1, 1]", "block = [128, true, 1]", "launch.block"),
        ('"3 * 64 * D * element_bytes"', '"3 * 64 * d"', "launch.dynamic_shared_bytes"),
        ("br = 64", "", "tiles.br"),
        ("gqa = false", "gqa = 0", "semantics.gqa"),
        ('masks = ["full"]', 'masks = ["diagonal"]', "semantics.masks"),
        ('lse = "none"', 'lse = "log10"', "semantics.lse"),
        ('dtype = "float16"', 'dtype = "half"', "instances[0].dtype"),
    ],
)
def test_a_wrong_field_is_named(old: str, new: str, field: str) -> None:
    assert old in GOOD
    contract, diagnostics = parse_contract(GOOD.replace(old, new, 1), "contract.toml")
    assert contract is None
    assert [d.code for d in diagnostics] == ["CB621"]
    assert f"field {field} is wrong" in diagnostics[0].message


def test_text_that_is_no_toml() -> None:
    contract, diagnostics = parse_contract("schema = = 1", "contract.toml")
    assert contract is None
    assert [d.code for d in diagnostics] == ["CB620"]


def test_size_expressions() -> None:
    assert evaluate_size("max(cdiv(Sq, 64) * 2 - 1, D % 7 // 2)", {"Sq": 130, "D": 64}) == 5
    with pytest.raises(KeyError):
        evaluate_size("Sq", {})
    for text in ("Sq ** 2", "Sq.real", "lambda: 1", "1.5", "cdiv(1)", "True"):
        with pytest.raises(ValueError, match="size expression"):
            evaluate_size(text, {"Sq": 1})


def test_roles() -> None:
    assert all(
        is_role(r) for r in ("q", "Sk", "scale_log2", "flag:causal", "operand:bias", "scalar:cap", "stride:bias.b")
    )
    assert not any(is_role(r) for r in ("x", "operand:", "operand:a b", "stride:q", "stride:q.z", "flag:x", ""))


def test_the_contract_beside_a_kernel(tmp_path: Path) -> None:
    (tmp_path / "contract.toml").write_text(GOOD)
    assert contract_beside(tmp_path / "toy.cu") == tmp_path / "contract.toml"
    assert contract_beside(tmp_path / "other.cu") is None
    assert contract_beside(tmp_path / "sub" / "toy.cu") is None


def test_shared_memory_against_the_table() -> None:
    figures = KernelFigures("k", "k", 32, 0, 0, 1024, 0)
    limit = shared_limit("sm_86")
    assert limit == 99 * 1024
    assert check_shared(figures, limit - 1024, "sm_86") is None
    finding = check_shared(figures, limit - 1023, "sm_86")
    assert finding is not None
    assert finding.code == "CB610"
    assert str(limit + 1) in finding.message
    assert check_shared(figures, limit - 1023, "sm_80") is None
    assert shared_limit("sm_90a") == 227 * 1024
    assert shared_limit("sm_999") is None
