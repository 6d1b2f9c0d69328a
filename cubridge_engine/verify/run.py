"""Verify a lifted kernel against a spec that was read: all levels in order, into one Report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..diagnostics import Diagnostic, Severity, make
from ..ir.evaluate import evaluate
from ..ir.nodes import Kernel
from ..results import DeviceResult, EmptyRows, PaddedResult, PowerResult, Report
from ..spec.attention import Attention, widths_of
from . import codes as codes
from .compile_level import CompileOutcome, run_compile
from .derive import Grid, choose_heads, far_heads, grid_for, tile_for
from .executed import execute_on_gpu, execute_simulated
from .far import same_everywhere
from .gpu_level import GpuOutcome
from .grid import Case
from .inputs import to_numpy
from .instances import Instances
from .ir_level import IrOutcome, number, run_ir, runs_for
from .levels import ORDER, UNREACHED, applicability, highest
from .power import Check, Problem, power
from .prepare import Preparer, formula
from .simulated_level import SimulatedOutcome
from .stages import Stages
from .subject import Subject, VerifyOptions
from .targets import archs_of
from .versions import versions

Array = NDArray[Any]


@dataclass(slots=True)
class Verified:
    """A report and the diagnostics that go with it."""

    report: Report
    diagnostics: list[Diagnostic] = field(default_factory=list)


def verify(subject: Subject, attention: Attention, program: Any, options: VerifyOptions, stages: Stages) -> Verified:
    """Run the levels ``ir``, ``compiled``, ``simulated`` and ``gpu`` in order.

    A failed level stops the ones above it. Earlier stages (parse, lift, ...) must already be in `stages`.
    """
    if subject.contract is not None:
        widths = (subject.kernel.D, subject.kernel.Dv)
        subject = replace(subject, contract=subject.contract.for_widths(widths))
    heads = choose_heads(attention)
    tile = tile_for(attention, subject.kernel)
    preparer = Preparer(attention, program, tile)
    result = Verified(Report(level="none", applicability="sketch", stages=()))
    if heads is None:
        why = "no head counts fit the spec's head map" + (" and the kernel's contract" if _required(subject) else "")
        stages.note("ir", "skipped", why)
        return _finish(result, stages, Grid((), {}, {"heads": why}), _Reached(), [], options, attention)
    grid = grid_for(attention, subject.kernel, heads)
    grid = _adjusted(grid, options)
    ir, checks = _ir(subject, attention, preparer, grid, options, stages, result)
    compiled = _compiled(subject, attention, options, stages, result) if ir.passed else None
    if compiled is None:
        stages.note("compile", "skipped", "a level below failed")
    instances = None  # without a contract nobody knows how to launch it
    if subject.contract is not None:
        at = lambda a, k: _adjusted(grid_for(a, k, heads), options).cases  # noqa: E731
        instances = Instances(subject, subject.contract, attention, preparer, at)
    simulated = execute_simulated(subject, instances, options, stages, result.diagnostics, compiled)
    gpu = execute_on_gpu(subject, instances, options, stages, result.diagnostics, compiled)
    _policy_notes(result, ir, preparer, grid, options)
    if _required(subject):
        result.diagnostics.append(make("CB729", subject.kernel.origin.span, requires=", ".join(_required(subject))))
    _finish(result, stages, grid, _Reached(ir, compiled, simulated, gpu), checks, options, attention)
    result.report = result.report.model_copy(update={"padded": padding_of(subject.kernel, attention)})
    return result


def _required(subject: Subject) -> tuple[str, ...]:
    """What the contract demands of the sizes: the grid keeps to it, and nothing else was tested."""
    return subject.contract.requires if subject.contract is not None else ()


def padding_of(kernel: Kernel, attention: Attention) -> PaddedResult | None:
    """What a caller adds to the spec's tensors for the kernel; None where both have the same widths."""
    d, dv = widths_of(attention, (kernel.D, kernel.Dv))
    return PaddedResult(d=(d, kernel.D), dv=(dv, kernel.Dv)) if (d, dv) != (kernel.D, kernel.Dv) else None


def _adjusted(grid: Grid, options: VerifyOptions) -> Grid:
    """The grid with the user's seed. With exact empty rows, zero keys are left out: torch's product over no keys is 0,
    not NaN.
    """
    cases = tuple(_seeded(c, options.seed) for c in grid.cases)
    if options.empty_rows == "keep":
        return Grid(cases, grid.covered, grid.not_covered)
    missing = {
        **grid.not_covered,
        "no-keys": "torch gives 0 for zero keys and NaN for masked ones; a kernel cannot do both",
    }
    return Grid(tuple(c for c in cases if c.Sk), grid.covered, missing)


