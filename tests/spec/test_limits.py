"""What a reading says of itself: values that the spec rounds on its way, and tables that end."""

from __future__ import annotations

from pathlib import Path

import pytest

from cubridge_engine.spec import read_spec

from .conftest import SQUARE, spec_text

ROUNDED = """
def attention(q, k, v):
    i, j = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])[None, :]
    bias = {bias}
    s = q @ k.transpose(-1, -2) * 0.125 + bias
    return torch.softmax(s, -1) @ v
"""
TABLE = """
TOKENS = torch.arange(ENDS) % 16 == 0

def attention(q, k, v):
    i, j = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])[None, :]
    s = q @ k.transpose(-1, -2) * 0.125
    s = torch.where(((i - j).abs() <= 8) | TOKENS[i] | TOKENS[j], s, float("-inf"))
    return torch.softmax(s, -1) @ v
"""


def notes(tmp_path: Path, bias: str) -> list[str]:
    path = tmp_path / "spec.py"
    path.write_text(spec_text(ROUNDED.format(bias=bias), SQUARE, ""))
    result = read_spec(str(path))
    assert result.attention is not None, result.diagnostics
    return [f"{d.code} line {d.span.line}: {d.message}" for d in result.diagnostics if d.span and d.code == "CB254"]


@pytest.mark.parametrize(
    ("bias", "to"),
    [
        ("(-0.25 * (i - j)).half().float()", "float16"),
        ("torch.full((1,), 0.25).bfloat16() * (i - j)", "bfloat16"),
        ("(-0.25 * (i - j)).double().float()", ""),
        ("torch.where(j <= i, torch.zeros((), dtype=torch.bfloat16), -2.0)", ""),
        ("(j <= i).half()", ""),
    ],
)
def test_a_rounding_is_told(tmp_path: Path, bias: str, to: str) -> None:
    """In the line where it happens; constants, bools and wider types round nothing."""
    found = notes(tmp_path, bias)
    assert bool(found) == bool(to)
    assert all(f"rounded to {to} " in text and "not reproduced" in text for text in found)


def test_a_table_limits_the_lengths(tmp_path: Path) -> None:
    """The spec raises beyond its table of bools, where a kernel would read behind the end of it."""
    path = tmp_path / "spec.py"
    rows = SQUARE[0][-2]
    path.write_text(spec_text(TABLE.replace("ENDS", str(rows)), SQUARE, ""))
    result = read_spec(str(path))
    assert result.attention is not None, result.diagnostics
    assert result.attention.allows({"Sq": rows, "Sk": rows})
    assert not result.attention.allows({"Sq": rows + 1, "Sk": rows + 1})
    assert {d.code for d in result.diagnostics} & {"CB240", "CB246"}
