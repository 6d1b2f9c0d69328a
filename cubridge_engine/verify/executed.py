"""The stages that execute compiled code: in the simulator, then on a GPU where there is one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ..device import device_available
from ..diagnostics import Diagnostic, Severity
from .compile_level import CompileOutcome, run_compile
from .gpu_level import GpuJob, GpuOutcome, run_gpu
from .instances import Instances
from .simulated_level import SimulatedJob, SimulatedOutcome, joined, run_simulated
from .stages import Stages
from .static_checks import static_checks
from .subject import Subject, VerifyOptions
from .targets import targets
from .whole import add_whole


def execute_simulated(
    subject: Subject,
    instances: Instances | None,
    options: VerifyOptions,
    stages: Stages,
    diagnostics: list[Diagnostic],
    compiled: CompileOutcome | None,
) -> SimulatedOutcome | None:
    """Stage ``simulate``. None, and the stage skipped with the reason, where nothing can be executed."""
    why = _not_executed(compiled, instances) or ("" if options.use_simulator else "switched off")
    if why:
        stages.note("simulate", "skipped", why)
        return None
    assert instances is not None
    assert compiled is not None
    jobs = [
        SimulatedJob(
            instances.contract, t.compiled, subject.path, subject.text, options.empty_rows, t.same_as, whole=n == 0
        )
        for n, t in enumerate(targets(compiled.compiled))
    ]
    job = jobs[0]
    with stages.run("simulate") as stage:
        outcome = run_simulated(job, instances, _ticks(stages, 0, len(jobs)))
        for number, other in enumerate(jobs[1:], 1):
            if outcome.passed:
                outcome = joined(outcome, run_simulated(other, instances, _ticks(stages, number, len(jobs))), other)
        if outcome.passed and subject.drop_in is not None:
            add_whole(outcome, job, instances, subject.drop_in)
        diagnostics.extend(outcome.diagnostics)
        # Only the primary instantiation: the others are the same text, and what does not fit their launch was seen.
        static = () if outcome.skipped else static_at(job, instances)
        diagnostics.extend(d for d in static if d not in diagnostics)
        if outcome.skipped:
            stage.skip(outcome.skipped)
        elif any(d.severity is Severity.ERROR for d in static):
            stage.fail("a launch that cannot be executed here would be wrong")
        elif not outcome.passed:
            failing = list(dict.fromkeys(c.name for c in outcome.cases if not c.passed))
            stage.fail(f"failed on {', '.join(failing)}" if failing else "see the diagnostics")
    return outcome


def _ticks(stages: Stages, number: int, count: int) -> Callable[[float, int, str], None]:
    """Progress of the `number`-th of `count` runs of the simulator."""
    return lambda done, total, text: stages.tick("simulate", number * total + done, count * total, text)


def static_at(job: SimulatedJob, instances: Instances) -> tuple[Diagnostic, ...]:
    """What no launch of the grid can show: sizes at which an address wraps, alignment that nobody promised."""
    instance = instances.primary()
    if instance is None:
        return ()
    found = static_checks(job.contract, instance, job.module(), job.compiled)
    return tuple(replace(d, span=job.own(d.span)) for d in found if d.severity >= Severity.WARNING)


def execute_on_gpu(
    subject: Subject,
    instances: Instances | None,
    options: VerifyOptions,
    stages: Stages,
    diagnostics: list[Diagnostic],
    compiled: CompileOutcome | None,
) -> GpuOutcome | None:
    """Stage ``gpu``. None, and the stage skipped with the reason, where nothing can be executed."""
    why = _no_gpu_reason(options, compiled, instances)
    if why:
        stages.note("gpu", "skipped", why)
        return None
    assert instances is not None
    info = device_available()
    assert info is not None
    with stages.run("gpu") as stage:
        problems = instances.problems()
        chosen = [i for i in instances.contract.instances if i.head_dim in problems]
        module = _for_device(subject, compiled, info.arch, [i.head_dim for i in chosen])
        diagnostics.extend(d for d in module.diagnostics if d not in diagnostics)
        if not module.passed:
            stage.fail(f"it does not compile for {info.arch}")
            return None
        job = GpuJob(instances.contract, module.compiled[info.arch], problems, options.empty_rows)
        outcome = run_gpu(job, chosen, options.rounds, lambda done, total, text: stages.tick("gpu", done, total, text))
        diagnostics.extend(outcome.diagnostics)
        if not outcome.passed:
            stage.fail("see the diagnostics")
    return outcome


def _not_executed(compiled: CompileOutcome | None, instances: Instances | None) -> str:
    """Why compiled code cannot be executed at all."""
    if compiled is None or not compiled.passed:
        return "a level below was not reached"
    return "" if instances is not None else "the kernel has no contract.toml that says how to launch it"


def _no_gpu_reason(options: VerifyOptions, compiled: CompileOutcome | None, instances: Instances | None) -> str:
    why = _not_executed(compiled, instances) or ("" if options.use_gpu else "switched off")
    return why or ("" if device_available() is not None else "no GPU here")


def _for_device(
    subject: Subject, compiled: CompileOutcome | None, arch: str, head_dims: Sequence[int]
) -> CompileOutcome:
    """The module for the device's own architecture: the one compiled already, or compiled now."""
    if compiled is not None and arch in compiled.compiled:
        return compiled
    return run_compile(
        subject.text, subject.path, subject.kernel, subject.contract, (arch,), lambda *_: None, head_dims
    )
