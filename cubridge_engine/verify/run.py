"""Verify a lifted kernel against a spec that was read: all levels in order, into one Report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..compile import Contract
from ..device import device_available
from ..diagnostics import Diagnostic, Severity, make
from ..ir.evaluate import evaluate
from ..ir.nodes import Kernel
from ..results import DeviceResult, EmptyRows, PowerResult, Report
from ..spec.attention import Attention
from . import codes as codes
from .compile_level import DEFAULT_ARCHS, CompileOutcome, run_compile
from .derive import Grid, choose_heads, grid_for, natural_scale
from .explain import Binding
from .gpu_level import GpuJob, GpuOutcome, GpuProblem, run_gpu
from .grid import Case, Heads
from .inputs import Tile, to_numpy
from .ir_level import IrOutcome, number, run_ir, runs_for
from .levels import NO_SIMULATOR, ORDER, applicability, highest
from .power import Check, Problem, power
from .prepare import Preparer, formula
from .stages import Stages
from .versions import versions

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """What the user can choose. `archs` empty: the default ones. `rounds`: runs of the grid on a device, each with
    other inputs.
    """

    archs: tuple[str, ...] = ()
    empty_rows: str = "keep"
    seed: int = 0
    use_gpu: bool = True
    rounds: int = 2


@dataclass(frozen=True, slots=True)
class Variant:
    """The kernel and the spec at one head dimension: a scale such as 1/sqrt(D) makes both depend on it."""

    kernel: Kernel
    attention: Attention
    program: Any
    binding: Binding


@dataclass(frozen=True, slots=True)
class Subject:
    """The kernel under test: its text, the program lifted from that text, how it is called, and its contract if there
    is one.

    `at_head_dim` gives the same at another head dimension, or None where kernel or spec have no such form.
    """

    path: str
    text: bytes
    kernel: Kernel
    binding: Binding
    contract: Contract | None = None
    at_head_dim: Callable[[int], Variant | None] | None = None


@dataclass(slots=True)
class Verified:
    """A report and the diagnostics that go with it."""

    report: Report
    diagnostics: list[Diagnostic] = field(default_factory=list)


def verify(subject: Subject, attention: Attention, program: Any, options: VerifyOptions, stages: Stages) -> Verified:
    """Run the levels ``ir``, ``compiled`` and ``gpu`` in order; ``simulated`` is not there yet and is said to be so.

    A failed level stops the ones above it. Earlier stages (parse, lift, ...) must already be in `stages`.
    """
    heads = choose_heads(attention)
    tile = Tile(subject.kernel.Br, subject.kernel.Bc, natural_scale(attention, subject.kernel.D))
    preparer = Preparer(attention, program, tile)
    result = Verified(Report(level="none", applicability="sketch", stages=()))
    if heads is None:
        why = "no head counts fit the spec's head map"
        stages.note("ir", "skipped", why)
        return _finish(result, stages, Grid((), {}, {"heads": why}), None, None, None, [], options, attention)
    grid = grid_for(attention, subject.kernel, heads)
    grid = _adjusted(grid, options)
    ir, checks = _ir(subject, attention, preparer, grid, options, stages, result)
    compiled = _compiled(subject, attention, options, stages, result) if ir.passed else None
    if compiled is None:
        stages.note("compile", "skipped", "a level below failed")
    stages.note("simulate", "not yet", NO_SIMULATOR)
    gpu = _gpu(subject, attention, preparer, heads, options, stages, result, compiled)
    _policy_notes(result, ir, preparer, grid, options)
    return _finish(result, stages, grid, ir, compiled, gpu, checks, options, attention)


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

    return power(attention, problems, output_of, head_map, dtype)


def _power_findings(checks: Sequence[Check], attention: Attention) -> list[Diagnostic]:
    found: list[Diagnostic] = []
    for check in checks:
        if check.rejected:
            continue
        span = attention.spans.get(check.part) or attention.spans.get("function")
        if check.kind == "output":
            found.append(make("CB711", attention.spans.get("function"), what=check.what))
        else:
            found.append(make("CB710", span, what=f"a constant of the {check.part}", old=check.old, new=check.new))
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
            options.archs or DEFAULT_ARCHS,
            lambda done, total, text: stages.tick("compile", done, total, text),
        )
        result.diagnostics.extend(outcome.diagnostics)
        if outcome.skipped:
            stage.skip(outcome.skipped)
        elif not outcome.passed:
            stage.fail("see the diagnostics")
    return outcome


def _gpu(
    subject: Subject,
    attention: Attention,
    preparer: Preparer,
    heads: Heads,
    options: VerifyOptions,
    stages: Stages,
    result: Verified,
    compiled: CompileOutcome | None,
) -> GpuOutcome | None:
    why = _no_gpu_reason(subject, options, compiled)
    if why:
        stages.note("gpu", "skipped", why)
        return None
    assert subject.contract is not None
    info = device_available()
    assert info is not None
    with stages.run("gpu") as stage:
        variants = _variants(subject, attention, preparer)
        instances = [i for i in subject.contract.instances if i.head_dim in variants]
        module = _for_device(subject, compiled, info.arch, [i.head_dim for i in instances])
        result.diagnostics.extend(d for d in module.diagnostics if d not in result.diagnostics)
        if not module.passed:
            stage.fail(f"it does not compile for {info.arch}")
            return None
        problems = {
            d: GpuProblem(v.attention, p, v.binding, _cases_at(v.attention, v.kernel, heads, options))
            for d, (v, p) in variants.items()
        }
        job = GpuJob(subject.contract, module.compiled[info.arch], problems, options.empty_rows)
        outcome = run_gpu(
            job, instances, options.rounds, lambda done, total, text: stages.tick("gpu", done, total, text)
        )
        result.diagnostics.extend(outcome.diagnostics)
        if not outcome.passed:
            stage.fail("see the diagnostics")
    return outcome


def _variants(subject: Subject, attention: Attention, preparer: Preparer) -> dict[int, tuple[Variant, Preparer]]:
    """Every head dimension of the contract at which kernel and spec exist."""
    assert subject.contract is not None
    own = Variant(subject.kernel, attention, preparer.program, subject.binding)
    found = {subject.kernel.D: (own, preparer)}
    for d in subject.contract.head_dims:
        if d not in found and subject.at_head_dim is not None:
            variant = subject.at_head_dim(d)
            if variant is not None:
                tile = Tile(variant.kernel.Br, variant.kernel.Bc, natural_scale(variant.attention, d))
                found[d] = (variant, Preparer(variant.attention, variant.program, tile))
    return found


def _no_gpu_reason(subject: Subject, options: VerifyOptions, compiled: CompileOutcome | None) -> str:
    if compiled is None or not compiled.passed:
        return "a level below was not reached"
    if not options.use_gpu:
        return "switched off"
    if subject.contract is None:
        return "the kernel has no contract.toml that says how to launch it"
    return "" if device_available() is not None else "no GPU here"


def _for_device(
    subject: Subject, compiled: CompileOutcome | None, arch: str, head_dims: Sequence[int]
) -> CompileOutcome:
    """The module for the device's own architecture: the one compiled already, or compiled now."""
    if compiled is not None and arch in compiled.compiled:
        return compiled
    return run_compile(
        subject.text, subject.path, subject.kernel, subject.contract, (arch,), lambda *_: None, head_dims
    )


