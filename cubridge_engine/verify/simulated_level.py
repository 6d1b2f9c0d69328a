"""Level ``simulated``: the PTX of every instantiation executed over the grid, under every schedule, with no finding.

Every instantiation runs the whole grid: that of the spec's own dtype and head dimension under all schedules, the
others, which are the same text, under some of them (see `SCHEDULES_OF`). The report says what ran.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..compile import Compiled, Contract, Instance
from ..device.binding import bind_arguments
from ..diagnostics import Diagnostic, Severity, Span, make
from ..results import CaseResult, SimulatedResult
from ..simulate import CHECKERS, SCHEDULES, Module, Run, Schedule, load
from .case_result import executed_case
from .grid import LAYOUTS, Case
from .instances import AtHeadDim, Instances
from .ir_level import sizes_text, store_span
from .measure import Measure, measure_lse, measure_o
from .prepare import Prepared
from .simulated_tensors import SimulatedTensor, floats, operands_of, tensors_of

Array = NDArray[Any]
Tick = Callable[[int, int, str], None]

RACES = CHECKERS - {"banks"}
# (has asynchronous instructions, is the primary instantiation) -> schedules. The others see each extreme of copies and
# of warp orders once; without anything asynchronous, early and late are one and the same execution.
SCHEDULES_OF: dict[tuple[bool, bool], tuple[Schedule, ...]] = {
    (True, True): SCHEDULES,
    (True, False): (Schedule("late", "reverse"), Schedule("early", "forward")),
    (False, True): (Schedule("late", "forward"), Schedule("late", "reverse")),
    (False, False): (Schedule("late", "forward"),),
}


@dataclass(frozen=True, slots=True)
class Plan:
    """The launches of one instantiation."""

    instance: Instance
    problem: AtHeadDim
    schedules: tuple[Schedule, ...]
    asynchronous: bool
    primary: bool

    def schedules_of(self, case: Case) -> tuple[Schedule, ...]:
        """The schedules of one case; a long case runs once, on the primary instantiation."""
        if case.long:
            return self.schedules[:1] if self.primary else ()
        return self.schedules

    def name_of(self, schedule: Schedule) -> str:
        """``late reverse``: when asynchronous copies land (where there are any), and the order of a CTA's warps."""
        return f"{schedule.async_} {schedule.order}" if self.asynchronous else schedule.order


@dataclass(slots=True)
class SimulatedOutcome:
    """What executing the PTX showed. `skipped`: why it says nothing. `not_run`: instantiations without a problem."""

    cases: list[CaseResult] = field(default_factory=list)
    diagnostics: list[Diagnostic] = field(default_factory=list)
    results: list[SimulatedResult] = field(default_factory=list)
    not_run: dict[str, str] = field(default_factory=dict[str, str])
    skipped: str = ""

    @property
    def passed(self) -> bool:
        """True when every planned launch ran, its numbers are right and nothing was found: not even a warning."""
        return bool(self.cases) and not self.skipped and not self.diagnostics and all(c.passed for c in self.cases)


def plans(instances: Instances, asynchronous: Callable[[Instance], bool]) -> tuple[tuple[Plan, ...], dict[str, str]]:
    """What to launch, the primary instantiation first, and the instantiations that have no problem, with the reason."""
    problems = instances.problems()
    primary = instances.primary()
    made: list[Plan] = []
    missing: dict[str, str] = {}
    for instance in sorted(instances.contract.instances, key=lambda i: i != primary):
        problem = problems.get(instance.head_dim)
        if problem is None:
            missing[instance.expression] = f"the spec has no form at head dimension {instance.head_dim}"
        else:
            waits = asynchronous(instance)
            made.append(Plan(instance, problem, SCHEDULES_OF[waits, instance == primary], waits, instance == primary))
    return tuple(made), missing


