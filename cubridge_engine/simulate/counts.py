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
    "prefetch": "hint", "prefetchu": "hint", "applypriority": "hint", "createpolicy": "hint", "discard": "hint",
    "nanosleep": "hint", "setmaxnreg": "hint", "griddepcontrol": "hint", "pmevent": "hint",
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


AT_ONCE = 64  # accesses whose banks are counted together


@dataclass(slots=True)
class BankSite:
    """One shared access: transactions it needs without conflicts, and those it takes (in one CTA of the launch)."""

    ideal: int = 0
    actual: int = 0

    @property
    def ways(self) -> float:
        """1.0 is free of conflicts."""
        return self.actual / self.ideal if self.ideal else 1.0


@dataclass(slots=True)
class Counts:
    """Totals of a launch. `instructions` are thread-instructions by class (mma counted as 32 per warp).

    By instruction, where `Counts` of one kernel need telling apart: `banks`, bytes moved (`moves`, by kind such as
    ``shared read``), `lanes` that accessed memory, and `executed` (blocks, 2): threads and warps that ran each block.
    """

    instructions: Counter[str] = field(default_factory=Counter[str])
    bytes: Counter[str] = field(default_factory=Counter[str])
    banks: dict[int, BankSite] = field(default_factory=dict[int, BankSite])
    moves: Counter[tuple[str, int]] = field(default_factory=Counter[tuple[str, int]])
    lanes: Counter[int] = field(default_factory=Counter[int])
    waiting: dict[tuple[int, int], list[Array]] = field(default_factory=dict[tuple[int, int], list[Array]])
    executed: Array | None = None
    threads: int = 0  # thread-instructions executed
    slots: int = 0  # thread-instructions the executed warps have room for

    @property
    def idle_share(self) -> float:
        """Share of lanes of executed warp-instructions that were not active."""
        return 1 - self.threads / self.slots if self.slots else 0.0

    def add_blocks(self, flow: Flow, executed: Array) -> None:
        """`executed` (blocks, 2): threads and warps that ran each block."""
        self.executed = executed.copy() if self.executed is None else self.executed + executed
        for block, (threads, warps) in zip(flow.blocks, executed.tolist(), strict=True):
            if not warps:
                continue
            code = flow.code[block.start : block.stop]
            for name, n in Counter(class_of(i) for i in code).items():
                self.instructions[name] += n * threads
            self.threads += len(code) * threads
            self.slots += len(code) * warps * 32

    def moved(self, kind: str, site: int, lanes: int, nbytes: int) -> None:
        """Note that `lanes` lanes moved `nbytes` each (``shared read``, ``global write``, ...)."""
        self.bulk(kind, site, lanes * nbytes)
        self.lanes[site] += lanes

    def bulk(self, kind: str, site: int, nbytes: int) -> None:
        """Note bytes that one instruction moved as a whole, such as a bulk copy or a wgmma operand."""
        self.bytes[kind] += nbytes
        self.moves[kind, site] += nbytes

    def bank(self, site: int, offset: Array, nbytes: int) -> None:
        """Note one shared access of warps: `offset` (warps, 32) bytes, -1 for a lane that takes no part.

        It is counted with others of its kind, at the latest by ``settle``.
        """
        waiting = self.waiting.setdefault((site, nbytes), [])
        waiting.append(offset)
        if len(waiting) >= AT_ONCE:
            self._count_banks(site, nbytes)

    def settle(self) -> None:
        """Count what waits."""
        for site, nbytes in list(self.waiting):
            self._count_banks(site, nbytes)

    def _count_banks(self, site: int, nbytes: int) -> None:
        """Lanes of 8 or 16 bytes go in 2 or 4 phases."""
        offset = np.concatenate(self.waiting.pop((site, nbytes)))
        lanes = {8: 16, 16: 8}.get(nbytes, 32)
        phases = offset.reshape(-1, lanes)
        phases = phases[phases.max(1) >= 0]
        if not len(phases):
            return
        phases = np.where(phases < 0, phases.max(1, keepdims=True), phases)  # a word read twice is read once
        words = phases[:, :, None] // 4 + np.arange(max(nbytes // 4, 1))
        words = np.sort(words.reshape(len(words), -1), axis=1)
        first = np.ones(words.shape, bool)
        first[:, 1:] = words[:, 1:] != words[:, :-1]
        cell = (np.arange(len(words))[:, None] * 32 + words % 32)[first]
        per_bank = np.bincount(cell, minlength=len(words) * 32).reshape(-1, 32).max(1)
        entry = self.banks.setdefault(site, BankSite())
        entry.ideal += len(words)
        entry.actual += int(per_bank.sum())


@dataclass(slots=True)
class LineCost:
    """What the instructions of one source line did in a launch.

    `slots`: warp-instructions issued (by class in `classes`); `threads`: lanes that were active in them; `passes`: how
    often a warp that starts goes over the line, on average; `moves`: bytes by kind; `bank`: shared accesses of one CTA.
    """

    slots: int = 0
    threads: int = 0
    passes: float = 0.0
    classes: Counter[str] = field(default_factory=Counter[str])
    moves: Counter[str] = field(default_factory=Counter[str])
    bank: BankSite = field(default_factory=BankSite)
    worst_ways: float = 1.0

    @property
    def active(self) -> float:
        """Share of the lanes of its warp-instructions that did something."""
        return self.threads / (32 * self.slots) if self.slots else 1.0


def line_costs(counts: Counts, flow: Flow, warps: int, home: str, calls: bool = False) -> dict[int, LineCost]:
    """Costs by 1-based line of the file `home`: the innermost place of it in each instruction's inlining chain.

    With `calls`, every place of it in the chain: a line that calls a function has what was inlined there. `warps` are
    those of the whole launch. Instructions without a place are under line 0. A lane that a guard switches off counts as
    idle in memory accesses only: of other instructions nobody noted it.
    """
    found: dict[int, LineCost] = {}
    lines = [_home_lines(ins, home)[: None if calls else 1] for ins in flow.code]
    executed = counts.executed.tolist() if counts.executed is not None else []
    for block, (threads, ran) in zip(flow.blocks, executed, strict=False):
        for site in range(block.start, block.stop) if ran else ():
            ins = flow.code[site]
            off = ins.guard is not None and site in counts.lanes
            for line in lines[site]:
                cost = found.setdefault(line, LineCost())
                cost.slots += ran
                cost.threads += min(threads, counts.lanes[site]) if off else threads
                cost.passes = max(cost.passes, ran / max(warps, 1))
                cost.classes[class_of(ins)] += ran
    for (kind, site), nbytes in counts.moves.items():
        for line in lines[site]:
            found.setdefault(line, LineCost()).moves[kind] += nbytes
    for site, entry in counts.banks.items():
        for line in lines[site]:
            cost = found.setdefault(line, LineCost())
            cost.bank.ideal += entry.ideal
            cost.bank.actual += entry.actual
            cost.worst_ways = max(cost.worst_ways, entry.ways)
    return found


def _home_lines(ins: Instruction, home: str) -> list[int]:
    """Lines of the file in the chain, innermost first, each once; [0] where it has none."""
    chain = ins.loc.chain() if ins.loc is not None else ()
    return list(dict.fromkeys(place.line for place in chain if place.path == home)) or [0]
