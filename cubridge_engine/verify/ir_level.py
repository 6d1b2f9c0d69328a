"""Level ``ir``: the program lifted from the kernel's own text executes without a finding and equals the spec on the
whole grid.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..diagnostics import Diagnostic, Related, Severity, make
from ..ir.interp import execute
from ..ir.nodes import Kernel, Mma, Op, StoreTile
from ..results import CaseResult, CounterexampleResult
from ..spec.attention import Attention
from ..transfer.semantics import walk_ops
from .bindings import extra_tensors, indexed_operands
from .explain import Binding, explain, first_differing_key
from .grid import Case
from .inputs import widened
from .measure import Counterexample, Measure, measure_lse, measure_o
from .paged import in_pages
from .prepare import Prepared, Preparer
from .steps import first_wrong_step
from .steps_model import WrongStep
from .visited import empty_tiles

Array = NDArray[Any]
Tick = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class Run:
    """One way to execute the grid: when asynchronous copies land, and the element type values are rounded to (None:
    none).
    """

    schedule: str  # early | late
    rounding: str | None

    @property
    def dtype(self) -> str:
        """The dtype of inputs and tolerance."""
        return self.rounding or "float64"


@dataclass(slots=True)
class IrOutcome:
    """What the level found. `kept` counts rows without a key whose NaN was not asked for, `empty` the KV tiles that
    were visited without need, by case.
    """

    cases: list[CaseResult] = field(default_factory=list)
    diagnostics: list[Diagnostic] = field(default_factory=list)
    kept: int = 0
    dead: int = 0
    empty: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def passed(self) -> bool:
        """True when every case passed and nothing was found."""
        errors = any(d.severity is Severity.ERROR for d in self.diagnostics)
        return bool(self.cases) and not errors and all(case.passed for case in self.cases)


def runs_for(dtypes: Sequence[str]) -> tuple[Run, ...]:
    """Exact arithmetic under both extremes of asynchronous copies, then each element type the kernel rounds to."""
    rounded = tuple(Run("late", dtype) for dtype in dtypes if dtype in ("float16", "bfloat16"))
    return (Run("early", None), Run("late", None), *rounded)


def once(runs: Sequence[Run]) -> tuple[Run, ...]:
    """The runs of a long case: exact arithmetic under one extreme of asynchronous copies."""
    return tuple(runs[:1])


def run_ir(
    kernel: Kernel,
    binding: Binding,
    attention: Attention,
    preparer: Preparer,
    cases: Sequence[Case],
    runs: Sequence[Run],
    empty_rows: str,
    tick: Tick,
    *,
    stop_after: int = 3,
) -> IrOutcome:
    """Execute `kernel` on every case under every run. Stops after `stop_after` failing cases: they tell enough."""
    outcome = IrOutcome()
    seen: set[tuple[str, object]] = set()
    plan = {run: [case for case in cases if not case.long or run in once(runs)] for run in runs}
    total, done, failures = sum(map(len, plan.values())), 0, 0
    worst: tuple[Prepared, Measure, str] | None = None
    for run in runs:
        for case in plan[run]:
            prepared = preparer.get(case, run.dtype)
            result, measures, findings, tiles = _run_case(kernel, binding, prepared, run, empty_rows)
            done += 1
            tick(done, total, case.name)
            outcome.cases.append(result)
            outcome.kept += result.kept_rows
            if run.rounding is None and run.schedule == "early":
                outcome.dead += int(prepared.dead.sum()) if prepared.dead is not None else 0
                outcome.empty[case.name] = empty_tiles(kernel, attention, prepared, tiles)
            for finding in findings:
                key = (finding.code, finding.span)
                if key not in seen:
                    seen.add(key)
                    outcome.diagnostics.append(finding)
            failed = next((m for m in measures if not m.passed), None)
            if failed is not None and worst is None:
                worst = (prepared, failed, run.schedule)
            failures += 0 if result.passed else 1
            if failures >= stop_after:
                break
        if failures >= stop_after:
            break
    if worst is not None:
        outcome.diagnostics.extend(_explained(kernel, binding, attention, *worst))
        _attach_key(outcome, kernel, binding, attention)
    return outcome


def _run_case(
    kernel: Kernel, binding: Binding, prepared: Prepared, run: Run, empty_rows: str
) -> tuple[CaseResult, list[Measure], tuple[Diagnostic, ...], int]:
    case = prepared.case
    tensors, values = _call(kernel, binding, prepared)
    got = execute(kernel, tensors, case.sizes, values, async_mode=run.schedule, rounding=run.rounding)
    o = got.o[..., : prepared.o.shape[3]]
    measures = [measure_o(o, prepared.o, run.dtype, prepared.dead, empty_rows, prepared.slack)]
    if got.lse is not None and prepared.lse is not None:
        measures.append(measure_lse(got.lse, prepared.lse, run.dtype, prepared.dead, empty_rows, prepared.free_lse))
    errors = [f for f in got.findings if f.severity is Severity.ERROR]
    failed = next((m for m in measures if not m.passed), None)
    lse = measures[1].worst if len(measures) > 1 else None
    result = CaseResult(
        name=case.name,
        why=case.why,
        level="ir",
        sizes=case.sizes,
        dtype=run.dtype,
        layout=case.layout,
        schedule=run.schedule,
        seed=case.seed,
        worst_o=number(measures[0].worst),
        worst_lse=None if lse is None else number(lse),
        tolerance=measures[0].tolerance,
        passed=failed is None and not errors,
        kept_rows=measures[0].kept_rows,
        reference="formula" if prepared.by_formula else "spec",
        counterexample=counterexample(failed.counterexample) if failed and failed.counterexample else None,
    )
    return result, measures, got.findings, got.tiles


def _call(kernel: Kernel, binding: Binding, prepared: Prepared) -> tuple[dict[str, Array], dict[str, float | int]]:
    """The tensors and the values that the program is executed with."""
    widths = {"q": kernel.D, "k": kernel.D, "v": kernel.Dv}
    tensors: dict[str, Array] = {role: widened(prepared.roles[role], n) for role, n in widths.items()}
    operands = extra_tensors(binding, prepared.roles, prepared.case.sizes)
    for table, size in binding.pages.items():
        tensors |= {role: in_pages(tensors[role], operands[table], size) for role in ("k", "v")}
    values = {**binding.values, **element_strides(binding, operands)}
    return tensors | indexed_operands(kernel, binding, operands), values


def localised(
    kernel: Kernel, binding: Binding, attention: Attention, prepared: Prepared, schedule: str
) -> WrongStep | None:
    """The first wrong step of `kernel` on a case; None where it cannot be told."""
    if binding.pages:  # rows of K and V do not lie one behind the other: a tile is no slice of them
        return None
    tensors, values = _call(kernel, binding, prepared)
    extra = {name: array for name, array in tensors.items() if name not in ("q", "k", "v")}
    roles = {**prepared.roles, **{role: tensors[role] for role in ("q", "k", "v")}}
    return first_wrong_step(kernel, attention, roles, prepared.case.sizes, values, extra, schedule)


def element_strides(binding: Binding, operands: Mapping[str, Array]) -> dict[str, int]:
    """Values of the stride parameters of extra tensors, contiguous as they are here; an axis of one element does not
    move.
    """
    result: dict[str, int] = {}
    for parameter, axes in binding.stride_params.items():
        array = operands[parameter]
        for name, axis in axes.items():
            result[name] = int(np.prod(array.shape[axis + 1 :], dtype=np.int64)) if array.shape[axis] > 1 else 0
    return result


def number(value: float) -> float | str:
    """A float as JSON can carry it: infinities and NaN as words."""
    return value if math.isfinite(value) else str(value)


def counterexample(found: Counterexample) -> CounterexampleResult:
    """The contract's form of a counterexample."""
    output = "lse" if found.output == "lse" else "o"
    return CounterexampleResult(
        output=output,
        b=found.b,
        h=found.h,
        i=found.i,
        d=found.d,
        j=None,
        got=number(found.got),
        want=number(found.want),
    )