@dataclass(frozen=True, slots=True)
class SimulatedJob:
    """What stays the same over the launches: the PTX with its line information, and the text that it came from."""

    contract: Contract
    compiled: Compiled
    path: str
    text: bytes
    empty_rows: str

    def module(self) -> Module:
        """The PTX, read; kept for the next job on the same text."""
        return _module(self.compiled.ptx or "", self.path, self.text)

    def kernel(self, instance: Instance) -> str:
        """The name of an instantiation in the PTX."""
        return self.compiled.lowered[instance.expression]

    def unreadable(self, instances: Sequence[Instance]) -> tuple[Diagnostic, ...]:
        """What of the PTX the simulator does not know (CB510, CB511)."""
        module = self.module()
        found = [d for i in instances if not module.diagnostics for d in module.kernel(self.kernel(i)).unsupported]
        return (*module.diagnostics, *found)

    def asynchronous(self, instance: Instance) -> bool:
        """True when the instantiation has any instruction that completes later than it is executed."""
        code = self.module().kernel(self.kernel(instance)).flow.code
        return any("async" in part for ins in code for part in ins.parts)

    def own(self, span: Span | None) -> Span | None:
        """`span` under the path that the user gave: compilers write the absolute one."""
        if span is None or span.path == self.path or os.path.realpath(span.path) != os.path.realpath(self.path):
            return span
        return replace(span, path=self.path)


@lru_cache(maxsize=2)
def _module(ptx: str, path: str, text: bytes) -> Module:
    # Only positions are read from it: one character per byte keeps them right in any encoding.
    known = bytes(b if b < 128 else 63 for b in text).decode("ascii")
    return load(ptx, dict.fromkeys((path, os.path.abspath(path), os.path.realpath(path)), known))


def run_simulated(job: SimulatedJob, instances: Instances, tick: Tick, *, stop_after: int = 3) -> SimulatedOutcome:
    """Launch every plan. Stops after `stop_after` failing launches, and at once where the PTX cannot be executed."""
    outcome = SimulatedOutcome()
    unknown = job.unreadable(instances.contract.instances)
    if unknown:
        # It says nothing about the kernel, so it is no error of the kernel.
        outcome.skipped = unknown[0].message
        outcome.diagnostics = [replace(d, severity=Severity.WARNING) for d in dict.fromkeys(unknown)]
        return outcome
    todo, outcome.not_run = plans(instances, job.asynchronous)
    if not todo:
        outcome.skipped = "no instantiation of the contract has the spec's head dimension"
        return outcome
    module = job.module()
    found = _Found(job)
    total, done = sum(len(p.schedules_of(case)) for p in todo for case in p.problem.cases), 0
    failures = 0
    for plan in todo:
        ran: list[Run] = []
        for case in plan.problem.cases:
            schedules = plan.schedules_of(case)
            if not schedules:
                continue
            prepared = plan.problem.preparer.get(case, plan.instance.dtype)
            for schedule in schedules:
                where = f"case '{case.name}' of {plan.instance.expression}, schedule {plan.name_of(schedule)}"
                tick(done, total, where)
                done += 1
                launch = _Launch(job, module, plan, prepared, schedule)
                result, run, problems = launch.go(count_banks=not ran)
                outcome.cases.append(result)
                if run is not None:
                    ran.append(run)
                found.add(problems, f"{where} ({sizes_text(case)})")
                failures += 0 if result.passed else 1
                if failures >= stop_after:
                    outcome.diagnostics = found.diagnostics()
                    return outcome
        outcome.results.append(_summary(job, plan, ran))
    outcome.diagnostics = found.diagnostics()
    return outcome


class _Found:
    """Findings of many launches, each place once, with the first launch that showed it."""

    def __init__(self, job: SimulatedJob) -> None:
        self._job = job
        self._first: dict[tuple[object, ...], Diagnostic] = {}

    def add(self, found: Sequence[Diagnostic], where: str) -> None:
        for item in found:
            own = replace(
                item,
                span=self._job.own(item.span),
                related=tuple(replace(r, span=self._job.own(r.span) or r.span) for r in item.related),
            )
            # A wrong number is a consequence: one tells enough.
            key = (own.code,) if own.code == "CB720" else (own.code, own.span, tuple(r.span for r in own.related))
            if key not in self._first:
                said = own if own.code == "CB720" else replace(own, message=f"{own.message}; first in {where}")
                self._first[key] = said

    def diagnostics(self) -> list[Diagnostic]:
        return list(self._first.values())


