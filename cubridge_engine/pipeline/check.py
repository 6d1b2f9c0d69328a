"""`verify`: any kernel file against a spec, whoever wrote it. Runs in a worker process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ..diagnostics import Diagnostic, Severity
from ..ir.evaluate import UnboundName, evaluate
from ..ir.text_expr import ExprSyntaxError, parse_expr
from ..lower import Header, parse_header
from ..results import Report, Verification
from ..source import overlay
from ..verify.bindings import Given, bind_kernel
from ..verify.contracts import extended
from ..verify.levels import applicability
from ..verify.run import verify
from ..verify.stages import Progress, Stages
from ..verify.subject import Subject, VerifyOptions
from .common import Loaded, diagnostic_dicts, exit_code, load, without_scales
from .files import Options, file_ref, stale
from .several import by_line, flat_of_launcher, located

STAGES = ("parse", "lift", "spec", "ir", "compile", "simulate", "gpu")


@dataclass(slots=True)
class _State:
    loaded: Loaded | None = None
    report: Report | None = None
    bindings: Mapping[str, float | int] = field(default_factory=dict[str, "float | int"])


def verify_kernel(
    kernel_path: str,
    spec_path: str,
    options: Options | None = None,
    checks: VerifyOptions | None = None,
    progress: Progress = lambda *_: None,
) -> Verification:
    """Verify the kernel file against the spec file. Never raises for what the files hold.

    Parameter values and extra tensors come from `options`, from the ``// cubridge:`` header of the file, or are worked
    out.
    """
    options, checks = options or Options(), checks or VerifyOptions()
    stages = Stages(STAGES, progress)
    diagnostics: list[Diagnostic] = []
    state = _State()
    _run(state, kernel_path, spec_path, options, checks, stages, diagnostics)
    loaded = state.loaded
    data = loaded.data if loaded is not None else None
    flat = flat_of_launcher(loaded.source) if loaded is not None and loaded.lifted is None else None
    if flat is not None:  # its kernel is in a header: read as one text
        state, stages, diagnostics = _State(), Stages(STAGES, progress), []
        with overlay({kernel_path: flat.data}):
            _run(state, kernel_path, spec_path, options, checks, stages, diagnostics)
        diagnostics = [located(d, flat) for d in diagnostics]
        state.report = by_line(state.report, flat) if state.report is not None else None
        loaded = state.loaded
    if data is not None:
        diagnostics.extend(stale(kernel_path, data))
    failed = any(d.severity is Severity.ERROR for d in diagnostics)
    report = state.report
    level = report.level if report is not None else "lifted" if loaded is not None and loaded.lifted else "none"
    usable = applicability(level, failed, {d.code for d in diagnostics})
    if report is not None:
        report = report.model_copy(update={"stages": tuple(stages.done), "applicability": usable})
    return Verification.model_validate(
        {
            "command": "verify",
            "diagnostics": diagnostic_dicts(diagnostics),
            "stages": tuple(stages.done),
            "exit_code": exit_code(diagnostics),
            "level": level,
            "applicability": usable,
            "report": report,
            "bindings": dict(state.bindings),
            "kernel": file_ref(kernel_path, data),
            "spec": file_ref(spec_path, loaded.spec_data if loaded else None),
            "kernel_name": loaded.lifted.kernel.name if loaded is not None and loaded.lifted is not None else None,
        }
    )


def header_values(header: Header, head_dim: int) -> dict[str, float | int]:
    """The values that the header's ``set`` lines give at a head dimension; lines that are no expression are left
    out.
    """
    values: dict[str, float | int] = {}
    for name, text in header.bindings.items():
        try:
            value = np.asarray(evaluate(parse_expr(text), {"D": head_dim})).item()
        except (ExprSyntaxError, UnboundName):
            continue
        values[name] = value
    return values


def _run(
    state: _State,
    kernel_path: str,
    spec_path: str,
    options: Options,
    checks: VerifyOptions,
    stages: Stages,
    diagnostics: list[Diagnostic],
) -> None:
    loaded = load(kernel_path, spec_path, options, checks.archs, stages, diagnostics)
    state.loaded = loaded
    if loaded is None or loaded.attention is None or loaded.failed:
        return
    kernel = loaded.lifted.kernel
    header = parse_header(loaded.data.decode("utf-8", "replace"))
    operands = {param: name for param, (name, _) in header.operands.items()}
    given = Given({**header_values(header, kernel.D), **options.bindings}, operands)
    bound = bind_kernel(kernel, loaded.attention, given)
    diagnostics.extend(bound.diagnostics)
    state.bindings = bound.binding.values
    if any(d.severity is Severity.ERROR for d in bound.diagnostics):
        stages.note("ir", "skipped", "parameters of the kernel have no value")
        return
    contract = extended(loaded.contract, kernel, bound.binding.operands) if loaded.contract is not None else None
    others = loaded.at_head_dim(
        loaded.source,
        lambda d: Given({**without_scales(header_values(header, d), kernel), **options.bindings}, operands),
        options,
    )
    subject = Subject(kernel_path, loaded.data, kernel, bound.binding, contract, others)
    verified = verify(subject, loaded.attention, loaded.program, checks, stages)
    diagnostics.extend(verified.diagnostics)
    state.report = verified.report
