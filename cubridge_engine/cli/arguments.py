"""From the parsed command line to the parameters of a job."""

from __future__ import annotations

import argparse
import os
from typing import Any

from ..compile.limits import parse_arch
from ..diagnostics import Diagnostic, make
from . import codes as codes


class BadArgument(Exception):
    """The command line cannot be used; carries the diagnostic."""

    def __init__(self, diagnostic: Diagnostic) -> None:
        super().__init__(diagnostic.message)
        self.diagnostic = diagnostic


def bindings_of(texts: list[str]) -> dict[str, float | int]:
    """``["causal=1", "scale=0.5"]`` as numbers. Raises BadArgument (CB005)."""
    result: dict[str, float | int] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        words = {"true": 1, "false": 0}
        try:
            number = words.get(value.lower())
            number = number if number is not None else int(value) if value.lstrip("+-").isdigit() else float(value)
        except ValueError:
            raise BadArgument(make("CB005", text=text)) from None
        if not equals or not name.strip().isidentifier():
            raise BadArgument(make("CB005", text=text))
        result[name.strip()] = number
    return result


def archs_of(text: str | None) -> list[str] | None:
    """``sm_80,sm_90`` as a list. Raises BadArgument (CB008)."""
    if text is None:
        return None
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if parse_arch(name) is None:
            raise BadArgument(make("CB008", text=name))
    return names


def outputs_of(text: str) -> list[int]:
    """``0,2`` as a list. Raises BadArgument (CB010)."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names or not all(name.isdigit() for name in names):
        raise BadArgument(make("CB010", text=text))
    return [int(name) for name in names]


MODEL_OPTIONS = ("model", "replay", "model_url", "transcript", "budget_usd")


def model_options_given(args: argparse.Namespace) -> bool:
    """True when anything about a model is on the command line."""
    return any(getattr(args, name) is not None for name in MODEL_OPTIONS)


def job_params(args: argparse.Namespace) -> dict[str, Any]:
    """Parameters of the job of this command (see `pipeline.tasks`). Paths stay as the user wrote them. Raises
    BadArgument.
    """
    given = vars(args)
    params: dict[str, Any] = {}
    for name in ("kernel", "spec", "entry", "kernel_name", "head_dim", "empty_rows", "seed"):
        if given.get(name) is not None:
            params[name] = given[name]
    if given.get("outputs") is not None:
        params["outputs"] = outputs_of(given["outputs"])
    if given.get("score_mod") is not None or given.get("mask_mod") is not None:
        from ..spec.flex_mods import entry_of  # the rooms of specs take as long to load as all other commands together

        params["entry"] = entry_of(given.get("score_mod"), given.get("mask_mod"))
    if given.get("time_limit") is not None:
        # The user's code gets a part of the time: a loop in it is then reported at its line, before the whole job is
        # stopped.
        params["spec_time_limit"] = min(20.0, given["time_limit"] / 2)
    if "bindings" in given:
        params["bindings"] = bindings_of(given["bindings"])
    if "arch" in given:
        params["archs"] = archs_of(given["arch"])
    if "no_gpu" in given:
        params["use_gpu"] = not given["no_gpu"] and not os.environ.get("CUBRIDGE_NO_GPU")
    if "no_simulator" in given:
        params["use_simulator"] = not given["no_simulator"] and not os.environ.get("CUBRIDGE_NO_SIMULATOR")
    return params
