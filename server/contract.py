"""The command ``cubridge.contract``: how a kernel is called, where each fact is from, and what only the user knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import diagnostics, job, kernel_job, toml_notes

if TYPE_CHECKING:
    from .app import CubridgeServer


async def contract(ls: CubridgeServer, argument: Any = None) -> dict[str, Any]:
    """``workspace/executeCommand cubridge.contract``. With ``write`` the contract is written beside the kernel, never
    over an existing one without ``force``; ``answers`` are those to earlier questions."""
    outcome = await kernel_job.run(ls, "contract", argument)
    job.tell(ls, outcome)
    if outcome.result.get("written"):
        diagnostics.publish(ls, toml_notes.beside(outcome.kernel))
        ls.documents.check_again()
    return outcome.reply()
