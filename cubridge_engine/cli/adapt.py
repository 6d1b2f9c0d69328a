"""`cubridge adapt KERNEL SPEC [-o OUT]`: adapt, verify, show the change and the report."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from ..diagnostics import Diagnostic, make
from ..results import Adaptation
from . import codes as codes
from .arguments import BadArgument, job_params
from .job import JobFailed, run_job
from .output import MACHINE, diagnostics_of, print_diagnostics, print_json
from .render import console, failing_cases, next_step, show_diff, show_report, show_stages


def run(args: argparse.Namespace) -> int:
    """0 adapted, 1 refused or failed, 2 usage, 3 environment."""
    try:
        params = job_params(args)
        if args.output:
            check_target(Path(args.output), Path(args.kernel), args.force)
    except BadArgument as bad:
        print_diagnostics([bad.diagnostic])
        return 2
    try:
        result = Adaptation.model_validate(run_job("adapt", params, args))
    except JobFailed as failed:
        print_diagnostics([failed.diagnostic])
        return failed.exit_code
    found = diagnostics_of(result)
    written, problems = _write(args, result)
    found += problems
    code = max(result.exit_code, 1 if problems else 0)
    result = result.model_copy(update={"written": written, "exit_code": code})
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


def check_target(output: Path, kernel: Path, force: bool) -> None:
    """Refuse the kernel itself and, without --force, any existing file. Raises BadArgument."""
    if output.exists():
        if kernel.exists() and output.samefile(kernel):
            raise BadArgument(make("CB003", path=str(output)))
        if not force:
            raise BadArgument(make("CB002", path=str(output)))


def _write(args: argparse.Namespace, result: Adaptation) -> tuple[str | None, list[Diagnostic]]:
    """Write the adapted text if asked to and if it may be used; returns where, and what went wrong."""
    if not args.output or result.text is None:
        return None, []
    stale = any(d.get("code") == "CB020" for d in result.diagnostics)
    if stale or (result.applicability == "sketch" and not args.force):
        return None, [make("CB006", level=result.level)]
    try:
        write_atomically(Path(args.output), result.text.encode(result.encoding))
    except OSError as error:
        return None, [make("CB004", path=args.output, why=error.strerror or str(error))]
    return args.output, []


def write_atomically(path: Path, data: bytes) -> None:
    """Write a whole file or nothing: into a neighbour first, then renamed. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


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
    if result.bindings:
        values = ", ".join(f"{name} = {value:g}" for name, value in result.bindings.items())
        out.print(f"  call it with {values}", markup=False)
    out.print()
    out.file.flush()
    print_diagnostics(found)
    if result.written:
        out.print(f"Written to {result.written}", markup=False)
    elif result.text is not None:
        out.print("Nothing was written.")
    out.print(next_step(result, result.written), markup=False)
