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
from cubridge_engine.compile.model import KernelFigures
from cubridge_engine.compile.parameters import is_role
from cubridge_engine.compile.tensor_maps import BoxShape, map_shape

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


WIDTHS = """
[widths]
expression = "toy<{T}, {D}, {Dv}>"
d_multiple = 16
dv_multiple = 8
largest = 128
"""
WIDER = '\n[[instances]]\nexpression = "toy<96, 64>"\ndtype = "float16"\nhead_dim = 96\nvalue_dim = 64\n'


def test_widths_of_instances_and_by_the_rule() -> None:
    listed, _ = parse_contract(GOOD + WIDER, "contract.toml")
    ruled, diagnostics = parse_contract(GOOD + WIDER + WIDTHS, "contract.toml")
    assert diagnostics == ()
    assert listed is not None
    assert ruled is not None
    assert listed.widths == ((64, 64), (96, 64))
    assert listed.candidates((40, 24)) == ((64, 64), (96, 64))
    assert listed.candidates((80, 24)) == ((96, 64),)
    assert listed.candidates((80, 80)) == ()
    assert ruled.candidates((40, 20)) == ((48, 24), (64, 64), (96, 64))
    assert ruled.candidates((129, 8)) == ()
    assert ruled.for_widths((48, 24)).expressions == ("toy<__half, 48, 24>",)
    assert ruled.for_widths((64, 64)).expressions == ("toy<64>",)
    assert ruled.for_widths((96, 64)).expressions == ("toy<96, 64>",)
    assert listed.for_widths((48, 24)).instances == ()
    assert ruled.instance("float16", 96, 64) is ruled.instances[1]
    assert ruled.instance("float16", 96) is None


def test_shared_bytes_may_depend_on_both_widths() -> None:
    text = (GOOD + WIDER).replace('"3 * 64 * D * element_bytes"', '"64 * (D + Dv) * element_bytes"')
    contract, _ = parse_contract(text, "contract.toml")
    assert contract is not None
    assert [contract.dynamic_shared(i) for i in contract.instances] == [64 * 128 * 2, 64 * 160 * 2]
    sizes = {"B": 1, "H": 1, "Hkv": 1, "Sq": 1, "Sk": 1, "D": 64}
    assert contract.launch(sizes, "float16").dynamic_shared_bytes == 64 * 128 * 2
    assert contract.launch({**sizes, "Dv": 32}, "float16").dynamic_shared_bytes == 64 * 96 * 2


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ("{Dv}", "{width}", "widths.expression"),
        ("d_multiple = 16", "d_multiple = 0", "widths"),
        ("largest = 128", "", "l"),
    ],
)
def test_a_wrong_rule_of_widths_is_named(old: str, new: str, field: str) -> None:
    contract, diagnostics = parse_contract(GOOD + WIDTHS.replace(old, new, 1), "contract.toml")
    assert contract is None
    assert [d.code for d in diagnostics] == ["CB621"]
    assert field in diagnostics[0].message


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


MAP = 'role = "k", type = "tensor_map", box = ["64", "min(128, 320 - D)"], swizzle = 128'


def test_tensor_maps_and_workspaces() -> None:
    assert 'role = "k", type = "T*"' in GOOD
    text = GOOD.replace('role = "k", type = "T*"', MAP)
    contract, diagnostics = parse_contract(text, "contract.toml")
    assert diagnostics == ()
    assert contract is not None
    found = next(p for p in contract.parameters if p.role == "k")
    assert found.box == BoxShape("64", "min(128, 320 - D)", 128)
    assert not found.is_pointer
    scratch = 'role = "workspace", type = "int32*", elements = 2'
    contract, _ = parse_contract(GOOD.replace('role = "Sq", type = "int32"', scratch), "contract.toml")
    assert contract is not None
    assert [(p.name, n) for p, n in contract.scratch({}).items()] == [("n", 2)]
    sized = scratch.replace("workspace", "scratch").replace("= 2", '= "B * cdiv(Sk, 64) * (Dv + 2)"')
    contract, _ = parse_contract(GOOD.replace('role = "Sq", type = "int32"', sized), "contract.toml")
    assert contract is not None
    assert list(contract.scratch({"B": 3, "Sk": 65, "D": 64}).values()) == [3 * 2 * 66]
    with pytest.raises(KeyError):
        contract.scratch({"Sk": 65})


def test_an_instance_for_few_rows_comes_before_that_for_any() -> None:
    few = GOOD[GOOD.index("[[instances]]") :].replace("toy<64>", "toy<64, 16>") + "rows = 16\n"
    contract, diagnostics = parse_contract(GOOD.replace("[[instances]]", f"{few}[[instances]]", 1), "contract.toml")
    assert diagnostics == ()
    assert contract is not None
    chosen = [contract.instance("float16", 64, rows=rows) for rows in (1, 16, 17)]
    assert [i.expression for i in chosen if i is not None] == ["toy<64, 16>", "toy<64, 16>", "toy<64>"]


def test_optional_parameters() -> None:
    given = 'role = "operand:lengths", type = "int32*", optional = true'
    contract, diagnostics = parse_contract(GOOD.replace('role = "Sq", type = "int32"', given), "contract.toml")
    assert diagnostics == ()
    assert contract is not None
    assert [p.name for p in contract.parameters if p.optional] == ["n"]
    contract, diagnostics = parse_contract(GOOD.replace('role = "q"', 'role = "q", optional = true'), "contract.toml")
    assert contract is None
    assert "field parameters[0].optional is wrong" in diagnostics[0].message


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ('role = "k"', 'role = "o"', "parameters[1].role"),
        ("swizzle = 128", "swizzle = 48", "parameters[1].swizzle"),
        (", swizzle = 128", "", "parameters[1].swizzle"),
        ('box = ["64", "min(128, 320 - D)"], ', "", "parameters[1].box"),
        ('"min(128, 320 - D)"', '"rows"', "parameters[1].box"),
    ],
)
def test_a_wrong_tensor_map_is_named(old: str, new: str, field: str) -> None:
    assert old in MAP
    text = GOOD.replace('role = "k", type = "T*"', MAP.replace(old, new, 1))
    contract, diagnostics = parse_contract(text, "contract.toml")
    assert contract is None
    assert f"field {field} is wrong" in diagnostics[0].message


def test_the_map_of_a_tensor_with_its_own_strides() -> None:
    """[B, heads, length, columns] = [2, 3, 5, 64] of 2 bytes, stored as [B, length, heads, columns]."""
    shape = map_shape((2, 3, 5, 64), (960, 64, 192, 1), 2, (64, 128), 128, "float16")
    assert shape.extents == (64, 5, 3, 2)
    assert shape.strides == (384, 128, 1920)
    assert (shape.box, shape.swizzle) == ((64, 128, 1, 1), 128)
    none = map_shape((1, 1, 0, 64), (7, 7, 7, 1), 2, (64, 128), 128, "float16")
    assert none.extents == (64, 1, 1, 1), "the driver takes no extent of zero"
    assert none.strides == (128, 128, 128), "what is not moved along gets the stride of a dense tensor"


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
