"""The tasks of the worker process: JSON-able parameters in, the JSON contract out (see `results`).

Parameters are those of the command line: ``kernel``, ``spec``, ``entry``, ``kernel_name``, ``head_dim``, ``bindings``,
``empty_rows``, ``archs``, ``seed``, ``use_gpu``, ``use_simulator``, ``rounds``, ``spec_time_limit``. Unknown ones are
an error of the caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..verify.stages import Progress
from ..verify.subject import VerifyOptions
from .files import Options

Params = Mapping[str, Any]

OPTION_NAMES = ("entry", "kernel_name", "head_dim", "bindings", "empty_rows", "spec_time_limit")
CHECK_NAMES = ("archs", "empty_rows", "seed", "use_gpu", "use_simulator", "rounds")
FILE_NAMES = ("kernel", "spec")


def options_of(params: Params) -> Options:
    """The reading options among `params`. Raises TypeError for a parameter that no task knows."""
    unknown = set(params) - {*OPTION_NAMES, *CHECK_NAMES, *FILE_NAMES}
    if unknown:
        raise TypeError(f"unknown parameters: {', '.join(sorted(unknown))}")
    given = {name: params[name] for name in OPTION_NAMES if params.get(name) is not None}
    if "spec_time_limit" in given:
        given["time_limit"] = given.pop("spec_time_limit")
    return Options(**given)


def checks_of(params: Params) -> VerifyOptions:
    """The verification options among `params`."""
    given = {name: params[name] for name in CHECK_NAMES if params.get(name) is not None}
    if "archs" in given:
        given["archs"] = tuple(given["archs"])
    return VerifyOptions(**given)


def adapt(params: Params, progress: Progress) -> dict[str, Any]:
    """An ``Adaptation`` (needs ``kernel`` and ``spec``)."""
    from .adapt import adapt as run

    return run(params["kernel"], params["spec"], options_of(params), checks_of(params), progress).model_dump(
        mode="json"
    )


def verify(params: Params, progress: Progress) -> dict[str, Any]:
    """A ``Verification`` (needs ``kernel`` and ``spec``)."""
    from .check import verify_kernel as run

    return run(params["kernel"], params["spec"], options_of(params), checks_of(params), progress).model_dump(
        mode="json"
    )


def lift(params: Params, progress: Progress) -> dict[str, Any]:
    """A ``Lifting`` (needs ``kernel``)."""
    from .readings import lift_kernel as run

    return run(params["kernel"], options_of(params), progress).model_dump(mode="json")


def read_spec(params: Params, progress: Progress) -> dict[str, Any]:
    """A ``SpecReading`` (needs ``spec``)."""
    from .readings import read_spec_file as run

    return run(params["spec"], options_of(params), progress).model_dump(mode="json")