def _explained(
    kernel: Kernel, binding: Binding, attention: Attention, prepared: Prepared, measure: Measure, schedule: str
) -> list[Diagnostic]:
    """What differs, by reading; then the numbers, at the line the reading points to, at that of the first step that is
    wrong, or where O is stored.
    """
    reasons = list(explain(kernel, binding, attention))
    step = localised(kernel, binding, attention, prepared, schedule)
    found = measure.counterexample
    assert found is not None
    place = f"b={found.b}, h={found.h}, i={found.i}" + (f", d={found.d}" if found.d is not None else "")
    span = reasons[0].span if reasons else step.span if step is not None and step.span else store_span(kernel)
    spec_span = attention.spans.get("function")
    numbers = make(
        "CB701",
        span,
        related=(Related(spec_span, "the spec"),) if spec_span is not None else (),
        output="O" if found.output == "o" else "LSE",
        case=f"case '{prepared.case.name}' ({sizes_text(prepared.case)})",
        place=place,
        got=f"{found.got:.6g}",
        want=f"{found.want:.6g}",
        error=f"{found.error:.2g}",
        tolerance=f"{measure.tolerance:.2g}",
        advice=_advice(bool(reasons), step),
    )
    return [*reasons, numbers]


def _advice(read: bool, step: WrongStep | None) -> str:
    """Where to look."""
    first = f"{step.sentence()[0].upper()}{step.sentence()[1:]}." if step is not None else ""
    if read:
        return " ".join(filter(None, ("See the difference named at the same line.", first)))
    return first or "Mask, score, sink and head map read alike: look at tile ranges, guards, state and pipeline."


def sizes_text(case: Case) -> str:
    """``B=1 H=2 Hkv=2 Sq=73 Sk=197 D=64``."""
    return " ".join(f"{name}={value}" for name, value in case.sizes.items())


def store_span(kernel: Kernel) -> Any:
    """Where the products that make S are, else where O is stored: the line for a number that is wrong."""
    ops: list[Op] = list(walk_ops(kernel.body))
    spans = [op.origin.span for op in ops if isinstance(op, Mma) and op.role == "qk" and op.origin.span]
    spans += [op.origin.span for op in ops if isinstance(op, StoreTile) and op.origin.span]
    return spans[0] if spans else kernel.origin.span


def _attach_key(outcome: IrOutcome, kernel: Kernel, binding: Binding, attention: Attention) -> None:
    """Add to each counterexample of O the first key that the two masks treat differently."""
    for at, case in enumerate(outcome.cases):
        found = case.counterexample
        if found is None or case.sizes["Sk"] == 0:
            continue
        j = first_differing_key(kernel, binding, attention, case.sizes, found.b, found.h, found.i)
        if j is not None:
            outcome.cases[at] = case.model_copy(update={"counterexample": replace_key(found, j)})


def replace_key(found: CounterexampleResult, j: int) -> CounterexampleResult:
    """`found` with its key."""
    return found.model_copy(update={"j": j})
