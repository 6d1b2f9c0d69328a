"""Each precondition of the validator, with the program that breaks it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cubridge_engine.ir.text import parse_kernel
from cubridge_engine.ir.validate import shared_bytes, validate

FLASH = (Path(__file__).parent / "flash.cuir").read_text()


def test_the_golden_program_is_valid():
    assert validate(parse_kernel(FLASH), arch="sm_80") == ()


def test_shared_bytes_counts_every_stage():
    assert shared_bytes(parse_kernel(FLASH)) == (1 + 2 + 2) * 16 * 8 * 2


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("  alloc shared Ks[2, 16, 8] io; layout=swizzle\n", "", "CB150"),
        ("Ks[2, 16, 8]", "Ks[2, 32, 8]", "CB151"),
        ("exp2(s * c - ms)", "exp2(s * c - nothing)", "CB152"),
        ("keep j < Sk &", "keep j + Sk |", "CB152"),
        ("fill=-inf", "fill=j < 3", "CB153"),
        ("Ks[2, 16, 8]", "Ks[2000, 16, 8]", "CB154"),
    ],
)
def test_violations(old, new, code):
    bad = FLASH.replace(old, new, 1)
    if code == "CB152" and "keep" in old:
        bad = bad.replace("keep j + Sk |", "keep j < missing &")
    assert bad != FLASH
    assert code in {d.code for d in validate(parse_kernel(bad), arch="sm_80")}


def test_copies_that_are_never_waited_for():
    bad = FLASH.replace("  cp_wait 1\n", "").replace("    cp_wait 1\n", "").replace("cp_wait", "cp_commit #")
    assert "CB155" in {d.code for d in validate(parse_kernel(bad))}
