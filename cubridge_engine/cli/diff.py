"""`cubridge diff A B`: do two kernels compute the same function, and how do they go about it?"""

from __future__ import annotations

import argparse

from ..results import Diffed
from ..understand.page import diff_page
from . import codes as codes
from .arguments import job_params
from .job import JobFailed, run_job
from .output import diagnostics_of, print_diagnostics, print_json
from .render import console


def run(args: argparse.Namespace) -> int:
    """0 the same function, 1 another one or not decided."""
    params = job_params(args) | {"a": args.a, "b": args.b}
    if args.b_kernel_name is not None:
        params["b_kernel_name"] = args.b_kernel_name
    try:
        result = Diffed.model_validate(run_job("diff", params, args))
    except JobFailed as failed:
        print_diagnostics([failed.diagnostic])
        return failed.exit_code
    if args.format == "json":
        print_json(result)
        return result.exit_code
    out = console()
    out.print(diff_page(result), markup=False, end="")
    out.file.flush()
    if result.same is None:
        print_diagnostics(diagnostics_of(result))
    return result.exit_code
