"""The command ``cubridge.irDiff``: the CuIR of a kernel, and that of its adaptation as its own text is read."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from . import convert, engine, job

if TYPE_CHECKING:
    from .app import CubridgeServer


async def ir_diff(ls: CubridgeServer, argument: Any = None) -> dict[str, Any]:
    """``workspace/executeCommand cubridge.irDiff``: ``{state, message, kernel, before, after}`` of the last adaptation
    of ``kernel`` to ``spec``. Both are lifted from text: what is compared is what the kernels say, not what was meant.
    """
    request = job.parse_request("cubridge.irDiff", argument)
    if isinstance(request, job.Outcome):
        return _reply(request.state, request.message, "")
    path = convert.path_of(request.kernel)
    ready = ls.adaptations.of(path, convert.path_of(request.spec or ""))
    if ready is None:
        return _reply("refused", "This kernel was not adapted to this spec in this session.", request.kernel)
    before, after = await asyncio.to_thread(_texts, path, ready.base, ready.text.encode("utf-8", "surrogatepass"))
    if not before or not after:
        return _reply("refused", "The kernel or its adaptation could not be read as CuIR.", request.kernel)
    return _reply("done", "", request.kernel, before, after)


def _texts(path: str, base: bytes, adapted: bytes) -> tuple[str, str]:
    name, before = engine.program_text(path, base)
    return before, engine.program_text(path, adapted, name)[1]


def _reply(state: str, message: str, kernel: str, before: str = "", after: str = "") -> dict[str, Any]:
    return {"state": state, "message": message, "kernel": kernel, "before": before, "after": after}
