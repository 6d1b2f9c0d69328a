"""The gate: a grafted kernel is compiled, executed over the whole grid and compared with the spec. Nothing else makes
it usable: what watching said of the original is no evidence for what was changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..compile import Compiled, Contract, shared_limit
from ..device import device_available
from ..diagnostics import Diagnostic, Severity, Span, make
from ..ir.expr import Call, Const, Expr, Var
from ..ir.nodes import GridMap, Kernel, Origin, Param
from ..results import CompiledResult, DeviceResult, EmptyRows, PowerResult, Report
from ..spec.attention import Attention
from ..verify.derive import choose_heads, grid_for, tile_for
from ..verify.executed import static_at
from ..verify.explain import Binding
from ..verify.fitting import demanded
from ..verify.gpu_level import GpuJob, GpuOutcome, run_gpu
from ..verify.grid import Case
from ..verify.inputs import to_numpy
from ..verify.instances import Instances
from ..verify.ir_level import number
from ..verify.levels import ORDER, UNREACHED, applicability, highest
from ..verify.measure import TOLERANCES, row_errors
from ..verify.power import MARGIN
from ..verify.prepare import Preparer, formula
from ..verify.run import coarsest, grid_power
from ..verify.simulated_level import SimulatedJob, SimulatedOutcome, run_simulated
from ..verify.stages import Stages
from ..verify.subject import Subject, VerifyOptions
from ..verify.versions import versions
from .inherited import UNWRITTEN, Known, Original, own_findings

NOT_READ = "the kernel was watched, not read"


@dataclass(frozen=True, slots=True)
class Grafted:
    """What the gate is for: the text of the kernel's file, how it is compiled, and how it is called."""

    path: str
    text: bytes
    compile: Callable[[str], Compiled]  # for an architecture; '' is that of the contract
    contract: Contract
    scale: float
    causal: bool
    operands: dict[str, str]
    unchanged: Expr | None  # the score of the kernel as it was; None where it is as it was
    original: Original | None = None


def kernel_of(contract: Contract, span: Span | None) -> Kernel:
    """What is known without reading: tiles, widths, parameters, the strides that the kernel is told. It has no body:
    nothing executes it.
    """
    one = contract.instances[0]
    params = tuple(Param(p.name, p.type, p.role, n) for n, p in enumerate(contract.leaves))
    threads = contract.block[0] * contract.block[1] * contract.block[2]
    nothing = GridMap(Const(0), Const(0), Const(0), Const(0))
    return Kernel(
        contract.name, params, nothing, contract.br, contract.bc, one.head_dim, one.value_dim, threads, "observed", (),
        Const(1.0), _strides(contract), {}, Origin(span, "observed"),
    )  # fmt: skip


def _strides(contract: Contract) -> dict[str, tuple[Expr, ...]]:
    """The strides of q, k, v and o along b, h and row: a parameter, or what the layout makes of the sizes."""
    told = {p.role: p.name for p in contract.leaves}
    by_role = {p.role: p for p in contract.leaves}
    out: dict[str, tuple[Expr, ...]] = {}
    for role in "qkvo":
        layout = by_role[role].layout
        owner = layout if layout in "qkvo" else role
        heads, rows = (Var("H"), Var("Sq")) if owner in "qo" else (Var("Hkv"), Var("Sk"))
        width = Var("Dv" if owner in "vo" else "D")
        inner = by_role[owner].layout if owner != role else layout
        plain = (
            {"b": heads * rows * width, "row": heads * width, "h": width}
            if inner == "bshd"
            else {"b": heads * rows * width, "h": rows * width, "row": width}
        )
        names = {axis: told.get(f"stride:{owner}.{axis}") for axis in ("b", "h", "row")}
        out[role] = tuple(Var(name) if name else plain[axis] for axis, name in names.items())
    return out


