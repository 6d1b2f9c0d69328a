"""`cubridge check KERNEL`: what is wrong with this kernel?"""

from __future__ import annotations

import argparse

from ..diagnostics import Diagnostic, Severity, diagnostic_from_json
from ..results import Findings
from . import codes as codes
from .arguments import BadArgument, job_params
from .job import JobFailed, run_job
from .output import MACHINE, diagnostics_of, print_diagnostics, print_json
from .render import console

_OPTIONS = ("watch", "expect", "spec", "baseline", "write_baseline")


def run(args: argparse.Namespace) -> int:
    """0 nothing found that is proven wrong, 1 findings, 2 usage, 3 environment."""
    try:
        params = job_params(args)
    except BadArgument as bad:
        print_diagnostics([bad.diagnostic])
        return 2
    params |= {name: getattr(args, name) for name in _OPTIONS if getattr(args, name)}
    if (archs := params.pop("archs", None)) is not None:
        params["arch"] = archs[0]
    try:
        result = Findings.model_validate(run_job("check", params, args, bar=bool(args.watch)))
    except JobFailed as failed:
        print_diagnostics([failed.diagnostic])
        return failed.exit_code
    if args.format == "json":
        print_json(result)
    elif args.format in MACHINE:
        MACHINE[args.format](_with_fixes(result))
    else:
        _show(result, args.write_baseline)
    return result.exit_code


def _with_fixes(result: Findings) -> list[Diagnostic]:
    """All diagnostics, in the order of the text."""
    return sorted(diagnostics_of(result), key=lambda d: (d.span is None, d.span.start if d.span is not None else 0))


def _show(result: Findings, written: str | None) -> None:
    print_diagnostics(_with_fixes(result))
    out = console()
    for item in result.findings:
        if item.fix is not None and item.span is not None:
            out.print(f"line {item.span['line'] + 1}: a fix that was tried: {item.fix.title}", markup=False)
    for note in result.notes:
        out.print(f"not looked at: {note}", markup=False)
    if not result.read:
        out.print("the kernel was not read as a whole: its softmax, masks and ranges were not checked", markup=False)
    out.print(_summary(result), markup=False)
    if written is not None and result.exit_code != 2:
        out.print(f"the findings are now the baseline {written}", markup=False)


def _summary(result: Findings) -> str:
    """``2 errors, 1 warning; 1 suppressed; watched: 24 launches``."""
    found = [diagnostic_from_json(item.model_dump()) for item in result.findings]
    words = ((Severity.ERROR, "error"), (Severity.WARNING, "warning"), (Severity.NOTE, "note"))
    counts = [(sum(d.severity is level for d in found), word) for level, word in words]
    parts = [", ".join(f"{n} {word}{'s' if n > 1 else ''}" for n, word in counts if n) or "nothing found"]
    if result.suppressed:
        parts.append(f"{len(result.suppressed)} ignored by comments")
    if result.known:
        parts.append(f"{result.known} of the baseline")
    if result.watched:
        parts.append(f"watched: {result.launches} launches")
    return f"{result.kernel.name}: {'; '.join(parts)}"
