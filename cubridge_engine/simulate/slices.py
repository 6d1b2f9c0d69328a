"""The addresses of one CTA without executing it: every register an address depends on, as a function of the thread.

A slice follows definitions backwards from a register: parameters, thread and CTA indices, integer arithmetic, loop
counters at a chosen iteration. What comes from memory, or from a counter whose step is not clear, has no value (None):
callers then say nothing. 32-bit sums and products are kept exact beyond 32 bits until something other than a sum or a
product reads them, so that a wrap is seen exactly where it changes an address.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .flow import reads_writes
from .kernel import Kernel
from .model import Imm, Instruction, Mem, Not, Operand, Reg, Special, Sym

Values = NDArray[Any]  # int64 per thread (or one for all), bool for predicates
Triple = tuple[int, int, int]

LAST = 1 << 40  # as an iteration: the last one of the loop
_DEPTH = 400  # definitions behind each other
_LINEAR = {"add", "sub", "mul", "mad", "shl", "neg", "mov"}  # exact beyond 32 bits
_COMPARE: dict[str, Callable[[Values, Values], Values]] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal,
}  # fmt: skip
_LOGIC: dict[str, Callable[..., Values]] = {
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.invert,
    "min": np.minimum, "max": np.maximum, "abs": np.abs,
}  # fmt: skip
_AXES = {"x": 0, "y": 1, "z": 2}


@dataclass(frozen=True, slots=True)
class StaticLaunch:
    """A launch as numbers. `arguments` by position: an int for a number, an address for a pointer, None for the rest.

    `label` says the sizes in words (``Sq = 4096, D = 64``). `dynamic_shared` in bytes.
    """

    label: str
    arguments: tuple[int | None, ...]
    grid: Triple
    block: Triple
    dynamic_shared: int = 0


def wrap32(values: Values, unsigned: bool) -> Values:
    """What a 32-bit register holds of exact values."""
    low = values & 0xFFFFFFFF
    return low if unsigned else np.where(low >= 1 << 31, low - (1 << 32), low)


def _divide(a: Values, b: Values) -> Values:
    """Towards zero; by zero gives 0."""
    safe = np.where(b == 0, 1, b)
    return np.where(b == 0, 0, np.sign(a) * np.sign(safe) * (np.abs(a) // np.abs(safe)))


@lru_cache(maxsize=8)
def _definitions(kernel: Kernel) -> dict[str, list[int]]:
    """The instructions that write each register; the same for all slices of a kernel."""
    found: dict[str, list[int]] = {}
    for index, ins in enumerate(kernel.flow.code):
        for name in reads_writes(ins)[1]:
            found.setdefault(name, []).append(index)
    return found


@lru_cache(maxsize=8)
def _dependencies(kernel: Kernel) -> tuple[list[set[str]], dict[str, set[str]]]:
    """What each instruction reads, and a memo of what each register depends on; the same for all slices of a kernel."""
    return [reads_writes(ins)[0] for ins in kernel.flow.code], {}


class Slice:
    """Values of the registers in one CTA, in iteration `rounds` of every loop (LAST: in the last one).

    `overflows` collects, while values are asked for, the 32-bit values that wrapped and were then widened for an
    address: instruction that wrapped -> the largest exact value.
    """

    def __init__(
        self, kernel: Kernel, launch: StaticLaunch, cta: Triple, rounds: int, *,
        clipped: bool = True, strict: bool = True,
    ) -> None:  # fmt: skip
        self.kernel, self.launch, self.cta, self.rounds = kernel, launch, cta, rounds
        self.clipped, self.strict = clipped, strict
        self.code = kernel.flow.code
        self.overflows: dict[int, int] = {}
        self.definitions = _definitions(kernel)
        x, y, _ = launch.block
        thread = np.arange(int(np.prod(launch.block)), dtype=np.int64)
        self.thread = (thread % x, thread // x % y, thread // (x * y))
        self.judged: Values = np.ones(len(thread), bool)  # the threads whose overflows count
        self._memo: dict[str, Values | None] = {}
        self._busy: set[str] = set()
        self._others: dict[tuple[int, bool], Slice] = {}
        self._reads, self._reach = _dependencies(kernel)

    def at(self, rounds: int, strict: bool) -> Slice:
        """The same CTA in another iteration, which is known to be there."""
        key = (rounds, strict)
        if key not in self._others:
            other = Slice(self.kernel, self.launch, self.cta, rounds, clipped=False, strict=strict)
            self._others[key] = other
        return self._others[key]

    def address(self, memory: Mem) -> Values | None:
        """The address of a memory operand; shared memory counts from its window's start."""
        base = self.value(memory.base)
        return None if base is None else base + memory.offset

    def value(self, operand: Operand) -> Values | None:
        """The operand in every thread of the CTA, or None."""
        match operand:
            case Imm(bits, 0):
                return np.int64(bits if bits < 1 << 63 else bits - (1 << 64))  # type: ignore[return-value]
            case Special(name):
                return self._special(name)
            case Sym(name, offset):
                place = self.kernel.unit.symbols.shared.get(name)
                return None if place is None else np.int64(place + offset)  # type: ignore[return-value]
            case Reg(name):
                return self._register(name)
            case Not(inner):
                found = self.value(inner)
                return None if found is None else np.logical_not(found)
            case _:
                return None

    def _special(self, name: str) -> Values | None:
        stem, _, axis = name.removeprefix("%").partition(".")
        extents: dict[str, Any] = {
            "tid": self.thread, "ctaid": self.cta, "ntid": self.launch.block, "nctaid": self.launch.grid,
        }  # fmt: skip
        if stem in extents and axis in _AXES:
            return np.asarray(extents[stem][_AXES[axis]], np.int64)
        if name == "%laneid":
            x, y, _ = self.launch.block
            return (self.thread[0] + x * (self.thread[1] + y * self.thread[2])) % 32
        return None

    def _register(self, name: str) -> Values | None:
        if name in self._memo:
            return self._memo[name]
        if name in self._busy or len(self._busy) > _DEPTH:
            return None
        self._busy.add(name)
        sites = self.definitions.get(name, [])
        found = self.result(self.code[sites[0]], sites[0]) if len(sites) == 1 else self._counter(name, sites)
        self._busy.discard(name)
        self._memo[name] = found
        return found

    def threads(self) -> list[Values]:
        """For each block the threads that may come there. A condition that has no value lets all of them pass, and so
        does the exit of a loop: in the iteration of this slice it may not be taken."""
        flow = self.kernel.flow
        everyone = np.ones(len(self.thread[0]), bool)
        reached = [np.zeros_like(everyone) for _ in flow.blocks]
        reached[0] = everyone
        loops = [(s, b.index) for b in flow.blocks for s in b.successors if 0 <= s <= b.index]
        work = [0]
        while work:
            block = flow.blocks[work.pop()]
            ending = self.code[block.stop - 1]
            test = self.value(ending.guard) if ending.parts[0] == "bra" and ending.guard else None
            targets = {flow.block_of[a.name] for a in ending.args if isinstance(a, Sym) and a.name in flow.block_of}
            for successor in block.successors:
                leaves = any(a <= block.index <= b and not a <= successor <= b for a, b in loops)
                passing = reached[block.index]
                if test is not None and not leaves and not targets >= set(block.successors):
                    passing = passing & ((test == (successor in targets)) ^ ending.negated)
                if successor >= 0 and bool(np.any(passing & ~reached[successor])):
                    reached[successor] = reached[successor] | passing
                    work.append(successor)
        return reached

    # Counters: registers with several definitions.

    def depends(self, name: str) -> set[str]:
        """The registers that `name` depends on, through any number of definitions."""
        if name not in self._reach:
            seen: set[str] = set()
            work = [name]
            while work:
                for site in self.definitions.get(work.pop(), ()):
                    fresh = self._reads[site] - seen
                    seen |= fresh
                    work += fresh
            self._reach[name] = seen
        return self._reach[name]

    def _returns(self, site: int, name: str) -> bool:
        reads = self._reads[site]
        return name in reads or any(name in self.depends(r) for r in reads)

    def _counter(self, name: str, sites: list[int]) -> Values | None:
        updates = [s for s in sites if self._returns(s, name)]
        starts = [self.result(self.code[s], s) for s in sites if s not in updates]
        known = [s for s in starts if s is not None]
        if len(known) < len(starts) or not known or len(updates) > 1:
            return None
        first = known[0]
        for other in known[1:]:
            if self.strict and not np.array_equal(np.broadcast_arrays(first, other)[0], other):
                return None
            first = np.maximum(first, other)
        if not updates or self.rounds == 0:
            return first
        last = self._last_round(updates[0]) if self.clipped else None
        if self.clipped and last is None:
            return None
        rounds = self.rounds if last is None else min(self.rounds, last)
        if rounds == 0:
            return first
        if rounds <= 3:
            return self.at(rounds - 1, self.strict).result(self.code[updates[0]], updates[0])
        second = self.at(0, self.strict).result(self.code[updates[0]], updates[0])
        return None if second is None else first + (second - first) * rounds

    def _last_round(self, site: int) -> int | None:
        """The number of the last iteration of the innermost loop around an instruction, when its condition tells."""
        best: tuple[int, Instruction] | None = None
        for block in self.kernel.flow.blocks:
            ending = self.code[block.stop - 1]
            if ending.parts[0] != "bra" or ending.guard is None or ending.negated:
                continue
            label = next((a.name for a in ending.args if isinstance(a, Sym)), "")
            target = self.kernel.flow.block_of.get(label)
            if target is None:
                continue
            start = self.kernel.flow.blocks[target].start
            if start <= site < block.stop and (best is None or block.stop - start < best[0]):
                best = (block.stop - start, ending)
        if best is None or best[1].guard is None:
            return None
        sites = self.definitions.get(best[1].guard.name, [])
        test = self.code[sites[0]] if len(sites) == 1 else None
        if test is None or test.parts[0] != "setp" or len(test.args) != 3:
            return None
        now, then = self.at(0, False), self.at(1, False)  # a limit with several definitions: any of them is possible
        a, b, limit = now.value(test.args[1]), then.value(test.args[1]), now.value(test.args[2])
        if a is None or b is None or limit is None:
            return None
        step, room = int(np.max(b - a)), int(np.max(limit - a))
        forward = test.parts[1] in ("lt", "le", "lo", "ls", "ne") and step > 0
        backward = test.parts[1] in ("gt", "ge", "hi", "hs", "ne") and step < 0
        return max(-(-room // step), 0) if forward or backward else None

    # Instructions.

    def result(self, ins: Instruction, site: int) -> Values | None:
        """What an instruction writes (its first result), or None."""
        if ins.guard is not None:
            return None
        name, kind = ins.parts[0], ins.parts[-1]
        if name == "ld":
            return self._parameter(ins)
        if name not in _KNOWN:
            return None
        given = [self.value(a) for a in ins.args[1:]]
        operands = [g for g in given if g is not None]
        if len(operands) < len(given) or not operands:
            return None
        if name == "setp":
            return self._compare(ins, operands)
        if name == "selp":
            return np.where(operands[2], operands[0], operands[1])
        if kind == "pred" or name in ("cvta", "mov"):
            return _LOGIC[name](*operands) if name in _LOGIC else operands[0]
        if kind[1:] in ("16", "32", "64") and kind[0] in "bsu":
            return self._integer(ins, site, operands)
        return None

    def _parameter(self, ins: Instruction) -> Values | None:
        memory = ins.args[1]
        if ins.space != "param" or not isinstance(memory, Mem) or not isinstance(memory.base, Sym):
            return None
        where = memory.base.offset + memory.offset
        for position, param in enumerate(self.kernel.function_data.params):
            if param.name == memory.base.name and where == 0 and position < len(self.launch.arguments):
                argument = self.launch.arguments[position]
                return None if argument is None else np.int64(argument)  # type: ignore[return-value]
        return None

    def _compare(self, ins: Instruction, operands: list[Values]) -> Values | None:
        test = _COMPARE.get(ins.parts[1])
        if test is None or len(operands) != 2 or ins.parts[-1][0] == "f":
            return None
        a, b = (self._narrow(o, ins.parts[-1]) for o in operands)
        return test(a, b)

    @staticmethod
    def _narrow(values: Values, kind: str) -> Values:
        return wrap32(values, kind[0] == "u") if kind.endswith("32") else values

    def _integer(self, ins: Instruction, site: int, operands: list[Values]) -> Values | None:
        name, kind, wide = ins.parts[0], ins.parts[-1], "wide" in ins.parts
        if name == "cvt":
            target = ins.parts[-2]
            if target.endswith("64") and kind.endswith("32"):
                return self._widen(operands[0], kind, site, ins.args[1])
            return wrap32(operands[0], target[0] == "u") if target.endswith("32") else operands[0]
        if wide:
            a, b = (self._widen(o, kind, site, x) for o, x in zip(operands[:2], ins.args[1:3], strict=True))
            return a * b + (operands[2] if name == "mad" else 0)
        if name not in _LINEAR or (kind[1:] == "32" and name in ("mul", "mad")):
            # A factor beyond 32 bits is noticed where it is widened; products are of what the registers hold.
            operands = [*(self._narrow(o, kind) for o in operands[:2]), *operands[2:]]
        return self._arithmetic(name, ins, operands)

    @staticmethod
    def _arithmetic(name: str, ins: Instruction, o: list[Values]) -> Values | None:
        width = int(ins.parts[-1][1:])
        if name in _LOGIC:
            return _LOGIC[name](*o)
        match name:
            case "add":
                return o[0] + o[1]
            case "sub":
                return o[0] - o[1]
            case "neg":
                return -o[0]
            case "mul" | "mad":
                product = o[0] * o[1] >> (32 if "hi" in ins.parts and width == 32 else 0)
                return product + o[2] if name == "mad" else product
            case "shl":
                return o[0] << np.minimum(o[1], 62)
            case "shr":
                low = wrap32(o[0], True) if width == 32 and ins.parts[-1][0] in "ub" else o[0]
                return low >> np.minimum(o[1], 63)
            case "div":
                return _divide(o[0], o[1])
            case "rem":
                return o[0] - _divide(o[0], o[1]) * o[1]
            case "bfe":
                return (wrap32(o[0], True) >> o[1]) & ((1 << o[2]) - 1)
            case "bfi":
                hole = ((1 << o[3]) - 1) << o[2]
                return (wrap32(o[1], True) & ~hole) | ((o[0] << o[2]) & hole)
            case _:
                return None

    def _widen(self, values: Values, kind: str, site: int, source: Operand) -> Values:
        """A 32-bit value made 64 bits wide. Notes the instruction that wrapped when the exact value did not fit."""
        unsigned = kind[0] == "u"
        held = wrap32(values, unsigned)
        beyond = (values > (0xFFFFFFFF if unsigned else 0x7FFFFFFF)) & self.judged
        if bool(np.any(beyond)):
            self.overflows[self._culprit(source, site)] = int(np.max(np.where(beyond, values, 0)))
        return held

    def _culprit(self, source: Operand, site: int) -> int:
        """The first instruction on the way to `source` whose operands fit into 32 bits and whose result does not."""
        while isinstance(source, Reg):
            sites = self.definitions.get(source.name, [])
            if len(sites) != 1:
                break
            site = sites[0]
            wrapped = [
                a
                for a in self.code[site].args[1:]
                if isinstance(a, Reg)
                and (v := self.value(a)) is not None
                and bool(np.any((v > 0x7FFFFFFF) & self.judged))
            ]
            if not wrapped:
                break
            source = wrapped[0]
        return site


_KNOWN = frozenset({
    *_LINEAR, *_LOGIC, "setp", "selp", "cvta", "cvt", "div", "rem", "shr", "bfe", "bfi",
})  # fmt: skip
