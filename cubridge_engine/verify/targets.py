"""The PTX of one kernel for several architectures: which of them has to be executed, and on which problems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..compile import Compiled, Contract
from .compile_level import DEFAULT_ARCHS
from .grid import Case

MIN_TILES = 3
_HEADER = (".target", ".version", "//")


@dataclass(frozen=True, slots=True)
class Target:
    """PTX to execute. `same_as`: other architectures with the same text, which need no run of their own."""

    compiled: Compiled
    same_as: tuple[str, ...] = ()


def archs_of(asked: Sequence[str], contract: Contract | None, text: bytes) -> tuple[str, ...]:
    """What to compile for: what was asked for; else the usual architectures that the contract names.

    It is all of them where the kernel asks for its architecture (``__CUDA_ARCH__`` and the like), or where the usual
    ones are not among them.
    """
    if asked or contract is None or not contract.archs:
        return tuple(asked) or DEFAULT_ARCHS
    usual = tuple(a for a in DEFAULT_ARCHS if a in contract.archs)
    return contract.archs if b"__CUDA_ARCH" in text or not usual else usual


def targets(compiled: Mapping[str, Compiled]) -> list[Target]:
    """Each distinct PTX once, the first architecture's first. The lines that name the target do not count."""
    found: dict[str, list[str]] = {}
    for arch, one in compiled.items():
        text = "\n".join(line for line in (one.ptx or "").splitlines() if not line.startswith(_HEADER))
        found.setdefault(text, []).append(arch)
    return [Target(compiled[first], tuple(same)) for first, *same in found.values()]


def reduced(cases: Sequence[Case], bc: int, stages: int) -> tuple[Case, ...]:
    """The problems for PTX that differs from the one the whole grid ran on.

    Two that go round every stage of the ring and over three KV tiles, a ragged one among them, and one below a tile.
    """
    tiles = max(MIN_TILES, stages + 1)
    usual = sorted((c for c in cases if not c.long and c.B * c.Sq * c.Sk), key=lambda c: c.B * c.H * c.Sq * c.Sk)
    around = [c for c in usual if -(-c.Sk // bc) >= tiles]
    ragged = [c for c in around if c.Sk % bc]
    below = [c for c in usual if c.Sk < bc]
    chosen = {c.name: c for c in (*ragged[:1], *around[:2], *below[-1:])}
    return tuple(chosen.values()) or tuple(usual)