@dataclass(frozen=True, slots=True)
class _Launch:
    """One case under one schedule."""

    job: SimulatedJob
    module: Module
    plan: Plan
    prepared: Prepared
    schedule: Schedule

    def go(self, count_banks: bool) -> tuple[CaseResult, Run | None, tuple[Diagnostic, ...]]:
        """The result, the run (None where there was nothing to launch), and what was found."""
        contract, problem = self.job.contract, self.plan.problem
        case = self.prepared.case
        tensors = tensors_of(problem, self.prepared, contract.alignment_bytes)
        values = {**problem.binding.values, **operands_of(contract, problem, self.prepared)}
        arguments, refused = bind_arguments(contract, tensors, case.sizes, values)
        if refused:
            return self._result(None, False), None, tuple(refused)
        shape = contract.launch(case.sizes, self.prepared.dtype)
        if 0 in shape.grid:  # no query row: a launch of no CTA is an error, and there is nothing to compute
            return self._result(None, True), None, ()
        given = [
            a.owner.buffer if isinstance(a.owner, SimulatedTensor) else _number(a.type, a.value) for a in arguments
        ]
        run = self.module.launch(
            self.job.kernel(self.plan.instance),
            shape.grid,
            shape.block,
            given,
            dynamic_shared=shape.dynamic_shared_bytes,
            schedule=self.schedule,
            checkers=CHECKERS if count_banks else RACES,
        )
        complete = bool(run.outputs) and not run.cancelled
        result = self._result(run, complete and not run.findings)
        wrong = self._wrong_numbers(result) if complete else ()
        return result, run, (*run.findings, *wrong)

    def _result(self, run: Run | None, clean: bool) -> CaseResult:
        schedule = self.plan.name_of(self.schedule)
        return executed_case(self.prepared, "simulated", self.prepared.dtype, schedule, self._measures(run), clean)

    def _measures(self, run: Run | None) -> list[Measure]:
        """O and, where the kernel writes it, LSE against the spec. What was not written is NaN."""
        prepared, dtype = self.prepared, self.prepared.dtype
        outputs = run.outputs if run is not None else {}
        o = outputs.get("O")
        got = np.full(prepared.o.shape, np.nan) if o is None else floats(o, dtype)
        if o is not None and LAYOUTS[prepared.case.layout]["o"] == "bshd":
            got = got.transpose(0, 2, 1, 3)
        measures = [measure_o(got, prepared.o, dtype, prepared.dead, self.job.empty_rows)]
        if prepared.lse is not None and any(p.role == "lse" for p in self.job.contract.parameters):
            lse = outputs.get("LSE")
            have = np.full(prepared.lse.shape, np.nan) if lse is None else lse.astype(np.float64)
            measures.append(
                measure_lse(have, prepared.lse, dtype, prepared.dead, self.job.empty_rows, prepared.free_lse)
            )
        return measures

    def _wrong_numbers(self, result: CaseResult) -> tuple[Diagnostic, ...]:
        found = result.counterexample
        if found is None:
            return ()
        place = f"b={found.b}, h={found.h}, i={found.i}" + (f", d={found.d}" if found.d is not None else "")
        worst = result.worst_o if found.output == "o" else result.worst_lse
        return (
            make(
                "CB720",
                store_span(self.plan.problem.kernel),
                output=found.output.upper(),
                case=f"case '{result.name}' ({sizes_text(self.prepared.case)}; {result.dtype}, {result.schedule})",
                place=place,
                got=_short(found.got),
                want=_short(found.want),
                error=_short(worst),
            ),
        )


def _short(value: float | str | None) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _number(kind: str, value: int | float) -> object:
    return np.float32(value) if kind == "float32" else int(value)


def _summary(job: SimulatedJob, plan: Plan, ran: Sequence[Run]) -> SimulatedResult:
    """What the report says of one instantiation."""
    ways = [site.ways for run in ran for site in run.bank_lines.values()]
    return SimulatedResult(
        instantiation=plan.instance.expression,
        arch=job.compiled.arch,
        dtype=plan.instance.dtype,
        head_dim=plan.instance.head_dim,
        cases=tuple(case.name for case in plan.problem.cases if plan.schedules_of(case)),
        schedules=tuple(plan.name_of(s) for s in plan.schedules),
        launches=len(ran),
        instructions=sum(run.counts.threads for run in ran),
        bank_conflict_ways=round(max(ways), 2) if ways else None,
    )
