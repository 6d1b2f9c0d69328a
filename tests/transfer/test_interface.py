"""Tensors in another order than [B, H, S, D]: taken where the kernel's own strides are of that order."""

from __future__ import annotations

import pytest

from cubridge_engine.ir.text import parse_kernel
from cubridge_engine.transfer import transfer
from tests.transfer.builders import FLASH, make_attention

ROWS_BEFORE_HEADS = ("b", "i", "h", "d")
STRIDES = {"q": "H * Sq * 8 | 8 | H * 8", "o": "H * Sq * 8 | 8 | H * 8"} | dict.fromkeys(
    "kv", "Hkv * Sk * 8 | 8 | Hkv * 8"
)


def kernel_with(**strides):
    """The reference program with these strides, [batch, head, row] of each tensor."""
    lines = []
    for line in FLASH.splitlines():
        if line.strip().startswith("strides"):
            lines += [f"  strides {role} = {text}" for role, text in strides.items()]
            continue
        lines.append(line)
        if line.strip().startswith("param 6"):
            lines.append('  param 7 kv : "int" : Hkv')
    return parse_kernel("\n".join(lines))


def codes(kernel, axes=ROWS_BEFORE_HEADS):
    return [d.code for d in transfer(kernel, make_attention(axes=axes)).diagnostics]


def test_strides_that_the_kernel_works_out_are_looked_at():
    assert codes(kernel_with(**STRIDES)) == []


@pytest.mark.parametrize(
    ("role", "strides"),
    [
        ("q", "H * Sq * 8 | Sq * 8 | 8"),  # heads before rows
        ("q", "H * Sq * 8 | 8 | 3 * H * 8"),  # rows of a packed QKV
        ("q", "6 * Sq * 8 | 8 | 6 * 8"),  # for six heads
        ("k", "H * Sk * 8 | 8 | H * 8"),  # as many heads as Q
        ("v", "Hkv * Sk * 8 | 16 | Hkv * 8"),
        ("o", "H * Sk * 8 | 8 | H * 8"),
        ("o", "unknown | 8 | H * 8"),
    ],
)
def test_other_strides_are_refused(role, strides):
    assert codes(kernel_with(**{**STRIDES, role: strides})) == ["CB305"]


def test_an_order_that_the_strides_do_not_have_is_refused():
    assert set(codes(kernel_with(**STRIDES), ("i", "b", "h", "d"))) == {"CB305"}
