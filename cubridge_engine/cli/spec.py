"""`cubridge spec SPEC`: what a PyTorch spec means."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..diagnostics import Diagnostic, make
from ..results import SpecReading
from . import codes as codes
from .arguments import BadArgument, job_params
from .job import JobFailed, run_job
from .main import TILES
from .output import MACHINE, diagnostics_of, print_diagnostics, print_json
from .render import console
from .spec_page import show_page
from .tile_png import NoPicture, png_of


def run(args: argparse.Namespace) -> int:
    """0 understood, 1 refused, 2 usage."""
    try:
        params = job_params(args) | _tiles(args)
    except BadArgument as bad:
        print_diagnostics([bad.diagnostic])
        return 2
    try:
        result = SpecReading.model_validate(run_job("read_spec", params, args))
    except JobFailed as failed:
        print_diagnostics([failed.diagnostic])
        return failed.exit_code
    found = diagnostics_of(result)
    problem = _write_picture(args.tiles, result)
    if problem is not None:
        found.append(problem)
    if args.format == "json":
        print_json(result)
    elif args.format in MACHINE:
        MACHINE[args.format](found)
    else:
        if result.attention is not None:
            show_page(console(), result, explain=args.explain, picture=args.tiles if problem is None else None)
        print_diagnostics(found)
    return result.exit_code if problem is None else max(result.exit_code, 1)


def _tiles(args: argparse.Namespace) -> dict[str, Any]:
    """The tile map that is asked for. Raises BadArgument for a file that is no picture."""
    if args.tiles is None:
        return {}
    if Path(args.tiles).suffix.lower() not in (".svg", ".png"):
        raise BadArgument(make("CB011", path=args.tiles, why="its name says neither .svg nor .png"))
    sizes = {name: getattr(args, f"tile_{name}") for name in TILES}
    return {"tiles": {name: value for name, value in sizes.items() if value is not None}}


def _write_picture(path: str | None, result: SpecReading) -> Diagnostic | None:
    if path is None or result.tiles is None:
        return None
    try:
        if path.lower().endswith(".png"):
            Path(path).write_bytes(png_of(result.tiles))
        else:
            Path(path).write_text(result.tiles["svg"], encoding="utf-8")
    except OSError as error:
        return make("CB004", path=path, why=error.strerror or str(error))
    except NoPicture as missing:
        return make("CB011", path=path, why=str(missing))
    return None
