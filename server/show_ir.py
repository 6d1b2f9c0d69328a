"""The command ``cubridge.showIr``: a kernel's CuIR as text in the reply and, for editors without a view, as a file."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING, Any

from lsprotocol import types as t

from . import convert, job

if TYPE_CHECKING:
    from .app import CubridgeServer

WAIT_S = 10.0


async def show_ir(ls: CubridgeServer, argument: Any = None) -> dict[str, Any]:
    """``workspace/executeCommand cubridge.showIr``: ``{state, message, kernel, text, stale}``."""
    request = job.parse_request("cubridge.showIr", argument)
    if isinstance(request, job.Outcome):
        job.tell(ls, request)
        return {"state": request.state, "message": request.message, "text": "", "stale": False}
    document = await ls.documents.fresh(request.kernel, WAIT_S)
    reading = document.reading if document else None
    reply: dict[str, Any] = {
        "state": "done" if reading and reading.kernel else "refused",
        "message": "" if reading and reading.kernel else "No kernel was understood in this file.",
        "kernel": request.kernel,
        "text": reading.kernel.ir if reading and reading.kernel else "",
        "stale": bool(document and document.stale),
    }
    if reply["text"] and not ls.client.diff_editor and ls.client.show_document:
        folder = tempfile.mkdtemp(prefix="cubridge-ir-")
        path = os.path.join(folder, convert.base_name(convert.path_of(request.kernel)) + ".cuir")
        with open(path, "w", encoding="utf-8") as file:
            file.write(reply["text"])
        await ls.window_show_document_async(t.ShowDocumentParams(uri=convert.uri_of(path), take_focus=True))
    elif reply["message"]:
        ls.window_show_message(t.ShowMessageParams(t.MessageType.Info, f"CuBridge: {reply['message']}"))
    return reply
