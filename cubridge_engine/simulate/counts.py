"""What a launch did: instructions by class, bytes by space, bank conflicts per access, idle lanes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .flow import Flow
from .model import Instruction

Array = NDArray[Any]

_CLASS = {
    "mma": "matrix", "wmma": "matrix", "wgmma": "matrix", "ldmatrix": "shared", "stmatrix": "shared",
    "movmatrix": "warp",
    "shfl": "warp", "vote": "warp", "match": "warp", "redux": "warp", "activemask": "warp", "elect": "warp",
    "bar": "barrier", "barrier": "barrier", "mbarrier": "barrier", "fence": "barrier", "membar": "barrier",
    "bra": "control", "brx": "control", "ret": "control", "exit": "control", "call": "control", "trap": "control",
    "ex2": "special", "lg2": "special", "rcp": "special", "sqrt": "special", "rsqrt": "special", "sin": "special",
    "cos": "special", "tanh": "special", "cp": "copy", "cvt": "convert",
}  # fmt: skip


def class_of(ins: Instruction) -> str:
    """The class an instruction is counted in."""
    name = ins.parts[0]
    if name in ("ld", "st", "ldu", "atom", "red"):
        return ins.space or "generic"
    if name in _CLASS:
        return _CLASS[name]
    last = ins.parts[-1]
    return "float" if last in ("f16", "bf16", "f16x2", "bf16x2", "f32", "f64") else "integer"


@dataclass(slots=True)
class BankSite:
    """One shared access: transactions it needs without conflicts, and those it takes (CTA 0 of the launch only)."""

    ideal: int = 0
    actual: int = 0

    @property
    def ways(self) -> float:
        """1.0 is free of conflicts."""
        return self.actual / self.ideal if self.ideal else 1.0


@dataclass(slots=True)
class Counts:
    """Totals of a launch. `instructions` are thread-instructions by class (mma counted as 32 per warp)."""

    instructions: Counter[str] = field(default_factory=Counter[str])
    bytes: Counter[str] = field(default_factory=Counter[str])
    banks: dict[int, BankSite] = field(default_factory=dict[int, BankSite])
    threads: int = 0  # thread-instructions executed
    slots: int = 0  # thread-instructions the executed warps have room for

    @property
    def idle_share(self) -> float:
        """Share of lanes of executed warp-instructions that were not active."""
        return 1 - self.threads / self.slots if self.slots else 0.0

    def add_blocks(self, flow: Flow, executed: Array) -> None:
        """`executed` (blocks, 2): threads and warps that ran each block."""
        for block, (threads, warps) in zip(flow.blocks, executed.tolist(), strict=True):
            if not warps:
                continue
            code = flow.code[block.start : block.stop]
            for name, n in Counter(class_of(i) for i in code).items():
                self.instructions[name] += n * threads
            self.threads += len(code) * threads
            self.slots += len(code) * warps * 32

    def bank(self, site: int, offset: Array, nbytes: int) -> None:
        """Note one warp-wide shared access: `offset` (warps, 32) bytes. Lanes of 8 or 16 bytes go in 2 or 4 phases."""
        lanes = {8: 16, 16: 8}.get(nbytes, 32)
        words = offset.reshape(-1, lanes)[:, :, None] // 4 + np.arange(max(nbytes // 4, 1))
        words = np.sort(words.reshape(len(words), -1), axis=1)
        first = np.ones(words.shape, bool)
        first[:, 1:] = words[:, 1:] != words[:, :-1]
        cell = (np.arange(len(words))[:, None] * 32 + words % 32)[first]
        per_bank = np.bincount(cell, minlength=len(words) * 32).reshape(-1, 32).max(1)
        entry = self.banks.setdefault(site, BankSite())
        entry.ideal += len(words)
        entry.actual += int(per_bank.sum())
