"""The command ``cubridge.verify``: verify the kernel as it stands, adapted by us or by hand, against a spec."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lsprotocol import types as t

from . import convert, job

if TYPE_CHECKING:
    from .app import CubridgeServer


async def verify(ls: CubridgeServer, argument: Any = None) -> dict[str, Any]:
    """``workspace/executeCommand cubridge.verify``. The findings become diagnostics; the reply carries the report."""
    outcome = await job.run(ls, "verify", argument)
    job.tell(ls, outcome)
    if outcome.state == "done" and not ls.client.diff_editor:
        level, spec = outcome.result.get("level"), convert.base_name(outcome.spec)
        text = f"CuBridge: {convert.base_name(outcome.kernel)} equals {spec}, level {level}"
        ls.window_show_message(t.ShowMessageParams(t.MessageType.Info, text))
    return outcome.reply()
