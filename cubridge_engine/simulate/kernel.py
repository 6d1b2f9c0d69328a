"""A kernel made ready: memory layout, generated functions per block, and what cannot be executed."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from ..diagnostics import Diagnostic
from .emit import SHARED_START, UNSIGNED, Emitter, Symbols, Unit, Unsupported, kind_width, namespace, types_of
from .findings import Findings, Sources
from .flow import build_flow, reads_writes
from .fragments import wmma_bytes
from .global_races import GlobalOrder
from .lint import wgmma_problems
from .model import Function, Instruction, Mem, Operand, Pair, Program, Sym, Variable, Vec
from .ops import handler
from .spins import spin_loops
from .together import named_lanes, needs_warpgroup

MAX_GRANULE = 16


def _symbols_of(operand: Operand) -> set[str]:
    match operand:
        case Sym(name):
            return {name}
        case Vec(items):
            return {n for i in items for n in _symbols_of(i)}
        case Mem(base, _, coords):
            return {n for i in (base, *coords) for n in _symbols_of(i)}
        case Pair(first, second):
            return _symbols_of(first) | _symbols_of(second)
        case _:
            return set()


def _shared_width(ins: Instruction) -> int:
    """Bytes of the narrowest part a shared access of this instruction touches; 0 when it touches none."""
    name = ins.parts[0]
    if name in ("ldmatrix", "stmatrix", "wgmma"):
        return 16
    if name == "cp":
        if ins.has("bulk"):
            return 16
        sizes = [getattr(a, "bits", 0) for a in ins.args[2:3]]
        return sizes[0] if sizes else 0
    if name == "wmma" and "mma" not in ins.parts[:2]:
        return wmma_bytes(ins.parts[-1])
    if name == "mbarrier":
        return 8
    if name in ("ld", "st", "ldu", "atom", "red") and ins.space in ("shared", ""):
        types = types_of(ins)
        width = kind_width(types[-1])[1] // 8 if types and types[-1] != "b128" else 16
        count = next((len(a.items) for a in ins.args if isinstance(a, Vec)), 1)
        return width * count
    return 0


class Kernel:
    """One entry of a module. `unsupported` are the instructions without semantics: it cannot be launched then."""

    def __init__(self, program: Program, function: Function, sources: Sources) -> None:
        self.function_data = function
        self.flow = build_flow(function, program.functions)
        used = {n for ins in self.flow.code for a in ins.args for n in _symbols_of(a)}
        everything = [*program.variables, *self.flow.variables]
        self.module_variables = [v for v in program.variables if v.space in ("global", "const")]
        shared, self.shared_bytes = self._place_shared(
            [v for v in everything if v.space == "shared" and v.name in used]
        )
        local, self.local_bytes = self._place_local([v for v in self.flow.variables if v.space in ("local", "param")])
        params = {p.name: p for p in function.params}
        symbols = Symbols(params, shared, local, {v.name for v in self.module_variables})
        names = sorted({n for b in self.flow.blocks for n in b.live_in | b.live_out})
        self.spins = spin_loops(self.flow)
        marked = frozenset((*self.spins.edges, *self.spins.polls))
        self.unit = Unit(self.flow, symbols, {n: i for i, n in enumerate(names)}, marked, namespace())
        self.initial = [self._zero(n) for n in names]
        widths = [w for w in map(_shared_width, self.flow.code) if w]
        self.granule = min([MAX_GRANULE, *widths])
        self.home = next((ins.loc.chain()[-1].path for ins in self.flow.code if ins.loc), "")
        names_used = {ins.parts[0] for ins in self.flow.code}
        self.has_wgmma = "wgmma" in names_used
        bulk = any(ins.parts[0] == "cp" and ins.has("bulk") for ins in self.flow.code)
        self.has_mbarriers = bulk or bool(names_used & {"mbarrier", "wgmma"})
        self.order = GlobalOrder.of(self.flow.code)
        self.together = [named_lanes(self.flow.code, block) for block in self.flow.blocks]
        self.grouped = [self.has_wgmma and needs_warpgroup(self.flow.code, block) for block in self.flow.blocks]
        self.lint = wgmma_problems(self.flow) if self.has_wgmma else {}
        self._functions: dict[tuple[int, bool, bool], Callable[..., Any]] = {}
        self._source: dict[int, str] = {}
        self._live: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        self.unsupported = self._generate_all(sources)

    def _place_shared(self, variables: list[Variable]) -> tuple[dict[str, int], int]:
        """Static variables, then the dynamic ones, which all start at the same place."""
        places: dict[str, int] = {}
        top = 0
        self._shared_names: list[tuple[int, str]] = []
        for variable in sorted(variables, key=lambda v: v.extern_array):
            top = -(-top // variable.align) * variable.align
            places[variable.name] = SHARED_START + top
            self._shared_names.append((top, variable.name))
            if not variable.extern_array:
                top += variable.size
        return places, top

    def _place_local(self, variables: list[Variable]) -> tuple[dict[str, int], int]:
        places: dict[str, int] = {}
        top = 0
        for variable in variables:
            top = -(-top // variable.align) * variable.align
            places[variable.name] = top
            top += variable.size
        return places, -(-top // 16) * 16

    def _zero(self, name: str) -> Any:
        kind, width = kind_width(self.flow.registers[name]) if name in self.flow.registers else ("u", 32)
        return np.bool_(False) if kind == "p" else UNSIGNED[width](0)

    def name_shared(self, offset: int) -> str:
        """The shared variable at a byte offset, and the byte in it."""
        found = [(start, name) for start, name in self._shared_names if start <= offset]
        if not found:
            return f"shared memory at byte {offset}"
        start, mangled = found[-1]
        local = re.search(r"E(\d+)(\w+)$", mangled)  # _ZZ<function>E<length><name>: a variable of a function
        name = local[2][: int(local[1])] if local and mangled.startswith("_ZZ") else mangled
        return f"{name} at byte {offset - start}"

    def _generate_all(self, sources: Sources) -> tuple[Diagnostic, ...]:
        findings = Findings(self.flow.code, sources, self.home)
        for block in self.flow.blocks:
            try:
                self._source[block.index] = Emitter(self.unit, block, False).generate(handler)
            except Unsupported as error:
                reason, ins = (*error.args, None)[:2]
                assert isinstance(ins, Instruction)
                site = next(i for i in range(block.start, block.stop) if self.flow.code[i] is ins)
                findings.add("CB510", site, opcode=ins.op, ptx_line=ins.line, reason=str(reason))
        return findings.diagnostics()

    def function(self, block: int, masked: bool, observed: bool = False) -> Callable[..., Any]:
        """The generated function of a block; `observed`: one that tells the observer."""
        found = self._functions.get((block, masked, observed))
        if found is None:
            plain = not masked and not observed
            emitter = None if plain else Emitter(self.unit, self.flow.blocks[block], masked, observed)
            source = self._source[block] if emitter is None else emitter.generate(handler)
            space = self.unit.namespace
            exec(compile(source, f"<{self.flow.name}:{block}{'m' if masked else ''}>", "exec"), space)
            found = self._functions[block, masked, observed] = space.pop("block")
        return found

    def live_slots(self, block: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Slots of the registers that a block finds, and of those that it leaves to others."""
        found = self._live.get(block)
        if found is None:
            spec, slots = self.flow.blocks[block], self.unit.slots
            kept = spec.live_out & spec.written
            found = self._live[block] = (tuple(slots[n] for n in spec.live_in), tuple(slots[n] for n in kept))
        return found

    def source(self, block: int) -> str:
        """The generated Python of a block, for reading."""
        return self._source[block]


__all__ = ["Kernel", "reads_writes"]
