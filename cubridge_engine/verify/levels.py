"""The five levels of verification, their order, and what an editor may do with a result of each."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Level:
    """`name` is the word users see; `means` completes the sentence 'level NAME: ...'."""

    name: str
    means: str


LEVELS: tuple[Level, ...] = (
    Level("none", "the kernel was not understood"),
    Level("lifted", "the kernel was read and every step of it understood"),
    Level("ir", "the program read from the kernel's text executes and equals the spec on the whole grid"),
    Level("compiled", "NVRTC or nvcc and ptxas accept every instantiation"),
    Level(
        "simulated", "the PTX of every instantiation executes without a finding over the whole grid and equals the spec"
    ),
    Level("gpu", "it ran on a GPU over the whole grid and equals the spec"),
)

ORDER: dict[str, int] = {level.name: index for index, level in enumerate(LEVELS)}

# What may be offered for a result: 'verified' is a code action, 'unverified' one with a warning, 'sketch' only
# something to look at.
APPLICABILITY: dict[str, str] = {
    "none": "sketch",
    "lifted": "sketch",
    "ir": "sketch",
    "compiled": "unverified",
    "simulated": "verified",
    "gpu": "verified",
}


UNREACHED = "CB721"  # a number of the mask that no case of the grid reaches
INHERITED = "CB441"  # a finding that is the original's, too, while every number is right


def applicability(level: str, failed: bool, codes: Collection[str] = ()) -> str:
    """What an editor may do with a result at `level`; a failed stage makes it a sketch whatever was reached before.

    `codes` are those of its diagnostics: where the grid never reaches a number of the mask, or the simulator found
    something, if only what the original has, too, nothing is called verified.
    """
    usable = "sketch" if failed else APPLICABILITY[level]
    return "unverified" if usable == "verified" and not {UNREACHED, INHERITED}.isdisjoint(codes) else usable


def highest(passed: dict[str, bool | None]) -> str:
    """The level reached, given for each stage True (passed), False (failed) or None (did not run).

    ``gpu`` does not need ``simulated``: it runs the real thing. Every other level needs all levels below it.
    """
    reached = "none"
    for name in ("lifted", "ir", "compiled"):
        if passed.get(name) is not True:
            return reached
        reached = name
    if passed.get("simulated") is True:
        reached = "simulated"
    if passed.get("gpu") is True and passed.get("simulated") is not False:
        reached = "gpu"
    return reached
