"""The table of jobs: name -> ``module:function``. A function takes ``(params, progress)`` and returns a JSON object.

`progress` is called as ``progress(stage, fraction, message)`` with fraction from 0 to 1. The functions are imported in
the worker only, which is what keeps torch out of the server and of the command line.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from typing import Any, cast

Progress = Callable[[str, float, str], None]
Task = Callable[[Mapping[str, Any], Progress], dict[str, Any]]

TASKS: dict[str, str] = {
    "adapt": "cubridge_engine.pipeline.tasks:adapt",
    "verify": "cubridge_engine.pipeline.tasks:verify",
    "lift": "cubridge_engine.pipeline.tasks:lift",
    "explain": "cubridge_engine.pipeline.tasks:explain",
    "diff": "cubridge_engine.pipeline.tasks:diff",
    "read_spec": "cubridge_engine.pipeline.tasks:read_spec",
    "spec_mask": "cubridge_engine.pipeline.tasks:spec_mask",
    "check": "cubridge_engine.pipeline.tasks:check",
    "contract": "cubridge_engine.pipeline.tasks:contract",
    "export": "cubridge_engine.pipeline.tasks:export",
    "bench": "cubridge_engine.pipeline.tasks:bench",
    "propose_question": "cubridge_engine.propose.asking:question",
    "propose_attempt": "cubridge_engine.propose.attempt:attempt",
    "warm_up": "cubridge_engine.jobs.tasks:warm_up",
}


def load(target: str) -> Task:
    """The function that ``module:function`` names. Raises ImportError or AttributeError when there is none."""
    module, _, name = target.partition(":")
    return cast(Task, getattr(importlib.import_module(module), name))


def warm_up(params: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Import the slow modules now (default: torch), so that the first real job does not wait for them."""
    for name in cast("list[str]", params.get("modules", ["torch"])):
        progress("warm up", 0.0, f"importing {name}")
        importlib.import_module(name)
    return {"pid": os.getpid()}
