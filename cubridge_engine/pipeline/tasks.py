"""The tasks of the worker process: JSON-able parameters in, the JSON contract out (see `results`).

Parameters are those of the command line: ``kernel``, ``spec``, ``entry``, ``kernel_name``, ``head_dim``, ``bindings``,
``outputs``, ``drop_in`` (its file's name), ``empty_rows``, ``archs``, ``seed``, ``use_gpu``, ``use_simulator``,
``rounds``, ``spec_time_limit``. Unknown ones are an error of the caller.
``texts`` (path -> text) is what an editor holds of files that are not saved: read in place of what is on disk.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from ..source import overlay
from ..verify.stages import Progress
from ..verify.subject import VerifyOptions
from .files import Options

Params = Mapping[str, Any]

OPTION_NAMES = ("entry", "kernel_name", "head_dim", "bindings", "empty_rows", "spec_time_limit", "outputs", "drop_in")
CHECK_NAMES = ("archs", "empty_rows", "seed", "use_gpu", "use_simulator", "rounds")
FILE_NAMES = ("kernel", "spec", "texts")
NOT_READ = frozenset({"CB023", "CB027"})  # the kernel, or a part of it, was not understood


def options_of(params: Params) -> Options:
    """The reading options among `params`. Raises TypeError for a parameter that no task knows."""
    unknown = set(params) - {*OPTION_NAMES, *CHECK_NAMES, *FILE_NAMES}
    if unknown:
        raise TypeError(f"unknown parameters: {', '.join(sorted(unknown))}")
    given = {name: params[name] for name in OPTION_NAMES if params.get(name) is not None}
    if "spec_time_limit" in given:
        given["time_limit"] = given.pop("spec_time_limit")
    if "outputs" in given:
        given["outputs"] = tuple(given["outputs"])
    return Options(**given)


def checks_of(params: Params) -> VerifyOptions:
    """The verification options among `params`."""
    given = {name: params[name] for name in CHECK_NAMES if params.get(name) is not None}
    if "archs" in given:
        given["archs"] = tuple(given["archs"])
    return VerifyOptions(**given)


Task = Callable[[Params, Progress], dict[str, Any]]


def _with_torch(task: Task) -> Task:
    """`task`, with torch imported first: where that is the job's longest wait, the user is told."""

    @wraps(task)
    def run(params: Params, progress: Progress) -> dict[str, Any]:
        if "torch" not in sys.modules:
            progress("start", 0.0, "importing torch")
            importlib.import_module("torch")
        return task(params, progress)

    return run


def _with_texts(task: Task) -> Task:
    """`task`, reading the editor's texts where it was given some."""

    @wraps(task)
    def run(params: Params, progress: Progress) -> dict[str, Any]:
        with overlay(params.get("texts") or {}):
            return task(params, progress)

    return run


@_with_torch
@_with_texts
def adapt(params: Params, progress: Progress) -> dict[str, Any]:
    """An ``Adaptation`` (needs ``kernel`` and ``spec``; with ``watch`` a kernel that reading does not understand is
    watched).
    """
    from .adapt import adapt as run

    others = {name: value for name, value in params.items() if name != "watch"}
    given = (params["kernel"], params["spec"], options_of(others), checks_of(others), progress)
    result = run(*given)
    if params.get("watch") and any(d.get("code") in NOT_READ for d in result.diagnostics):
        from .graft import graft

        result = graft(*given)
    return result.model_dump(mode="json")


@_with_torch
@_with_texts
def verify(params: Params, progress: Progress) -> dict[str, Any]:
    """A ``Verification`` (needs ``kernel`` and ``spec``; with ``watch`` a kernel that reading does not understand is
    compiled and run alone).
    """
    from .check import verify_kernel as run

    others = {name: value for name, value in params.items() if name != "watch"}
    given = (params["kernel"], params["spec"], options_of(others), checks_of(others), progress)
    result = run(*given)
    if params.get("watch") and any(d.get("code") in NOT_READ for d in result.diagnostics):
        from .graft_verify import verify_watched

        result = verify_watched(*given)
    return result.model_dump(mode="json")


@_with_texts
def lift(params: Params, progress: Progress) -> dict[str, Any]:
    """A ``Lifting`` (needs ``kernel``)."""
    from .readings import lift_kernel as run

    return run(params["kernel"], options_of(params), progress).model_dump(mode="json")


