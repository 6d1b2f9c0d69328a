"""`cubridge adapt KERNEL SPEC [-o OUT]`: adapt, verify, show the change and the report."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from ..diagnostics import Diagnostic, Severity, make
from ..results import Adaptation
from . import codes as codes
from .arguments import BadArgument, job_params, model_options_given
from .job import JobFailed, run_job
from .output import MACHINE, diagnostics_of, print_diagnostics, print_json
from .render import (
    call_lines,
    console,
    derived_lines,
    failing_cases,
    next_step,
    proposed_lines,
    show_diff,
    show_report,
    show_stages,
)
from .written import check_output, check_target, is_folder, write_atomically, write_result


def run(args: argparse.Namespace) -> int:
    """0 adapted, 1 refused or failed, 2 usage, 3 environment."""
    try:
        params = job_params(args)
        if args.output:
            check_output(args.output, Path(args.kernel), args.force)
        if args.drop_in:
            check_target(Path(args.drop_in), Path(args.spec), args.force)
        if model_options_given(args):
            from .model import check_arguments

            check_arguments(args)
        target = _drop_in_target(args, _kernel_target(args))
        params["drop_in"] = Path(target).name if target is not None else ""
        if args.watch:
            params["watch"] = True
    except BadArgument as bad:
        print_diagnostics([bad.diagnostic])
        return 2
    try:
        result = Adaptation.model_validate(_adapted(params, args))
    except JobFailed as failed:
        print_diagnostics([failed.diagnostic])
        return failed.exit_code
    found = diagnostics_of(result)
    files, problems = _write(args, result)
    written = files[0] if files else None
    drop_in, more = _write_drop_in(args, result, written)
    problems += more
    found += problems
    code = max(result.exit_code, 1 if any(d.severity is Severity.ERROR for d in problems) else 0)
    result = result.model_copy(
        update={"written": written, "files_written": tuple(files), "drop_in_written": drop_in, "exit_code": code}
    )
    if args.format == "json":
        print_json(result)
    elif args.format == "diff":
        print_diagnostics(found)
        sys.stdout.write(result.diff)
    elif args.format in MACHINE:
        MACHINE[args.format](found)
    else:
        _show(result, found)
    return code


def _adapted(params: dict[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    """By rules; where these end and a model is named, with its proposals."""
    if not (args.model or args.replay):
        return run_job("adapt", params, args)
    from .model import adapt_with_model

    return adapt_with_model(params, args)


def _write(args: argparse.Namespace, result: Adaptation) -> tuple[list[str], list[Diagnostic]]:
    """Write the adapted text if asked to and if it may be used; returns where (the kernel first), and what went
    wrong.
    """
    if not args.output or result.text is None:
        return [], []
    stale = any(d.get("code") == "CB020" for d in result.diagnostics)
    if stale or (result.applicability == "sketch" and not args.force):
        return [], [make("CB006", level=result.level)]
    return write_result(args.output, Path(args.kernel), result, args.force)


def _kernel_target(args: argparse.Namespace) -> str | None:
    """Where the kernel's file goes, as far as is known before the job: the drop-in is named after it."""
    return str(Path(args.output, Path(args.kernel).name)) if args.output and is_folder(args.output) else args.output


def _drop_in_target(args: argparse.Namespace, kernel: str | None) -> str | None:
    """Where the drop-in goes: as asked for, or beside the adapted kernel."""
    return args.drop_in or (f"{Path(kernel).with_suffix('')}_drop_in.py" if kernel else None)


def _write_drop_in(
    args: argparse.Namespace, result: Adaptation, kernel: str | None
) -> tuple[str | None, list[Diagnostic]]:
    """Write the drop-in where it was asked for, or beside the kernel that was written."""
    target = _drop_in_target(args, kernel)
    if result.drop_in is None or target is None:
        return None, []
    if result.applicability == "sketch" and not args.force:
        return None, [make("CB006", level=result.level)] if args.drop_in and kernel is None else []
    try:
        if not args.drop_in:
            check_target(Path(target), Path(args.spec), args.force)
        write_atomically(Path(target), result.drop_in.encode())
    except BadArgument as bad:
        return None, [bad.diagnostic]
    except OSError as error:
        return None, [make("CB004", path=target, why=error.strerror or str(error))]
    return target, []


def _show(result: Adaptation, found: list[Diagnostic]) -> None:
    out = console()
    did = "adapted to" if result.text is not None else "not adapted to"
    out.print(f"{result.kernel.name} ({result.kernel_name or 'no kernel'}) {did} {result.spec.name}", markup=False)
    show_stages(out, result.stages)
    if result.diff:
        out.print()
        show_diff(out, result.diff)
    if result.report is not None:
        out.print()
        show_report(out, result.report)
        for line in failing_cases(result.report.cases):
            out.print(line, markup=False)
    for line in (*call_lines(result), *derived_lines(result)):
        out.print(line, markup=False)
    for line in proposed_lines(result):
        out.print(line, markup=False)
    out.print()
    out.file.flush()
    print_diagnostics(found)
    if result.drop_in is not None and result.drop_in_written is None:
        out.print("The drop-in file:\n", markup=False)
        out.print(result.drop_in, markup=False)
    if result.written:
        out.print(f"Written to {', '.join(result.files_written)}", markup=False)
    if result.drop_in_written:
        out.print(f"The drop-in is in {result.drop_in_written}", markup=False)
    elif result.text is not None and result.written is None:
        out.print("Nothing was written.")
    out.print(next_step(result, result.written), markup=False)