def gate(
    grafted: Grafted, attention: Attention, program: Any, options: VerifyOptions, stages: Stages, span: Span | None
) -> tuple[Report, list[Diagnostic]]:
    """Levels ``compiled``, ``simulated`` and, where there is a device, ``gpu``; a level ``ir`` there is none."""
    contract = grafted.contract
    attention = demanded(attention, contract)
    kernel = kernel_of(contract, span)
    stages.note("ir", "skipped", NOT_READ)
    diagnostics: list[Diagnostic] = []
    compiled = _compiled(grafted, stages, diagnostics)
    heads = choose_heads(attention)
    preparer = Preparer(attention, program, tile_for(attention, kernel))
    outcome: SimulatedOutcome | None = None
    device: GpuOutcome | None = None
    checks: list[PowerResult] = []
    grid = None
    why = "a level below was not reached" if compiled is None else "no head counts fit the spec and the contract"
    runs = heads is not None and compiled is not None
    if not (runs and options.use_simulator):
        stages.note("simulate", "skipped", why if options.use_simulator else "switched off")
    if heads is not None and compiled is not None:
        grid = grid_for(attention, kernel, heads)
        cases = tuple(_seeded(c, options) for c in grid.cases if c.Sk or options.empty_rows == "keep")
        values: dict[str, float | int] = {"scale": grafted.scale, "causal": int(grafted.causal)}
        subject = Subject(grafted.path, grafted.text, kernel, Binding(values, grafted.operands), contract)
        instances = Instances(subject, contract, attention, preparer, lambda _a, _k: cases)
        checks = _power(grafted, attention, preparer, cases, contract, diagnostics)
        if options.use_simulator:
            outcome = _simulated(grafted, compiled, instances, options, stages, diagnostics)
        device = _on_gpu(grafted, instances, options, stages, diagnostics)
    else:
        stages.note("gpu", "skipped", why)
    failed = any(stage.state == "failed" for stage in stages.done) or any(
        d.severity is Severity.ERROR for d in diagnostics
    )
    reached = {"simulated": stages.state("simulate"), "gpu": stages.state("gpu")}
    errors = any(d.severity is Severity.ERROR for d in diagnostics)
    level = highest({"lifted": True, "ir": True, "compiled": stages.state("compile")} | ({} if errors else reached))
    level = level if ORDER[level] >= ORDER["compiled"] else "none"  # it was not lifted, and there is no level ir
    if contract.requires:
        diagnostics.append(make("CB729", span, requires=", ".join(contract.requires)))
    executed = [c for one in (outcome, device) if one is not None for c in one.cases]
    info = device.device if device is not None else None
    dead = [p.dead for p in preparer.made.values() if p.dead is not None]
    report = Report.model_validate(
        {
            "level": level,
            "applicability": applicability(level, failed, {d.code for d in diagnostics}),
            "stages": tuple(stages.done),
            "cases": tuple(executed),
            "compiled": _figures(compiled, contract),
            "simulated": tuple(r.model_copy(update={"cost": None}) for r in outcome.results) if outcome else (),
            "power": tuple(checks),
            "empty_rows": EmptyRows.model_validate(
                {
                    "rows": sum(int(d.sum()) for d in dead),
                    "spec": attention.empty_rows,
                    "policy": options.empty_rows,
                    "kept": sum(c.kept_rows for c in executed),
                }
            ),
            "covered": grid.covered if grid else {},
            "not_covered": {**(grid.not_covered if grid else {}), **(outcome.not_run if outcome else {})},
            "device": DeviceResult(name=info.name, arch=info.arch, driver=info.driver) if info else None,
            "seeds": tuple(sorted({c.seed for c in executed})),
            "versions": versions(),
        }
    )
    return report, diagnostics


def _seeded(case: Case, options: VerifyOptions) -> Case:
    return replace(case, seed=case.seed + 7919 * options.seed)


def _compiled(grafted: Grafted, stages: Stages, diagnostics: list[Diagnostic]) -> Compiled | None:
    """The machine code, too: what ptxas refuses is of no use."""
    with stages.run("compile") as stage:
        compiled = grafted.compile("")
        errors = [d for d in compiled.diagnostics if d.severity is Severity.ERROR]
        diagnostics += errors
        if errors or not compiled.ok:
            stage.fail("see the diagnostics")
            return None
    return compiled


def _on_gpu(
    grafted: Grafted, instances: Instances, options: VerifyOptions, stages: Stages, diagnostics: list[Diagnostic]
) -> GpuOutcome | None:
    """The grid on a device, with the text compiled for it."""
    info = device_available() if options.use_gpu else None
    if info is None:
        stages.note("gpu", "skipped", "no GPU here" if options.use_gpu else "switched off")
        return None
    with stages.run("gpu") as stage:
        compiled = grafted.compile(info.arch)
        errors = [d for d in compiled.diagnostics if d.severity is Severity.ERROR]
        diagnostics += [d for d in errors if d not in diagnostics]
        if errors or not compiled.ok:
            stage.fail(f"it does not compile for {info.arch}")
            return None
        problems = instances.problems()
        chosen = [i for i in instances.contract.instances if i.head_dim in problems]
        job = GpuJob(instances.contract, compiled, problems, options.empty_rows)
        outcome = run_gpu(job, chosen, options.rounds, lambda done, total, text: stages.tick("gpu", done, total, text))
        diagnostics += [d for d in outcome.diagnostics if d not in diagnostics]
        if not outcome.passed:
            stage.fail("see the diagnostics")
    return outcome


