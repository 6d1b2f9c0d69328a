"""The commands ``cubridge.explain`` and ``cubridge.compare``: what a kernel is, and how two kernels differ, in
sentences with their lines. They are made in the worker: an explanation executes the lifted program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import job, kernel_job, observed

if TYPE_CHECKING:
    from .app import CubridgeServer


async def explain(ls: CubridgeServer, argument: Any = None) -> dict[str, Any]:
    """``workspace/executeCommand cubridge.explain``; with ``watch`` the kernel is run in the simulator too."""
    outcome = await kernel_job.run(ls, "explain", argument)
    observed.keep(ls, outcome)
    job.tell(ls, outcome)
    return outcome.reply()


async def compare(ls: CubridgeServer, argument: Any = None) -> dict[str, Any]:
    """``workspace/executeCommand cubridge.compare``: how ``kernel`` and ``other`` differ."""
    outcome = await kernel_job.run(ls, "compare", argument)
    job.tell(ls, outcome)
    return outcome.reply()
