"""`cubridge lift KERNEL`: what a kernel does, as CuIR."""

from __future__ import annotations

import argparse
from typing import Any

from ..results import Lifting
from . import codes as codes
from .arguments import job_params
from .job import JobFailed, run_job
from .output import diagnostics_of, print_diagnostics, print_json
from .render import console


def run(args: argparse.Namespace) -> int:
    """0 understood, 1 not."""
    try:
        result = Lifting.model_validate(run_job("lift", job_params(args), args))
    except JobFailed as failed:
        print_diagnostics([failed.diagnostic])
        return failed.exit_code
    if args.format == "json":
        print_json(result)
        return result.exit_code
    out = console()
    if result.summary:
        out.print(result.summary, markup=False)
    for name, value in result.coverage.items():
        out.print(f"  {name}: {_short(value)}", markup=False)
    if result.cuir:
        out.print()
        out.print(result.cuir, markup=False)
    out.file.flush()
    print_diagnostics(diagnostics_of(result))
    return result.exit_code


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, list | tuple | dict) and len(str(value)) > 100:
        return f"{len(value)} entries"
    return str(value)
