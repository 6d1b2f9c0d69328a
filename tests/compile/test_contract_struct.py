"""Structs, values, fills, layouts and conditions of a contract: read, written, refused, and as the bytes of a call."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from cubridge_engine.compile import evaluate_condition, parse_contract
from cubridge_engine.compile.contract_text import contract_text
from cubridge_engine.device.binding import bind_arguments
from cubridge_engine.simulate import Buffer, Struct
from cubridge_engine.simulate.calling import prepare_call
from cubridge_engine.simulate.tensors import SimulatedTensor

TEXT = """
schema = 1
name = "k"
source = "k.cu"
parameters = [
  { name = "p", role = "struct", type = "struct", bytes = 64, fields = [
    { offset = 0, name = "q", role = "q", type = "half*" },
    { offset = 8, name = "k", role = "k", type = "half*" },
    { offset = 16, name = "v", role = "v", type = "half*", layout = "k" },
    { offset = 24, name = "o", role = "o", type = "half*", layout = "bshd", fill = 0 },
    { offset = 32, name = "k_row", role = "stride:k.row", type = "int64" },
    { offset = 40, name = "rows", role = "Sq", type = "int32" },
    { offset = 44, name = "tiles", role = "value", type = "int32", value = "cdiv(Sk, 32)" },
    { offset = 48, name = "keep", role = "value", type = "float32", value = 0.5 },
  ] },
  { name = "m", role = "scratch", type = "float*", elements = "B * H * Sq", fill = "-inf" },
]

[launch]
grid = ["B", "H", "1"]
block = [32, 1, 1]
dynamic_shared_bytes = 0

[tiles]
br = 1
bc = 32

[semantics]
masks = ["full"]
gqa = false
lse = "none"
empty_rows = "nan"

[limits]
archs = ["sm_80"]
alignment_bytes = 2
scale_positive = false
grid_max = [1, 1, 1]
requires = ["Sq % 32 == 0", "Sq <= Sk"]

[[instances]]
expression = "k"
dtype = "float16"
head_dim = 8
"""
SIZES = {"B": 1, "H": 2, "Hkv": 2, "Sq": 32, "Sk": 70, "D": 8}


def contract():
    found, problems = parse_contract(TEXT, "contract.toml")
    assert found is not None, problems
    return found


def test_it_is_read_and_written_back():
    found = contract()
    assert [leaf.name for leaf in found.leaves] == ["q", "k", "v", "o", "k_row", "rows", "tiles", "keep", "m"]
    again, problems = parse_contract(contract_text(found), "contract.toml")
    assert again == found, problems


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ("offset = 40", "offset = 36", "parameters[0].fields[5].offset"),
        ("bytes = 64", "bytes = 48", "parameters[0].fields[7].offset"),
        ('value = "cdiv(Sk, 32)"', 'value = "blocks"', "parameters[0].fields[6].value"),
        ('fill = "-inf"', 'fill = "much"', "parameters[1].fill"),
        ('layout = "k"', 'layout = "dhsb"', "parameters[0].fields[2].layout"),
        ('"Sq <= Sk"', '"Sq or Sk"', "limits.requires"),
        ('role = "struct", type = "struct"', 'role = "q", type = "struct"', "parameters[0].role"),
        ('role = "Sq", type = "int32"', 'role = "Sq", type = "struct"', "parameters[0].fields[5].type"),
        ('role = "Sq", type = "int32"', 'role = "Sq", type = "int32", fill = 1', "parameters[0].fields[5].fill"),
    ],
)
def test_what_is_wrong_is_named(old, new, field):
    assert old in TEXT
    found, problems = parse_contract(TEXT.replace(old, new), "contract.toml")
    assert found is None
    assert [d.code for d in problems] == ["CB621"]
    assert f"field {field} is wrong" in problems[0].message


def call():
    rng = np.random.default_rng(0)
    tensors = {name: rng.standard_normal((1, 2, SIZES[s], 8)) for name, s in (("q", "Sq"), ("k", "Sk"), ("v", "Sk"))}
    return prepare_call(contract(), contract().instances[0], SIZES, tensors)


def test_a_simulated_call_has_its_parts_at_their_offsets():
    found = call()
    assert not found.diagnostics
    block, scratch = found.args
    assert isinstance(block, Struct)
    assert {offset: part.name for offset, part in block.parts.items() if isinstance(part, Buffer)} == {
        0: "Q", 8: "K", 16: "V", 24: "O",
    }  # fmt: skip
    numbers = {o: p for o, p in block.parts.items() if isinstance(p, np.generic)}
    assert {o: (p.itemsize, float(p)) for o, p in numbers.items()} == {
        32: (8, 8),
        40: (4, 32),
        44: (4, 3),
        48: (4, 0.5),
    }
    assert isinstance(scratch, Buffer)
    assert np.isneginf(scratch.array).all()
    assert found.buffers["o"].role == "inout"
    assert found.buffers["v"].strides == found.buffers["k"].strides


def test_a_device_call_packs_the_struct():
    found = call()
    tensors = {
        name: SimulatedTensor(buffer, (1, 2, buffer.array.shape[2], 8), buffer.strides, "float16")
        for name, buffer in found.buffers.items()
        if name in ("q", "k", "v", "o")
    }
    m = SimulatedTensor(found.buffers["m"], (64,), (1,), "float32")
    arguments, problems = bind_arguments(contract(), tensors, SIZES, {"m": m})
    assert not problems
    raw = bytes(arguments[0].ctype())
    assert len(raw) == 64
    assert struct.unpack_from("<qiif", raw, 32) == (8, 32, 3, 0.5)


@pytest.mark.parametrize(
    ("text", "sizes", "holds"),
    [
        ("Sq == Sk", {"Sq": 4, "Sk": 4}, True),
        ("Sq % 32 == 0", {"Sq": 33}, False),
        ("Sq <= Sk", {"Sq": 4, "Sk": 3}, False),
    ],
)
def test_conditions(text, sizes, holds):
    assert evaluate_condition(text, sizes) is holds
