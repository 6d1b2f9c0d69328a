"""A kernel in the simulator: its launches on cases, and its instructions in the user's text."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from numpy.typing import NDArray

from ..compile import Contract, Instance
from ..diagnostics import Related, Span
from ..simulate import CHECKERS, Module, Run, Schedule, load
from ..simulate.calling import Call, prepare_call
from ..simulate.findings import Sources
from ..simulate.flow import Flow
from ..simulate.model import Instruction, Location, registers_of
from ..simulate.observe import Observer
from ..verify.grid import LAYOUTS
from .watch_cases import WatchCase

Array = NDArray[Any]
RACES = CHECKERS - {"banks"}
BACK = 64  # instructions within which one with a line is looked for
STUCK = 30_000  # steps of the scheduler after which a launch of these sizes hangs


@dataclass(slots=True)
class Launched:
    """One entry of a module, and how it is called."""

    path: str
    data: bytes
    contract: Contract
    instance: Instance
    ptx: str
    entry: str
    module: Module = field(init=False)
    _sources: Sources = field(init=False)

    def __post_init__(self) -> None:
        # Only positions are read from the text: one character per byte keeps them right in any encoding.
        known = bytes(b if b < 128 else 63 for b in self.data).decode("ascii")
        texts = dict.fromkeys((self.path, os.path.abspath(self.path), os.path.realpath(self.path)), known)
        self.module, self._sources = load(self.ptx, texts), Sources(texts)

    @property
    def flow(self) -> Flow:
        """The kernel's code, with every call inlined."""
        return self.module.kernel(self.entry).flow

    @property
    def code(self) -> list[Instruction]:
        """The kernel's instructions."""
        return self.flow.code

    @property
    def scale(self) -> float:
        """The scale that is passed, in natural units."""
        return self.instance.head_dim**-0.5

    @property
    def unreadable(self) -> tuple[str, ...]:
        """Why the PTX cannot be executed; nothing where it can."""
        problems = self.module.diagnostics or self.module.kernel(self.entry).unsupported
        return tuple(d.message for d in problems)

    @property
    def asynchronous(self) -> bool:
        """True when any instruction completes later than it is executed."""
        return any("async" in part for ins in self.code for part in ins.parts)

    def call(self, case: WatchCase, tensors: dict[str, Array]) -> Call:
        """The arguments for a case."""
        values = {"causal": case.flag, "scale": self.scale}
        layouts = LAYOUTS[case.case.layout]
        return prepare_call(self.contract, self.instance, case.sizes, tensors, values, layouts=layouts)

    def run(
        self,
        call: Call,
        schedule: Schedule,
        progress: Callable[[float], None] | None = None,
        observer: Observer | None = None,
        *,
        checked: bool = True,
        steps: int = STUCK,
    ) -> Run:
        """Launch it. An observer wants the numbers only: races are not looked for then, nor where not `checked`.
        `steps` of the scheduler are enough for it.
        """
        x, y, z = call.grid
        return self.module.launch(
            self.entry,
            (-(-x // 2), y, z) if self.contract.persistent else call.grid,  # half: CTAs go on from item to item
            call.block,
            call.args,
            dynamic_shared=call.dynamic_shared,
            schedule=schedule,
            checkers=RACES if checked and observer is None else frozenset[str](),
            progress=progress,
            max_steps=steps,
            observer=observer,
        )

    def own(self, span: Span | None) -> Span | None:
        """`span` under the path that the user gave: compilers write the absolute one."""
        if span is None or span.path == self.path or os.path.realpath(span.path) != os.path.realpath(self.path):
            return span
        return replace(span, path=self.path)

    def operand_line(self, span: Span | None) -> Span | None:
        """Where operand B of the products on a line is loaded; the line itself where it is loaded there, or nowhere."""
        for site, ins in enumerate(self.code):
            if ins.parts[0] != "mma" or span is None or len(ins.args) < 3:
                continue
            at, _ = self.place(site)
            if at is not None and at.line == span.line:
                load = load_before(self.code, site, 2)
                return self.place(load)[0] if load is not None else span
        return span

    def place(self, site: int) -> tuple[Span | None, tuple[Related, ...]]:
        """The line of the kernel's own body that an instruction comes from, and the lines inside the functions called
        there.
        """
        location = self._location(site)
        if location is None:
            return None, ()
        home = os.path.realpath(self.path)
        chain = [at for at in location.chain() if os.path.realpath(at.path) == home] or list(location.chain())
        spans = [self.own(self._sources.span(at)) for at in chain]
        inner = tuple(Related(span, "inside this function") for span in reversed(spans[:-1]) if span is not None)
        return spans[-1], inner

    def _location(self, site: int) -> Location | None:
        """Where an instruction comes from; compilers give line 0 to what they merged: then what stands before it."""
        for at in range(site, max(site - BACK, -1), -1):
            location = self.code[at].loc if 0 <= at < len(self.code) else None
            if location is not None and location.chain()[-1].line > 0:
                return location
        return None


_LOADS = frozenset({"ldmatrix", "ld", "ldu"})


def load_before(code: list[Instruction], site: int, operand: int) -> int | None:
    """The last load before an instruction that gives registers of one of its operands."""
    if operand >= len(code[site].args):
        return None
    names = set(registers_of(code[site].args[operand]))
    for n in range(site - 1, -1, -1):
        ins = code[n]
        if ins.parts[0] in _LOADS and ins.args and names & set(registers_of(ins.args[0])):
            return n
    return None
