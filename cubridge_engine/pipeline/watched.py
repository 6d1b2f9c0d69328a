"""A kernel compiled and watched in the simulator, by its contract or by what binding finds out without running it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ..bind import BindOptions, bind
from ..compile import Contract
from ..diagnostics import Diagnostic
from ..lift import Lifted
from ..verify.stages import Stages
from ..watch import Watched, watch_contract
from .files import Options


def run_watched(
    path: str, data: bytes, lifted: Lifted, contract: Contract | None, options: Options, stages: Stages
) -> Watched:
    """Watch the kernel of the file at `path`, which holds `data`. Where it cannot be run, ``ran`` is False and the
    diagnostics say why. No code of the user's runs outside the simulator.
    """
    name = lifted.kernel.name if lifted.kernel is not None else options.kernel_name or ""
    problems: tuple[Diagnostic, ...] = ()
    with stages.run("watch") as stage:
        if contract is None:
            bound = bind(path, data, BindOptions(kernel=name))
            contract, problems = bound.contract, bound.diagnostics
        if contract is None or not contract.instances:
            stage.fail("how to call the kernel is not known")
            return Watched(name, path, "", None, False, None, diagnostics=problems)
        here = replace(contract, source=str(Path(path).resolve()))
        done = {"compile": 0, "simulate": 1, "match": 9}
        found = watch_contract(
            here, source=data, progress=lambda what, part: stages.tick("watch", done.get(what, 0) + part, 10, what)
        )
        if not found.ran:
            stage.fail("; ".join(d.message for d in found.diagnostics) or "it did not run")
        elif found.function is None:
            stage.fail("its output is no attention function that is known")
    return found
