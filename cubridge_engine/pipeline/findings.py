"""`check`: what is wrong with a kernel, without a spec. Runs in a worker process; needs torch only for a spec."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..check import CheckConfig, Checked, Finding, check_file, config_for
from ..check.baseline import read_baseline, without_known, write_baseline
from ..check.fixes import compiles, verified
from ..check.on_request import Answered, Request, answer
from ..compile import Contract
from ..diagnostics import Diagnostic, Severity, diagnostic_to_json, make
from ..lift import Lifted, lift
from ..results import FindingResult, Findings
from ..source import SourceFile
from ..spec import read_spec
from ..spec.attention import Attention
from ..verify.stages import Progress, Stages
from .common import ENVIRONMENT_CODES, diagnostic_dicts
from .disagreeing import disagreement_findings
from .files import Options, contract_of, file_ref, lift_at, parse_kernel_file, read_file

STAGES = ("parse", "lift", "check", "watch", "fixes")


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """What is asked besides reading: `watch` executes the kernel; `expect` (words) or `spec` (a file) say what it is to
    compute. `baseline` is a file of known findings, `write_baseline` one to be written. `arch` is the target.
    """

    watch: bool = False
    expect: str = ""
    spec: str | None = None
    baseline: str | None = None
    write_baseline: str | None = None
    arch: str = ""


def check_kernel(
    kernel_path: str,
    options: Options | None = None,
    request: CheckRequest | None = None,
    progress: Progress = lambda *_: None,
) -> Findings:
    """Check a kernel file: all its kernels, or the one of `options`. Never raises for what it holds."""
    options, request = options or Options(), request or CheckRequest()
    stages = Stages(STAGES, progress)
    data, problems = read_file(kernel_path)
    if data is None:
        return _result(kernel_path, None, list(problems), stages, Checked(()), {})
    with stages.run("parse"):
        source = parse_kernel_file(kernel_path, data)
    config, wrong = config_for(Path(kernel_path))
    config = replace(config, arch=request.arch or config.arch)
    # Notes on how a kernel is read are for `lift`: here they would hide the findings.
    diagnostics = [d for d in (*source.diagnostics, *wrong) if d.severity >= Severity.WARNING]
    with stages.run("lift") as stage:
        lifts = _lifts(source, options)
        if all(one.kernel is None for one in lifts):
            stage.fail("no attention kernel was understood as a whole")
    first = next((one for one in lifts if one.kernel is not None), lifts[0] if lifts else None)
    contract, problems = contract_of(kernel_path, first.kernel if first is not None else None)
    diagnostics += problems
    answered = _on_request(kernel_path, data, first, contract, options, request, stages, diagnostics)
    with stages.run("check"):
        watched = answered is not None and request.watch
        checked = check_file(
            source, lifts, contract, config, answered.findings if answered is not None else (), watched=watched
        )
    checked, known = _against_baseline(checked, source, request, diagnostics)
    with stages.run("fixes"):
        fixed = _fixes(checked.findings, source, lifts, contract, config)
    rest = {
        "kernel_name": first.kernel.name if first is not None and first.kernel is not None else None,
        "known": known,
    }
    rest |= _answered(answered, request, checked)
    return _result(kernel_path, data, diagnostics, stages, replace(checked, findings=fixed), rest)


def _lifts(source: SourceFile, options: Options) -> tuple[Lifted, ...]:
    if options.kernel_name is not None or options.head_dim is not None:
        return (lift_at(source, options.kernel_name, options.head_dim),)
    return tuple(lift(source, kernel=function.name) for function in source.kernels())


def _on_request(
    path: str,
    data: bytes,
    lifted: Lifted | None,
    contract: Contract | None,
    options: Options,
    request: CheckRequest,
    stages: Stages,
    diagnostics: list[Diagnostic],
) -> Answered | None:
    if lifted is None or not (request.watch or request.expect or request.spec):
        return None
    expected: Attention | None = None
    if request.spec is not None:
        spec = read_spec(request.spec, **options.reading(), head_dim=options.head_dim)
        diagnostics += spec.diagnostics
        expected = spec.attention
        if expected is None:
            return None
    with stages.run("watch"):
        asked = Request(request.watch, request.expect, expected, request.arch)

        def tick(share: float, text: str) -> None:
            stages.tick("watch", share * 1000, 1000, text)

        found = answer(path, data, lifted, contract, asked, tick)
    diagnostics += found.diagnostics
    # Where the numbers are wrong the finding says at which step; what they look like as a function says nothing more.
    right = not any(f.method == "watching" and f.severity is Severity.ERROR for f in found.findings)
    if request.watch and found.launches and lifted.coverage.complete and right:
        told = disagreement_findings(path, data, lifted, contract, options, stages)
        found = replace(found, findings=(*found.findings, *told))
    return found


def _against_baseline(
    checked: Checked, source: SourceFile, request: CheckRequest, diagnostics: list[Diagnostic]
) -> tuple[Checked, int]:
    """Without the findings of the baseline, and how many those are; writes one where that is asked."""
    texts = {source.path: source.data}
    if request.write_baseline is not None:
        target = Path(request.write_baseline)
        try:
            write_baseline(target, checked.findings, texts)
        except OSError as error:
            diagnostics.append(make("CB896", None, path=str(target), why=error.strerror or str(error)))
    if request.baseline is None:
        return checked, 0
    path = Path(request.baseline)
    known, problems = read_baseline(path)
    diagnostics += problems
    new, old = without_known(checked.findings, known, texts, path.absolute().parent)
    return replace(checked, findings=tuple(new)), len(old)


def _fixes(
    found: Sequence[Finding],
    source: SourceFile,
    lifts: Sequence[Lifted],
    contract: Contract | None,
    config: CheckConfig,
) -> tuple[Finding, ...]:
    """The findings, with a fix only where the changed text is known to be better."""
    names = [one.kernel.name for one in lifts if one.kernel is not None]
    name = names[0] if len(names) == 1 else None

    def offered(item: Finding) -> bool:
        return verified(source, item, contract, config, name) and compiles(source, item, contract)

    return tuple(f if f.fix is None or offered(f) else replace(f, fix=None) for f in found)


def _answered(answered: Answered | None, request: CheckRequest, checked: Checked) -> dict[str, Any]:
    if answered is None:
        return {"notes": checked.notes}
    watched = request.watch and answered.launches > 0
    return {
        "watched": watched,
        "launches": answered.launches,
        "cases": answered.cases,
        "notes": (*checked.notes, *answered.notes),
    }


def _result(
    path: str,
    data: bytes | None,
    diagnostics: list[Diagnostic],
    stages: Stages,
    checked: Checked,
    rest: dict[str, Any],
) -> Findings:
    everything = [*diagnostics, *checked.diagnostics]
    return Findings.model_validate(
        {
            "command": "check",
            "diagnostics": diagnostic_dicts(everything),
            "stages": tuple(stages.done),
            "exit_code": _exit_code(diagnostics, checked),
            "kernel": file_ref(path, data),
            "read": checked.read and data is not None,
            "findings": tuple(_finding(f) for f in checked.findings),
            "suppressed": tuple(_finding(f) for f in checked.suppressed),
            **rest,
        }
    )


def _exit_code(diagnostics: Sequence[Diagnostic], checked: Checked) -> int:
    """1 for findings of level error; 2 for an expectation that cannot be read; 3 when the environment is at fault."""
    errors = [d for d in diagnostics if d.severity is Severity.ERROR]
    if any(d.code in ("CB875", "CB893") for d in errors):
        return 2
    if any(f.severity is Severity.ERROR for f in checked.findings):
        return 1
    if errors and all(d.code in ENVIRONMENT_CODES for d in errors):
        return 3
    return 1 if errors else 0


def _finding(found: Finding) -> FindingResult:
    table = diagnostic_to_json(found.diagnostic)
    fix = found.fix
    edits = [{"span": asdict(e.span), "text": e.text} for e in fix.edits] if fix is not None else []
    return FindingResult.model_validate(
        {
            **table,
            "kind": found.kind,
            "confidence": found.confidence,
            "method": found.method,
            "fix": {"title": fix.title, "edits": edits} if fix is not None else None,
        }
    )