def _cases_at(attention: Attention, kernel: Kernel, heads: Heads, options: VerifyOptions) -> tuple[Case, ...]:
    return _adjusted(grid_for(attention, kernel, heads), options).cases


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


def _finish(
    result: Verified,
    stages: Stages,
    grid: Grid,
    ir: IrOutcome | None,
    compiled: CompileOutcome | None,
    gpu: GpuOutcome | None,
    checks: Sequence[Check],
    options: VerifyOptions,
    attention: Attention,
) -> Verified:
    reached = {
        "lifted": True,
        "ir": ir.passed if ir is not None else None,
        "compiled": stages.state("compile"),
        "simulated": None,
        "gpu": stages.state("gpu"),
    }
    level = highest(reached)
    failed = any(stage.state == "failed" for stage in stages.done)
    usable = applicability(level, failed)
    cases = [*(ir.cases if ir else []), *(gpu.cases if gpu else [])]
    info = gpu.device if gpu is not None else None
    result.report = Report.model_validate(
        {
            "level": level,
            "applicability": usable,
            "stages": tuple(stages.done),
            "cases": tuple(cases),
            "compiled": tuple(compiled.results if compiled else ()),
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
            "not_covered": grid.not_covered,
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
    why = f"{gpu or 'not run on a GPU'}, and {NO_SIMULATOR}"
    way = "Run 'cubridge verify' on a machine with a GPU to reach level 'gpu'."
    return make("CB712", None, level=level, why=why, way_out=way)


def has_error(diagnostics: Sequence[Diagnostic]) -> bool:
    """True when one of them is an error."""
    return any(d.severity is Severity.ERROR for d in diagnostics)
