"""Formats shared by the commands: diagnostics as text, SARIF or GitHub annotations; results as JSON."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from pydantic import BaseModel

from .. import __version__
from ..diagnostics import (
    Diagnostic,
    diagnostic_from_json,
    render_text,
    to_github,
    to_sarif,
    wants_colour,
)
from ..results import Result

ROOMS = (
    "source",
    "ir",
    "lift",
    "spec",
    "transfer",
    "lower",
    "compile",
    "device",
    "simulate",
    "bind",
    "verify",
    "check",
    "export",
    "pipeline",
    "jobs",
    "cli",
)


def diagnostics_of(result: Result) -> list[Diagnostic]:
    """The diagnostics of a result that came from the worker."""
    return [diagnostic_from_json(item) for item in result.diagnostics]


def print_json(model: BaseModel) -> None:
    """The JSON contract on stdout."""
    print(json.dumps(model.model_dump(mode="json"), indent=2))


def sources_of(diagnostics: Sequence[Diagnostic]) -> dict[str, bytes]:
    """The files that diagnostics speak of, as far as they can be read."""
    spans = [span for d in diagnostics for span in (d.span, *(r.span for r in d.related)) if span is not None]
    found: dict[str, bytes] = {}
    for path in dict.fromkeys(span.path for span in spans):
        try:
            found[path] = Path(path).read_bytes()
        except OSError:
            continue
    return found


def print_sarif(diagnostics: Sequence[Diagnostic]) -> None:
    """SARIF 2.1.0 on stdout; paths below the current folder are relative to it."""
    # The rules of a SARIF log come from the catalogue, which every room fills when it is imported.
    for room in ROOMS:
        importlib.import_module(f"cubridge_engine.{room}.codes")
    importlib.import_module("cubridge_engine.ir.validate")
    log = to_sarif(diagnostics, sources_of(diagnostics), root=os.getcwd(), version=__version__)
    print(json.dumps(log, indent=2))


def print_github(diagnostics: Sequence[Diagnostic]) -> None:
    """GitHub workflow commands on stdout."""
    sys.stdout.write(to_github(diagnostics, sources_of(diagnostics), root=os.getcwd()))


MACHINE: dict[str, Callable[[Sequence[Diagnostic]], None]] = {"sarif": print_sarif, "github": print_github}


def print_diagnostics(diagnostics: Sequence[Diagnostic]) -> None:
    """Diagnostics for people, on stderr, with the user's lines."""
    if diagnostics:
        text = render_text(diagnostics, sources_of(diagnostics), colour=wants_colour(sys.stderr))
        print(text.rstrip("\n"), file=sys.stderr, flush=True)
