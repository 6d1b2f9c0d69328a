"""`cubridge verify KERNEL SPEC`: is this kernel, whoever wrote it, the attention of this spec?"""

from __future__ import annotations

import argparse

from ..diagnostics import Diagnostic
from ..results import Verification
from . import codes as codes
from .arguments import BadArgument, job_params
from .job import JobFailed, run_job
from .output import MACHINE, diagnostics_of, print_diagnostics, print_json
from .render import call_lines, console, failing_cases, next_step, show_report, show_stages


def run(args: argparse.Namespace) -> int:
    """0 verified as far as this machine can, 1 rejected, 2 usage, 3 environment."""
    try:
        params = job_params(args)
        if args.watch:
            params["watch"] = True
    except BadArgument as bad:
        print_diagnostics([bad.diagnostic])
        return 2
    try:
        result = Verification.model_validate(run_job("verify", params, args))
    except JobFailed as failed:
        print_diagnostics([failed.diagnostic])
        return failed.exit_code
    found = diagnostics_of(result)
    if args.format == "json":
        print_json(result)
    elif args.format in MACHINE:
        MACHINE[args.format](found)
    else:
        _show(result, found)
    return result.exit_code


def _show(result: Verification, found: list[Diagnostic]) -> None:
    out = console()
    out.print(f"{result.kernel.name} ({result.kernel_name or 'no kernel'}) against {result.spec.name}", markup=False)
    show_stages(out, result.stages)
    if result.report is not None:
        out.print()
        show_report(out, result.report)
        for line in failing_cases(result.report.cases):
            out.print(line, markup=False)
    for line in call_lines(result):
        out.print(line, markup=False)
    out.print()
    out.file.flush()
    print_diagnostics(found)
    out.print(next_step(result, None), markup=False)
