"""Members of struct parameters by the names that a contract has."""

from __future__ import annotations

from cubridge_engine.verify.contracts import by_member


def test_a_member_goes_by_its_own_name_too():
    assert by_member({"p.scale": 0.5, "flag": 1}) == {"p.scale": 0.5, "scale": 0.5, "flag": 1}


def test_a_name_that_two_structs_have_is_nobodys():
    assert "n" not in by_member({"a.n": 1, "b.n": 2})


def test_a_parameter_of_that_name_comes_first():
    assert by_member({"a.n": 1, "n": 2})["n"] == 2