def _seeded(case: Case, seed: int) -> Case:
    return replace(case, seed=case.seed + 7919 * seed)


# ---- levels
# -----------------------------------------------------------------------------------------------------------


def _ir(
    subject: Subject,
    attention: Attention,
    preparer: Preparer,
    grid: Grid,
    options: VerifyOptions,
    stages: Stages,
    result: Verified,
) -> tuple[IrOutcome, list[Check]]:
    checks: list[Check] = []
    with stages.run("ir") as stage:
        dtypes = element_types(subject, attention)
        outcome = run_ir(
            subject.kernel,
            subject.binding,
            attention,
            preparer,
            grid.cases,
            runs_for(dtypes),
            options.empty_rows,
            lambda done, total, text: stages.tick("ir", done, total, text),
        )
        result.diagnostics.extend(outcome.diagnostics)
        if outcome.passed:
            checks = grid_power(attention, preparer, grid.cases, coarsest(dtypes))
            weak = _power_findings(checks, attention)
            result.diagnostics.extend(weak)
            outcome.diagnostics.extend(weak)
        if not outcome.passed:
            failing = [c.name for c in outcome.cases if not c.passed]
            stage.fail(f"failed on {', '.join(dict.fromkeys(failing))}" if failing else "see the diagnostics")
    return outcome, checks


def element_types(subject: Subject, attention: Attention) -> tuple[str, ...]:
    """The element types that the kernel is compiled for: its contract's, else those its family computes in."""
    if subject.contract is not None:
        return subject.contract.dtypes
    own = attention.input("q").dtype
    return ("float16", "bfloat16") if subject.kernel.family == "mma" else (own,)


def coarsest(dtypes: Sequence[str]) -> str:
    """The dtype with the widest tolerance."""
    order = ("float64", "float32", "float16", "bfloat16")
    return max(dtypes, key=lambda d: order.index(d) if d in order else 0, default="float32")


def grid_power(attention: Attention, preparer: Preparer, cases: Sequence[Case], dtype: str) -> list[Check]:
    """Power checks on the float64 references of the grid."""
    prepared = {case.name: preparer.get(case, "float64") for case in cases}
    problems = [Problem(p.case.name, dict(p.roles), p.case.sizes, p.o, p.dead) for p in prepared.values()]

    def output_of(changed: Attention, problem: Problem) -> Array:
        return formula(changed, [to_numpy(t) for t in prepared[problem.name].tensors])[0]

    def head_map(problem: Problem) -> Array:
        env = {"h": np.arange(problem.sizes["H"]), **problem.sizes}
        return np.broadcast_to(np.asarray(evaluate(attention.head_map, env)), (problem.sizes["H"],)).astype(int)

    def equivalent(changed: Attention) -> bool:
        heads = choose_heads(attention)
        if heads is None or not cases:
            return False
        tile = preparer.tile
        counts = far_heads(attention, heads)[0]
        return same_everywhere(attention, changed, tile.br, tile.bc, cases[0].D, counts)

    return power(attention, problems, output_of, head_map, dtype, equivalent)


def _power_findings(checks: Sequence[Check], attention: Attention) -> list[Diagnostic]:
    found: list[Diagnostic] = []
    for check in checks:
        if check.rejected:
            continue
        span = attention.spans.get(check.part) or attention.spans.get("function")
        if check.kind == "output":
            found.append(make("CB711", attention.spans.get("function"), what=check.what))
        else:
            # A constant that softmax cancels has no effect; one of a mask has, on problems the grid is too small for.
            code = UNREACHED if check.part == "mask" else "CB710"
            found.append(make(code, span, what=f"a constant of the {check.part}", old=check.old, new=check.new))
    return found


def _compiled(
    subject: Subject, attention: Attention, options: VerifyOptions, stages: Stages, result: Verified
) -> CompileOutcome:
    with stages.run("compile") as stage:
        outcome = run_compile(
            subject.text,
            subject.path,
            subject.kernel,
            subject.contract,
            archs_of(options.archs, subject.contract, subject.text),
            lambda done, total, text: stages.tick("compile", done, total, text),
        )
        result.diagnostics.extend(outcome.diagnostics)
        if outcome.skipped:
            stage.skip(outcome.skipped)
        elif not outcome.passed:
            stage.fail("see the diagnostics")
    return outcome


# ---- the report
# -------------------------------------------------------------------------------------------------------


