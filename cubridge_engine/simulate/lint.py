"""Faults of wgmma that no execution shows, found on the code: registers touched while a wgmma is in flight.

Forward dataflow over the blocks. In flight are the accumulators (and A fragments) of every ``mma_async`` until a
``wait_group`` that covers its group. That fragments are written after ``wgmma.fence`` is not reported: the compiler
sinks such instructions below the fence, and ptxas orders them (its notes C7510 and up say so).
"""

from __future__ import annotations

from dataclasses import dataclass

from .flow import Flow, reads_writes
from .model import Imm, Instruction, Vec, registers_of

_FAR = 99  # groups, for "not in flight"


@dataclass(frozen=True, slots=True)
class _State:
    """Registers in flight with the number of groups closed since; whether a fence was seen."""

    flight: tuple[tuple[str, int], ...] = ()
    fenced: bool = False


def _join(a: _State | None, b: _State) -> _State:
    if a is None:
        return b
    left, right = dict(a.flight), dict(b.flight)
    both = {r: min(left.get(r, _FAR), right.get(r, _FAR)) for r in left.keys() | right.keys()}
    return _State(tuple(sorted(both.items())), a.fenced and b.fenced)


def _fragments(ins: Instruction) -> set[str]:
    names = set(registers_of(ins.args[0]))
    return names | set(registers_of(ins.args[1])) if isinstance(ins.args[1], Vec) else names


class _Walk:
    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.problems: dict[int, str] = {}

    def block(self, start: int, stop: int, state: _State) -> _State:
        flight, fenced = dict(state.flight), state.fenced
        for index in range(start, stop):
            ins = self.flow.code[index]
            if ins.parts[0] == "wgmma":
                if _is_mma(ins):
                    used = _fragments(ins)
                    if not fenced:
                        self.problems[index] = (
                            "there is no wgmma.fence before the first wgmma that uses these registers"
                        )
                    flight.update(dict.fromkeys(used, 0))
                elif "fence" in ins.parts:
                    fenced = True
                elif "commit_group" in ins.parts:
                    flight = {r: min(n + 1, _FAR) for r, n in flight.items()}
                elif "wait_group" in ins.parts and isinstance(ins.args[0], Imm):
                    left = ins.args[0].bits
                    # After waiting for all, the next batch needs a fence of its own.
                    flight = {r: n for r, n in flight.items() if n <= left}
                    fenced = fenced and left > 0
                continue
            reads, writes = reads_writes(ins)
            early = (reads | writes) & flight.keys()
            if early:
                self.problems[index] = f"{ins.op} touches register {min(early)} before wgmma.wait_group"
        return _State(tuple(sorted(flight.items())), fenced)


def _is_mma(ins: Instruction) -> bool:
    return ins.parts[0] == "wgmma" and "mma_async" in ins.parts


def wgmma_problems(flow: Flow) -> dict[int, str]:
    """Instruction index -> what is wrong there."""
    walk = _Walk(flow)
    entry: dict[int, _State] = {0: _State()}
    work = [0]
    while work:
        number = work.pop()
        block = flow.blocks[number]
        out = walk.block(block.start, block.stop, entry[number])
        for successor in block.successors:
            joined = _join(entry.get(successor), out)
            if joined != entry.get(successor):
                entry[successor] = joined
                work.append(successor)
    return walk.problems