@_with_texts
def explain(params: Params, progress: Progress) -> dict[str, Any]:
    """An ``Explained`` (needs ``kernel``; with ``watch`` it is compiled, and run in the simulator, too)."""
    from .explain import explain_kernel as run

    others = {name: value for name, value in params.items() if name != "watch"}
    watch = bool(params.get("watch", False))
    return run(params["kernel"], options_of(others), progress, watch=watch).model_dump(mode="json")


@_with_texts
def diff(params: Params, progress: Progress) -> dict[str, Any]:
    """A ``Diffed`` (needs ``a`` and ``b``, the two files; ``kernel_name`` is a's, ``b_kernel_name`` b's)."""
    from .diff import diff_kernels as run

    others = {name: value for name, value in params.items() if name not in ("a", "b", "b_kernel_name")}
    names = (params["a"], params["b"])
    return run(*names, options_of(others), params.get("b_kernel_name"), progress).model_dump(mode="json")


@_with_texts
def check(params: Params, progress: Progress) -> dict[str, Any]:
    """A ``Findings`` (needs ``kernel``; takes ``watch expect spec baseline write_baseline arch``)."""
    from .findings import CheckRequest
    from .findings import check_kernel as run

    names = ("watch", "expect", "spec", "baseline", "write_baseline", "arch")
    own = {name: params[name] for name in names if params.get(name) is not None}
    others = {name: value for name, value in params.items() if name not in names}
    if "spec" in own and "torch" not in sys.modules:
        progress("start", 0.0, "importing torch")
        importlib.import_module("torch")
    return run(params["kernel"], options_of(others), CheckRequest(**own), progress).model_dump(mode="json")


@_with_texts
def contract(params: Params, progress: Progress) -> dict[str, Any]:
    """A ``Bound`` (needs ``kernel``; ``answers``, ``record``, ``trial``, ``again``, ``arch``, ``seconds``, ``write``,
    ``force``).
    """
    from .contract import ContractRequest
    from .contract import find_contract as run

    names = ("answers", "record", "trial", "again", "arch", "seconds", "write", "force")
    own = {name: params[name] for name in names if params.get(name) is not None}
    others = {name: value for name, value in params.items() if name not in names}
    return run(params["kernel"], options_of(others), ContractRequest(**own), progress).model_dump(mode="json")


@_with_texts
def export(params: Params, progress: Progress) -> dict[str, Any]:
    """An ``Exporting`` (needs ``kernel`` and ``target``, the file to be written; ``name`` of the operator)."""
    from .export import export_kernel as run

    others = {name: value for name, value in params.items() if name not in ("target", "name")}
    found = run(params["kernel"], params["target"], params.get("name"), options_of(others), progress)
    return found.model_dump(mode="json")


@_with_torch
@_with_texts
def bench(params: Params, progress: Progress) -> dict[str, Any]:
    """A ``Measured`` (needs ``kernel`` and ``spec``; ``shape``, ``dtype`` and ``rounds`` say what is measured)."""
    from .bench import Request
    from .bench import bench as run

    own = {name: params[name] for name in ("shape", "dtype", "rounds") if params.get(name) is not None}
    others = {name: value for name, value in params.items() if name not in ("shape", "dtype", "rounds")}
    found = run(params["kernel"], params["spec"], Request(**own), options_of(others), progress)
    return found.model_dump(mode="json")


@_with_torch
@_with_texts
def read_spec(params: Params, progress: Progress) -> dict[str, Any]:
    """A ``SpecReading`` (needs ``spec``; ``tiles`` asks for the tile map at Sq, Sk, Br, Bc, b and h)."""
    from .readings import read_spec_file as run

    others = {name: value for name, value in params.items() if name != "tiles"}
    return run(params["spec"], options_of(others), progress, params.get("tiles")).model_dump(mode="json")


@_with_torch
@_with_texts
def spec_mask(params: Params, progress: Progress) -> dict[str, Any]:
    """The tile map of a spec's mask (needs ``spec``; ``sizes`` may hold Sq, Sk, Br, Bc, b and h)."""
    from .mask_map import spec_mask as run

    progress("spec", 0.0, "")
    others = {name: value for name, value in params.items() if name != "sizes"}
    return run(params["spec"], options_of(others), params.get("sizes") or {})
