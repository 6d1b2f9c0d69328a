"""Levels are claimed only with all levels below, and applicability follows."""

from __future__ import annotations

import pytest

from cubridge_engine.verify.levels import applicability, highest


@pytest.mark.parametrize(
    ("passed", "level"),
    [
        ({}, "none"),
        ({"lifted": True}, "lifted"),
        ({"lifted": True, "ir": False, "compiled": True}, "lifted"),
        ({"lifted": True, "ir": True, "compiled": None}, "ir"),
        ({"lifted": True, "ir": True, "compiled": True, "simulated": None}, "compiled"),
        ({"lifted": True, "ir": True, "compiled": True, "simulated": None, "gpu": True}, "gpu"),
        ({"lifted": True, "ir": True, "compiled": True, "simulated": False, "gpu": True}, "compiled"),
        ({"lifted": True, "ir": True, "compiled": True, "simulated": True, "gpu": None}, "simulated"),
        ({"lifted": True, "ir": None, "compiled": True, "gpu": True}, "lifted"),
    ],
)
def test_highest(passed: dict, level: str) -> None:
    assert highest(passed) == level


def test_applicability() -> None:
    assert applicability("gpu", False) == "verified"
    assert applicability("simulated", False) == "verified"
    assert applicability("compiled", False) == "unverified"
    assert applicability("ir", False) == "sketch"
    assert applicability("gpu", True) == "sketch"


@pytest.mark.parametrize("code", ["CB721", "CB441"])
def test_what_the_grid_leaves_open_is_not_called_verified(code: str) -> None:
    assert applicability("simulated", False, {code}) == "unverified"
    assert applicability("gpu", False, {code}) == "unverified"
    assert applicability("compiled", False, {code}) == "unverified"
    assert applicability("ir", False, {code}) == "sketch"
