"""`cubridge export KERNEL --torch OUT.py`: the kernel as a PyTorch operator, in one file."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..diagnostics import Diagnostic, make
from ..results import Exporting
from . import codes as codes
from .arguments import BadArgument, job_params
from .job import JobFailed, run_job
from .output import diagnostics_of, print_diagnostics, print_json
from .render import console
from .written import check_target, write_atomically


def run(args: argparse.Namespace) -> int:
    """0 written, 1 refused, 2 usage, 3 environment."""
    try:
        params = {**job_params(args), "target": args.output, "name": args.name}
        check_target(Path(args.output), Path(args.kernel), args.force)
    except BadArgument as bad:
        print_diagnostics([bad.diagnostic])
        return 2
    try:
        result = Exporting.model_validate(run_job("export", params, args))
    except JobFailed as failed:
        print_diagnostics([failed.diagnostic])
        return failed.exit_code
    written, problems = _write(args.output, result)
    code = max(result.exit_code, 1 if problems else 0)
    result = result.model_copy(update={"written": written, "exit_code": code})
    if args.format == "json":
        print_json(result)
        return code
    _show(result)
    print_diagnostics([*diagnostics_of(result), *problems])
    return code


def _write(path: str, result: Exporting) -> tuple[str | None, list[Diagnostic]]:
    if result.text is None:
        return None, []
    try:
        write_atomically(Path(path), result.text.encode())
    except OSError as error:
        return None, [make("CB004", path=path, why=error.strerror or str(error))]
    return path, []


def _show(result: Exporting) -> None:
    if result.written is None:
        return
    out = console()
    name = result.operator.rpartition("::")[2]
    out.print(f"{result.kernel.name} ({result.kernel_name}) as torch.ops.cubridge.{name}", markup=False)
    level = result.level or "none: `cubridge verify` tells"
    out.print(f"  level of the kernel: {level}", markup=False)
    out.print(f"Written to {result.written}", markup=False)
    module = Path(result.written).stem
    out.print(f"Next: from {module} import {name}; o = {name}({', '.join(result.inputs)})", markup=False)
    out.file.flush()
