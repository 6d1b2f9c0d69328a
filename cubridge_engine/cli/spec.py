"""`cubridge spec SPEC`: what a PyTorch spec means."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from ..results import SpecReading
from . import codes as codes
from .arguments import job_params
from .job import JobFailed, run_job
from .output import MACHINE, diagnostics_of, print_diagnostics, print_json
from .render import console

PARTS = ("score", "mask", "fill", "sink", "head_map", "normaliser", "empty_rows")


def run(args: argparse.Namespace) -> int:
    """0 understood, 1 refused."""
    try:
        result = SpecReading.model_validate(run_job("read_spec", job_params(args), args))
    except JobFailed as failed:
        print_diagnostics([failed.diagnostic])
        return failed.exit_code
    found = diagnostics_of(result)
    if args.format == "json":
        print_json(result)
    elif args.format in MACHINE:
        MACHINE[args.format](found)
    else:
        if result.attention is not None:
            _show(result.spec.name, result.attention)
        print_diagnostics(found)
    return result.exit_code


def _show(name: str, attention: Mapping[str, Any]) -> None:
    out = console()
    out.print(f"{name}: {attention['name']}", markup=False)
    lines: Mapping[str, int] = attention["lines"]
    for part in PARTS:
        value = attention[part]
        if value is None or (part == "fill" and attention["mask"] is None):
            continue
        where = f"   (line {lines[part] + 1})" if part in lines else ""
        out.print(f"  {part:<11}{value}{where}", markup=False)
    for item in attention["inputs"]:
        out.print(f"  {item['role']:<11}{item['name']}[{', '.join(item['axes'])}] {item['dtype']}", markup=False)
    for item in attention["outputs"]:
        out.print(f"  returns    {item['role']}[{', '.join(item['axes'])}] {item['dtype']}", markup=False)
    if attention["specialised"]:
        fixed = ", ".join(f"{k} = {v}" for k, v in attention["specialised"].items())
        out.print(f"  for        {fixed} only", markup=False)
    out.file.flush()
