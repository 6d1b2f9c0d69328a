"""Level ``simulated``: the PTX of every instantiation executed over the grid, under every schedule, with no finding.

Every instantiation runs the whole grid: that of the spec's own dtype and head dimension under all schedules, the
others, which are the same text, under some of them (see `SCHEDULES_OF`). The report says what ran.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..compile import Compiled, Contract, Instance
from ..device.binding import bind_arguments
from ..diagnostics import Diagnostic, Severity, Span, make
from ..results import CaseResult, CostResult, SimulatedResult
from ..simulate import CHECKERS, SCHEDULES, Module, Run, Schedule, load
from .case_result import executed_case
from .contracts import by_member
from .costs import cost_of, largest
from .grid import Case
from .instances import AtHeadDim, Instances
from .ir_level import sizes_text, store_span
from .measure import Measure, measure_lse, measure_o
from .prepare import Prepared
from .simulated_tensors import (
    element_types,
    floats,
    operands_of,
    output_layout,
    simulated_argument,
    tensors_of,
    workspaces_of,
)
from .targets import reduced

Array = NDArray[Any]
Tick = Callable[[float, int, str], None]  # parts done, of how many, what runs

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
    """The launches of one instantiation. `cases` are those of its problem, or some of them."""

    instance: Instance
    problem: AtHeadDim
    cases: Sequence[Case]
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


def plans(
    instances: Instances, asynchronous: Callable[[Instance], bool], *, whole: bool = True
) -> tuple[tuple[Plan, ...], dict[str, str]]:
    """What to launch, the primary instantiation first, and the instantiations that have no problem, with the reason.

    Not the `whole` grid but some problems (``targets.reduced``), on every instantiation as on a secondary one.
    """
    problems = instances.problems()
    primary = instances.primary()
    made: list[Plan] = []
    missing: dict[str, str] = {}
    for instance in sorted(instances.contract.instances, key=lambda i: i != primary):
        problem = problems.get(instance.head_dim)
        if problem is None:
            missing[instance.expression] = f"the spec has no form at head dimension {instance.head_dim}"
        else:
            waits, first = asynchronous(instance), whole and instance == primary
            cases = problem.cases if whole else reduced(problem.cases, problem.kernel.Bc, instances.contract.stages)
            made.append(Plan(instance, problem, cases, SCHEDULES_OF[waits, first], waits, first))
    return tuple(made), missing


@dataclass(frozen=True, slots=True)
class SimulatedJob:
    """What stays the same over the launches: the PTX with its line information, and the text that it came from.

    `same_as`: architectures with the same PTX. Not `whole`: the grid ran on other PTX, some problems are enough.
    `known`: findings that are no reason to fail.
    """

    contract: Contract
    compiled: Compiled
    path: str
    text: bytes
    empty_rows: str
    same_as: tuple[str, ...] = ()
    whole: bool = True
    known: Callable[[Diagnostic], bool] = lambda _: False

    @property
    def on(self) -> str:
        """`` for sm_90a`` where it is not the architecture that the whole grid ran on."""
        return "" if self.whole else f" for {self.compiled.arch}"

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
    todo, outcome.not_run = plans(instances, job.asynchronous, whole=job.whole)
    if not todo:
        outcome.skipped = "no instantiation of the contract has the spec's head dimension"
        return outcome
    module = job.module()
    found = _Found(job)
    total, done = sum(len(p.schedules_of(case)) for p in todo for case in p.cases), 0
    failures = 0
    for plan in todo:
        ran: list[Run] = []
        costs: list[CostResult] = []
        counted = largest(plan.cases)
        for case in plan.cases:
            schedules = plan.schedules_of(case)
            if not schedules:
                continue
            prepared = plan.problem.preparer.get(case, plan.instance.dtype)
            for schedule in schedules:
                name = plan.name_of(schedule)
                where = f"case '{case.name}' of {plan.instance.expression}{job.on}, schedule {name}"
                tick(done, total, where)
                done += 1
                launch = Launch(job, module, plan, prepared, schedule)
                here = case.name == counted and schedule == schedules[0]
                inside = partial(_tick_inside, tick, done - 1, total, where)
                result, run, problems = launch.go(here, inside)
                outcome.cases.append(result)
                if run is not None:
                    ran.append(run)
                    if here and plan.primary:
                        costs.append(cost_of(module, job.kernel(plan.instance), run, case, name, job.text))
                found.add(problems, f"{where} ({sizes_text(case)})")
                failures += 0 if result.passed else 1
                if failures >= stop_after:
                    outcome.diagnostics = found.diagnostics()
                    return outcome
        outcome.results.append(_summary(job, plan, ran, costs[0] if costs else None))
    outcome.diagnostics = found.diagnostics()
    return outcome


def _tick_inside(tick: Tick, done: int, total: int, where: str, share: float) -> None:
    """Progress inside a launch. Raises what `tick` raises where the job was cancelled."""
    tick(done + share, total, where)


def joined(first: SimulatedOutcome, other: SimulatedOutcome, job: SimulatedJob) -> SimulatedOutcome:
    """Two outcomes as one; `job` is that of the other, whose PTX must be executed too for anything to be said."""
    return SimulatedOutcome(
        [*first.cases, *other.cases],
        [*first.diagnostics, *(d for d in other.diagnostics if d not in first.diagnostics)],
        [*first.results, *other.results],
        {**other.not_run, **first.not_run},
        first.skipped or (f"the PTX{job.on}: {other.skipped}" if other.skipped else ""),
    )


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
class Launch:
    """One case under one schedule."""

    job: SimulatedJob
    module: Module
    plan: Plan
    prepared: Prepared
    schedule: Schedule

    def go(
        self, count_banks: bool, progress: Callable[[float], None]
    ) -> tuple[CaseResult, Run | None, tuple[Diagnostic, ...]]:
        """The result, the run (None where there was nothing to launch), and what was found."""
        run, refused = self.start(count_banks, progress)
        if run is None:
            return self._result(None, not refused), None, refused
        complete = bool(run.outputs) and not run.cancelled
        findings = [d for d in run.findings if not self.job.known(d)]
        result = self._result(run, complete and not findings)
        wrong = self._wrong_numbers(result) if complete else ()
        return result, run, (*findings, *wrong)

    def start(self, count_banks: bool, progress: Callable[[float], None]) -> tuple[Run | None, tuple[Diagnostic, ...]]:
        """The run; None where arguments do not fit (with the reasons), or where there is nothing to launch."""
        contract, problem = self.job.contract, self.plan.problem
        case = self.prepared.case
        tensors = tensors_of(contract, problem, self.prepared)
        sizes = {**case.sizes, "D": problem.kernel.D, "Dv": problem.kernel.Dv}
        scratch = workspaces_of(contract, sizes)
        values = {**scratch, **by_member(problem.binding.values), **operands_of(contract, problem, self.prepared)}
        arguments, refused = bind_arguments(contract, tensors, sizes, values)
        if refused:
            return None, tuple(refused)
        shape = contract.launch(sizes, self.prepared.dtype)
        if 0 in shape.grid:  # no query row: a launch of no CTA is an error, and there is nothing to compute
            return None, ()
        given = [simulated_argument(argument) for argument in arguments]
        x, y, z = shape.grid
        run = self.module.launch(
            self.job.kernel(self.plan.instance),
            (-(-x // 2), y, z) if contract.persistent else shape.grid,  # half of them: CTAs go on from item to item
            shape.block,
            given,
            dynamic_shared=shape.dynamic_shared_bytes,
            schedule=self.schedule,
            checkers=CHECKERS if count_banks else RACES,
            progress=progress,
        )
        return run, ()

    def output(self, run: Run | None) -> Array:
        """O as float64 ``[B, H, Sq, Dv]``; NaN where nothing was written."""
        o = run.outputs.get("O") if run is not None else None
        if o is None:
            return np.full(self.prepared.o.shape, np.nan)
        kind = element_types(self.job.contract, self.prepared.dtype)["o"]
        got = floats(o, kind)[..., : self.prepared.o.shape[3]]
        return got.transpose(0, 2, 1, 3) if output_layout(self.plan.problem, self.prepared.case) == "bshd" else got

    def _result(self, run: Run | None, clean: bool) -> CaseResult:
        schedule = self.plan.name_of(self.schedule)
        measures = self._measures(run)
        return executed_case(
            self.prepared, "simulated", self.prepared.dtype, schedule, measures, clean, self.job.compiled.arch
        )

    def _measures(self, run: Run | None) -> list[Measure]:
        """O and, where the kernel writes it, LSE against the spec. What was not written is NaN."""
        prepared, dtype = self.prepared, self.prepared.dtype
        outputs = run.outputs if run is not None else {}
        got = self.output(run)
        measures = [measure_o(got, prepared.o, dtype, prepared.dead, self.job.empty_rows, prepared.slack)]
        if prepared.lse is not None and any(p.role == "lse" for p in self.job.contract.leaves):
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
        how = f"{result.dtype}, {result.schedule}{self.job.on}"
        return (
            make(
                "CB720",
                store_span(self.plan.problem.kernel),
                output=found.output.upper(),
                case=f"case '{result.name}' ({sizes_text(self.prepared.case)}; {how})",
                place=place,
                got=_short(found.got),
                want=_short(found.want),
                error=_short(worst),
            ),
        )


def _short(value: float | str | None) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _summary(job: SimulatedJob, plan: Plan, ran: Sequence[Run], cost: CostResult | None) -> SimulatedResult:
    """What the report says of one instantiation."""
    ways = [site.ways for run in ran for site in run.bank_lines.values()]
    return SimulatedResult(
        instantiation=plan.instance.expression,
        arch=job.compiled.arch,
        dtype=plan.instance.dtype,
        head_dim=plan.instance.head_dim,
        value_dim=plan.instance.value_dim if plan.instance.value_dim != plan.instance.head_dim else None,
        cases=tuple(case.name for case in plan.cases if plan.schedules_of(case)),
        schedules=tuple(plan.name_of(s) for s in plan.schedules),
        launches=len(ran),
        instructions=sum(run.counts.threads for run in ran),
        bank_conflict_ways=round(max(ways), 2) if ways else None,
        same_as=job.same_as,
        cost=cost,
        values=dict(plan.problem.binding.values),
    )