def _figures(compiled: Compiled | None, contract: Contract) -> tuple[CompiledResult, ...]:
    dynamic = {i.expression: contract.dynamic_shared(i) for i in contract.instances}
    return tuple(
        CompiledResult(
            instantiation=k.expression,
            arch=compiled.arch,
            registers=k.registers,
            spill_bytes=k.spill_loads + k.spill_stores,
            shared_bytes=k.shared_bytes + dynamic[k.expression],
            shared_limit=shared_limit(compiled.arch),
        )
        for k in (compiled.kernels if compiled is not None else ())
        if compiled is not None and k.expression in dynamic
    )


def _power(
    grafted: Grafted, attention: Attention, preparer: Preparer, cases: Sequence[Case], contract: Contract,
    diagnostics: list[Diagnostic],
) -> list[PowerResult]:  # fmt: skip
    """Wrong answers that the grid must reject; the kernel as it was is one of them."""
    dtype = coarsest(contract.dtypes)
    out: list[PowerResult] = []
    for check in grid_power(attention, preparer, cases, dtype):
        row = {"what": check.what, "kind": check.kind, "case": check.case, "rejected": check.rejected}
        out.append(PowerResult.model_validate({**row, "distance": number(check.distance)}))
        if not check.rejected:
            part = attention.spans.get(check.part) or attention.spans.get("function")
            code = "CB711" if check.kind == "output" else UNREACHED if check.part == "mask" else "CB710"
            what = check.what if check.kind == "output" else f"a constant of the {check.part}"
            diagnostics.append(make(code, part, what=what, old=check.old, new=check.new))
    others: dict[str, Attention] = {}
    if grafted.unchanged is not None:
        mask = _causal() if grafted.causal else None
        others["the kernel as it was"] = replace(attention, score=grafted.unchanged, mask=mask, sink=None)
    if attention.sink is not None:
        others["the spec without its sink"] = replace(attention, sink=None)
    told = [_told(what, one, attention, preparer, cases, dtype, diagnostics) for what, one in others.items()]
    return [*out, *told]


def _told(
    what: str, plain: Attention, attention: Attention, preparer: Preparer, cases: Sequence[Case], dtype: str,
    diagnostics: list[Diagnostic],
) -> PowerResult:  # fmt: skip
    """Another function must be told from the spec: else nothing was tested that was changed."""
    tolerance = TOLERANCES[dtype]
    worst, name = 0.0, ""
    for case in cases:
        if not case.Sq or not case.Sk:
            continue
        prepared = preparer.get(case, "float64")
        other = formula(plain, [to_numpy(t) for t in prepared.tensors])[0]
        errors = row_errors(other, prepared.o, tolerance.floor)
        if prepared.dead is not None:
            errors = np.where(prepared.dead[..., None], 0.0, errors)
        if float(errors.max(initial=0.0)) > worst:
            worst, name = float(errors.max(initial=0.0)), case.name
    rejected = worst > MARGIN * tolerance.relative
    if not rejected:
        diagnostics.append(make("CB711", attention.spans.get("function"), what=what))
    return PowerResult(what=what, kind="output", case=name, distance=number(worst), rejected=rejected)


def _causal() -> Expr:
    return Call("le", (Var("j"), Var("i") + Var("Sk") - Var("Sq")))


def _simulated(
    grafted: Grafted, compiled: Compiled, instances: Instances, options: VerifyOptions, stages: Stages,
    diagnostics: list[Diagnostic],
) -> SimulatedOutcome:  # fmt: skip
    job = SimulatedJob(grafted.contract, compiled, grafted.path, grafted.text, options.empty_rows)

    def tick(done: float, total: int, text: str) -> None:
        stages.tick("simulate", done, total, text)

    with stages.run("simulate") as stage:
        outcome = run_simulated(job, instances, tick)
        if grafted.original is not None and any(d.code == UNWRITTEN for d in outcome.diagnostics):
            own = own_findings(
                grafted.original, grafted.path, instances, {c.name for c in outcome.cases if not c.passed}
            )
            known = Known(own, grafted.path, grafted.text)
            if own:
                outcome = run_simulated(replace(job, known=known), instances, tick)
            diagnostics += known.notes()
        diagnostics += [d for d in outcome.diagnostics if d not in diagnostics]
        static = () if outcome.skipped else static_at(job, instances)
        diagnostics += [d for d in static if d not in diagnostics]
        if outcome.skipped:
            stage.skip(outcome.skipped)
        elif any(d.severity is Severity.ERROR for d in static):
            stage.fail("a launch that cannot be executed here would be wrong")
        elif not outcome.passed:
            failing = list(dict.fromkeys(c.name for c in outcome.cases if not c.passed))
            stage.fail(f"failed on {', '.join(failing)}" if failing else "see the diagnostics")
    return outcome
