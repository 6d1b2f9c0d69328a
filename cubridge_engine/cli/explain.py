"""`cubridge explain KERNEL`: a kernel in one paragraph, as mathematics, and as a table."""

from __future__ import annotations

import argparse
import shutil

from ..pipeline.before import look_up
from ..results_understood import Explained
from ..understand.page import WIDTH, markdown_page, text_page
from . import codes as codes
from .arguments import job_params
from .job import JobFailed, run_job
from .output import diagnostics_of, print_diagnostics, print_json
from .render import console


def run(args: argparse.Namespace) -> int:
    """0 its function is known, 1 it is not."""
    result = look_up(args.kernel, args.kernel_name, args.head_dim, args.watch)
    if result is None:
        try:
            result = Explained.model_validate(run_job("explain", job_params(args) | {"watch": args.watch}, args))
        except JobFailed as failed:
            print_diagnostics([failed.diagnostic])
            return failed.exit_code
    if args.format == "json":
        print_json(result)
        return result.exit_code
    out = console()
    if result.title:
        width = min(WIDTH, max(shutil.get_terminal_size().columns, 60))
        page = markdown_page(result) if args.format == "md" else text_page(result, width)
        out.print(page, markup=False, end="")
    out.file.flush()
    if not result.title:  # else the page itself says what was not understood
        print_diagnostics(diagnostics_of(result))
    return result.exit_code
