"""Shared by the tests of binding: the kernels in five host styles, and what makes two contracts the same call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from cubridge_engine.compile import Contract, Parameter
from cubridge_engine.simulate import Buffer, Struct
from cubridge_engine.simulate.calling import prepare_call

HERE = Path(__file__).parent
KERNELS, CONTRACTS = HERE / "kernels", HERE / "contracts"
SIZES = (
    {"B": 2, "H": 4, "Hkv": 2, "Sq": 70, "Sk": 133},
    {"B": 3, "H": 6, "Hkv": 1, "Sq": 129, "Sk": 64},
    {"B": 1, "H": 2, "Hkv": 2, "Sq": 260, "Sk": 260},
)
Words = dict[
    tuple[int, int], object
]  # (argument, byte offset) -> the role of a buffer, or four bytes that are not zero


def words(contract: Contract, sizes: dict[str, int]) -> Words:
    """The argument bytes of a call in words; a pointer is the name of its buffer."""
    instance = contract.instances[0]
    full = {**sizes, "D": instance.head_dim, "Dv": instance.value_dim}
    shapes = {"q": ("H", "Sq"), "k": ("Hkv", "Sk"), "v": ("Hkv", "Sk")}
    tensors = {r: np.zeros((sizes["B"], sizes[h], sizes[s], full["D"])) for r, (h, s) in shapes.items()}
    call = prepare_call(contract, instance, full, tensors, {"scale": 0.3, "causal": 0})
    assert not call.diagnostics, call.diagnostics
    found: Words = {}
    for position, (parameter, argument) in enumerate(zip(contract.parameters, call.args, strict=True)):
        parts = argument.parts if isinstance(argument, Struct) else {0: argument}
        for offset, part in parts.items():
            _add(found, position, offset, part, parameter)
    return found


def _add(found: Words, position: int, offset: int, part: Any, parameter: Parameter) -> None:
    if isinstance(part, Buffer):
        found[position, offset] = (part.name, part.strides)
        return
    raw = part.tobytes() if isinstance(part, np.generic) else int(part).to_bytes(parameter.width, "little", signed=True)
    for at in range(0, len(raw), 4):
        if any(raw[at : at + 4]):
            found[position, offset + at] = raw[at : at + 4]
