"""Kernels in five host styles are bound without a contract, by the way that fits each, to the call that a contract
written by hand makes.
"""

from __future__ import annotations

import pytest

from cubridge_engine.bind import Binding, BindOptions, bind
from cubridge_engine.compile import Contract, evaluate_condition, parse_contract, read_contract
from cubridge_engine.compile.contract_text import contract_text
from cubridge_engine.compile.toolchain import find_nvcc

from .conftest import CONTRACTS, KERNELS, SIZES, words

# style -> the way that finds it
STYLES = {
    "torch_extension": "launch",
    "raw_main": "launch",
    "extern_c": "name",
    "template_switch": "recorded",
    "struct_params": "recorded",
}


@pytest.fixture(scope="module", params=list(STYLES))
def style(request: pytest.FixtureRequest) -> tuple[str, Binding]:
    name, way = request.param, STYLES[request.param]
    if way == "recorded" and find_nvcc() is None:
        pytest.skip("recording a launcher needs nvcc")
    return name, bind(KERNELS / f"{name}.cu", None, BindOptions(record=way == "recorded", seconds=240))


def written(name: str) -> Contract:
    contract, problems = read_contract(CONTRACTS / f"{name}.toml")
    assert contract is not None, problems
    return contract


def test_a_call_is_found_by_the_way_that_fits(style):
    name, binding = style
    assert binding.ok, (binding.questions, binding.diagnostics)
    assert binding.way == STYLES[name]
    assert "attention, scale as passed" in binding.tried


def test_it_is_the_call_of_a_contract_written_by_hand(style):
    name, binding = style
    found, hand = binding.contract, written(name)
    assert found is not None
    assert [p.name for p in found.parameters] == [p.name for p in hand.parameters]
    assert set(found.requires) == set(hand.requires)
    assert found.masks == hand.masks
    assert found.gqa == hand.gqa
    assert found.lse == hand.lse
    assert found.instances == hand.instances
    dtype, dim = hand.instances[0].dtype, hand.instances[0].head_dim
    tried = 0
    for sizes in SIZES:
        full = {**sizes, "D": dim}
        assert found.launch(full, dtype) == hand.launch(full, dtype)
        if all(evaluate_condition(text, full) for text in hand.requires):
            assert words(found, sizes) == words(hand, sizes)
            tried += 1
    assert tried, "no problem met the contract's conditions"


def test_every_fact_says_where_it_is_from(style):
    _, binding = style
    contract = binding.contract
    assert contract is not None
    named = {fact.what for fact in binding.facts}
    assert {"kernel", "instance", "grid", "block", "shared", "function"} <= named
    assert {f"parameter {p.name}" for p in contract.parameters} <= named
    assert all(fact.where for fact in binding.facts)


def test_the_contract_is_read_back_from_its_text(style):
    _, binding = style
    contract = binding.contract
    assert contract is not None
    again, problems = parse_contract(contract_text(contract, ("a note",)), contract.path)
    assert not problems
    assert again == contract
