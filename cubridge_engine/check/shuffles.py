"""Reductions over the lanes that share a row: a shuffle that mixes rows, or that leaves lanes of a row out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..simulate.model import Imm, Instruction, Reg, registers_of
from .operands import Mispaired

Array = NDArray[Any]
_STEPS = {"max": "m", "add": "l"}
_WORDS = {"m": "maxima", "l": "sums"}
NEAR = 4  # instructions behind a shuffle within which its result is used


def wrong_shuffle(code: list[Instruction], rows: Mapping[int, Array]) -> Mispaired | None:
    """`rows` gives for warps the row that each of the 32 lanes works on, -1 where it is not one. None where every
    butterfly that reduces stays inside the rows, and together they reach all lanes of each.
    """
    whole = [r for r in rows.values() if bool((r >= 0).all())]
    if not whole:
        return None
    masks: dict[str, list[tuple[int, int]]] = {}
    numbers = _numbers(code)
    for site, ins in enumerate(code):
        step, mask = _butterfly(code, site, ins, numbers)
        if step:
            masks.setdefault(step, []).append((site, mask))
    for step, found in masks.items():
        wrong = _mixing(step, found, whole) or _incomplete(step, found, whole)
        if wrong is not None:
            return wrong
    return None


def _numbers(code: list[Instruction]) -> dict[str, int]:
    """Registers that hold one number throughout."""
    found: dict[str, int] = {}
    others: set[str] = set()
    for ins in code:
        for name in registers_of(ins.args[0]) if ins.args else ():
            constant = ins.parts[0] == "mov" and ins.guard is None and isinstance(ins.args[1], Imm)
            if constant and isinstance(ins.args[1], Imm) and name not in found:
                found[name] = ins.args[1].bits
            else:
                others.add(name)
    return {name: number for name, number in found.items() if name not in others}


def _butterfly(code: list[Instruction], site: int, ins: Instruction, numbers: Mapping[str, int]) -> tuple[str, int]:
    """The step that a butterfly shuffle reduces for, and its mask; '' for any other instruction."""
    if ins.parts[0] != "shfl" or "bfly" not in ins.parts or len(ins.args) < 3:
        return "", 0
    given = ins.args[2]
    mask = given.bits if isinstance(given, Imm) else numbers.get(given.name) if isinstance(given, Reg) else None
    if mask is None:
        return "", 0
    results = set(registers_of(ins.args[0]))
    for user in code[site + 1 : site + 1 + NEAR]:
        used = {name for a in user.args[1:] for name in registers_of(a)}
        if results & used and user.parts[0] == "mov":
            results |= set(registers_of(user.args[0]))
        elif results & used:
            return _STEPS.get(user.parts[0], ""), mask
    return "", 0


def _mixing(step: str, found: list[tuple[int, int]], whole: list[Array]) -> Mispaired | None:
    lanes = np.arange(32)
    for site, mask in found:
        for rows in whole:
            other = rows[(lanes ^ mask) % 32]
            wrong = rows != other
            if wrong.all():
                cause = (
                    f"a shuffle over {mask} lanes combines {_WORDS[step]} of different rows: lane 0 has row "
                    f"{int(rows[0])}, lane {mask} row {int(other[0])}"
                )
                return Mispaired(step, site, 0, cause, "every row", {"i": int(rows[0])})
    return None


def _incomplete(step: str, found: list[tuple[int, int]], whole: list[Array]) -> Mispaired | None:
    for rows in whole:
        share = np.flatnonzero(rows == rows[0])
        reached = {0}
        for _, mask in found:
            reached |= {lane ^ mask for lane in reached}
        missing = [int(n) for n in share if int(n) not in reached]
        if missing:
            some = f"{len(share) - len(missing)} of the {len(share)} lanes that share a row"
            cause = f"{_WORDS[step]} of {some} are combined: lane {missing[0]} is left out"
            return Mispaired(step, found[-1][0], 0, cause, "every row", {"i": int(rows[0])})
    return None
