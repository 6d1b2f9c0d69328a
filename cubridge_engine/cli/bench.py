"""`cubridge bench KERNEL SPEC`: the kernel against what else computes the spec, on a GPU."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ..compile.size_text import SIZES
from ..diagnostics import Diagnostic, make
from ..results import ContenderResult, Measured
from . import codes as codes
from .arguments import BadArgument, job_params
from .job import JobFailed, run_job
from .output import diagnostics_of, print_diagnostics, print_json
from .render import columns, console
from .written import check_target, write_atomically


def shape_of(text: str | None) -> dict[str, int]:
    """``B=4,S=4096`` as sizes. Raises BadArgument (CB012)."""
    found: dict[str, int] = {}
    for part in (text or "").split(",") if text is not None else []:
        name, _, number = (piece.strip() for piece in part.partition("="))
        if name not in (*SIZES[:-1], "S") or not number.isdigit() or int(number) < 1:
            raise BadArgument(make("CB012", text=text or ""))
        found[name] = int(number)
    return found


def run(args: argparse.Namespace) -> int:
    """0 measured, 1 refused or wrong, 2 usage, 3 no GPU."""
    try:
        params = {**job_params(args), "shape": shape_of(args.shape), "dtype": args.dtype, "rounds": args.rounds}
        if args.out:
            check_target(Path(args.out), Path(args.kernel), args.force)
    except BadArgument as bad:
        print_diagnostics([bad.diagnostic])
        return 2
    try:
        result = Measured.model_validate(run_job("bench", params, args, bar=True))
    except JobFailed as failed:
        print_diagnostics([failed.diagnostic])
        return failed.exit_code
    problems = _write(args.out, result)
    if args.format == "json":
        print_json(result)
    else:
        _show(result)
        print_diagnostics([*diagnostics_of(result), *problems])
    return max(result.exit_code, 1 if problems else 0)


def _write(path: str | None, result: Measured) -> list[Diagnostic]:
    if not path or not result.contenders:
        return []
    try:
        write_atomically(Path(path), (json.dumps(result.model_dump(mode="json"), indent=2) + "\n").encode())
    except OSError as error:
        return [make("CB004", path=path, why=error.strerror or str(error))]
    return []


def _show(result: Measured) -> None:
    if not result.contenders:
        return
    out = console()
    sizes = " ".join(f"{name}={size}" for name, size in result.sizes.items()) or "the spec's example"
    out.print(f"{result.kernel.name} on {result.spec.name}: {sizes}, {result.dtype}", markup=False)
    out.print(f"{result.device}, torch {result.torch}, median of {result.rounds} launches in turns", markup=False)
    out.print()
    rows = [
        ("", "ms", "TFLOP/s", "kernel is", "error"),
        *(_row(one) for one in result.contenders if one.ms is not None),
    ]
    for line in columns(rows, right=(1, 2, 3, 4)):
        out.print(line, markup=False)
    for one in result.contenders:
        if one.ms is None:
            out.print(f"  {one.name} was not timed: {one.why}", markup=False)
    out.file.flush()


def _row(one: ContenderResult) -> tuple[str, ...]:
    assert one.ms is not None
    tflops = f"{one.tflops:.0f}" if one.tflops is not None else "-"
    ratio = f"{one.ratio:.2f}x as fast" if one.ratio is not None and one.name != "kernel" else ""
    return one.name, f"{one.ms:.4g}", tflops, ratio, f"{one.error:.1e}" if one.error is not None else "-"