def _policy_notes(result: Verified, ir: IrOutcome, preparer: Preparer, grid: Grid, options: VerifyOptions) -> None:
    """Say what was kept and what was not run, so that silence means 'nothing to say'."""
    if ir.kept and options.empty_rows == "keep":
        rows = sum(c.kept_rows for c in ir.cases if c.dtype == "float64" and c.schedule == "early")
        result.diagnostics.append(make("CB709", preparer.attention.spans.get("mask"), rows=rows))
    by_formula = [
        p for p in preparer.made.values() if p.by_formula and p.dtype == "float64" and p.case.Sk and p.case.Sq
    ]
    if by_formula:
        first = by_formula[0]
        sizes = ", ".join(f"{n}={v}" for n, v in first.case.sizes.items())
        span = preparer.attention.spans.get("function")
        result.diagnostics.append(make("CB715", span, sizes=sizes, why=first.by_formula))


@dataclass(frozen=True, slots=True)
class _Reached:
    """What became of each level; None where it was not tried."""

    ir: IrOutcome | None = None
    compiled: CompileOutcome | None = None
    simulated: SimulatedOutcome | None = None
    gpu: GpuOutcome | None = None


def _finish(
    result: Verified,
    stages: Stages,
    grid: Grid,
    outcomes: _Reached,
    checks: Sequence[Check],
    options: VerifyOptions,
    attention: Attention,
) -> Verified:
    ir, compiled, simulated, gpu = outcomes.ir, outcomes.compiled, outcomes.simulated, outcomes.gpu
    reached = {
        "lifted": True,
        "ir": ir.passed if ir is not None else None,
        "compiled": stages.state("compile"),
        "simulated": stages.state("simulate"),
        "gpu": stages.state("gpu"),
    }
    level = highest(reached)
    failed = any(stage.state == "failed" for stage in stages.done)
    usable = applicability(level, failed, {d.code for d in result.diagnostics})
    cases = [case for one in (ir, simulated, gpu) if one is not None for case in one.cases]
    info = gpu.device if gpu is not None else None
    result.report = Report.model_validate(
        {
            "level": level,
            "applicability": usable,
            "stages": tuple(stages.done),
            "cases": tuple(cases),
            "compiled": tuple(compiled.results if compiled else ()),
            "simulated": tuple(simulated.results if simulated else ()),
            "power": tuple(_power_result(c) for c in checks),
            "empty_rows": EmptyRows.model_validate(
                {
                    "rows": ir.dead if ir else 0,
                    "spec": attention.empty_rows,
                    "policy": options.empty_rows,
                    "kept": ir.kept if ir else 0,
                }
            ),
            "covered": grid.covered,
            "not_covered": {**grid.not_covered, **(simulated.not_run if simulated else {})},
            "device": DeviceResult(name=info.name, arch=info.arch, driver=info.driver) if info else None,
            "seeds": tuple(sorted({c.seed for c in cases})),
            "versions": versions(),
        }
    )
    if not failed and ORDER[level] < ORDER["simulated"] and ir is not None and ir.passed:
        result.diagnostics.append(_limit(level, compiled, stages))
    return result


def _power_result(check: Check) -> PowerResult:
    return PowerResult.model_validate(
        {
            "what": check.what,
            "kind": check.kind,
            "case": check.case,
            "distance": number(check.distance),
            "rejected": check.rejected,
        }
    )


def _limit(level: str, compiled: CompileOutcome | None, stages: Stages) -> Diagnostic:
    """Why the level is not higher, and what would raise it."""
    gpu = next((s.why for s in stages.done if s.name == "gpu"), "")
    if compiled is not None and compiled.skipped:
        way = "Install a compiler (run 'cubridge doctor' to see the command), then verify again."
        return make("CB712", None, level=level, why=compiled.skipped, way_out=way)
    simulator = next((s.why for s in stages.done if s.name == "simulate"), "")
    why = f"not executed in the simulator ({simulator or 'not tried'}) nor on a GPU ({gpu or 'not tried'})"
    if simulator == gpu:
        why = f"not executed: {gpu or 'not tried'}"
    way = "Run 'cubridge verify' on a machine with a GPU to reach level 'gpu'."
    if "contract.toml" in simulator:
        way = "Put a contract.toml beside the kernel (see those of the bundled kernels), then verify again."
    return make("CB712", None, level=level, why=why, way_out=way)


def has_error(diagnostics: Sequence[Diagnostic]) -> bool:
    """True when one of them is an error."""
    return any(d.severity is Severity.ERROR for d in diagnostics)
