"""The commands ``cubridge.experts`` and ``cubridge.copyExpert``: start from a kernel that comes with CuBridge."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lsprotocol import types as t

from cubridge_engine.compile import Expert, copy_expert, experts
from cubridge_engine.diagnostics import Diagnostic, make

from . import convert, job, spec_reading

if TYPE_CHECKING:
    from .app import CubridgeServer


async def list_experts(ls: CubridgeServer, argument: Any = None) -> list[dict[str, Any]]:
    """``workspace/executeCommand cubridge.experts``: the bundled kernels, those that fit ``spec`` first. `unfit` says
    why one does not fit; it is '' too where what the spec needs is not known, because it was not read."""
    uri = job.field_of(argument, "spec")
    meaning = await _meaning(ls, convert.path_of(uri)) if isinstance(uri, str) else None
    found = await asyncio.to_thread(experts)
    rows = [_row(expert, meaning) for expert in found]
    return sorted(rows, key=lambda row: (bool(row["unfit"]), row["name"]))


def _row(expert: Expert, meaning: spec_reading.Meaning | None) -> dict[str, Any]:
    contract = expert.contract
    return {
        "name": expert.name,
        "summary": contract.summary,
        "dtypes": list(contract.dtypes),
        "head_dims": list(contract.head_dims),
        "archs": list(contract.archs),
        "masks": list(contract.masks),
        "gqa": contract.gqa,
        "tiles": [contract.br, contract.bc],
        "unfit": expert.unfit(meaning.dtype, meaning.head_dim) if meaning else "",
    }


async def _meaning(ls: CubridgeServer, path: str) -> spec_reading.Meaning | None:
    """What the spec means, read now if it was not; None where that is not allowed or did not work."""
    sha = convert.sha256(ls.documents.text(path).data)
    if ls.meanings.of(path, sha) is None and ls.settings.trusted:
        await spec_reading.read(ls, path)
    return ls.meanings.of(path, sha)


async def copy(ls: CubridgeServer, argument: Any = None) -> dict[str, Any]:
    """``workspace/executeCommand cubridge.copyExpert``: ``{state, message, kernel, spec}``. Copies the kernel ``name``
    (else the user is asked) with its contract to a new folder in ``folder`` (else where the spec is) and shows it."""
    name, folder, spec = (job.field_of(argument, key) for key in ("name", "folder", "spec"))
    place = _folder(ls, folder, spec)
    if place is None:
        return _refused(
            make("CB072", command="cubridge.copyExpert", problem="there is no `folder`, `spec` or workspace")
        )
    if not ls.settings.trusted:
        return _refused(make("CB071", job="copy"))
    rows = await list_experts(ls, argument)
    chosen = name if isinstance(name, str) else await _ask(ls, rows)
    if chosen is None:
        return {"state": "cancelled", "message": "", "kernel": "", "spec": spec}
    expert = next((item for item in await asyncio.to_thread(experts) if item.name == chosen), None)
    if expert is None:
        known = ", ".join(str(row["name"]) for row in rows) or "none"
        return _refused(make("CB079", name=chosen, known=known))
    try:
        written = await asyncio.to_thread(copy_expert, expert, Path(place))
    except OSError as error:
        return _refused(make("CB080", name=chosen, folder=place, problem=error.strerror or str(error)))
    uri = convert.uri_of(os.fspath(written))
    ls.forget_specs()
    if not ls.client.diff_editor and ls.client.show_document:
        await ls.window_show_document_async(t.ShowDocumentParams(uri=uri, take_focus=True))
    return {"state": "done", "message": "", "kernel": uri, "spec": spec}


def _refused(why: Diagnostic) -> dict[str, Any]:
    return {"state": "refused", "message": f"{why.code}: {why.message}", "kernel": "", "spec": None}


def _folder(ls: CubridgeServer, folder: object, spec: object) -> str | None:
    """Where to: the folder asked for, that of the spec, the first of the workspace."""
    if isinstance(folder, str):
        return convert.path_of(folder)
    if isinstance(spec, str):
        return os.path.dirname(convert.path_of(spec))
    return next(iter(ls.folders()), None)


async def _ask(ls: CubridgeServer, rows: list[dict[str, Any]]) -> str | None:
    actions = [t.MessageActionItem(title=str(row["name"])) for row in rows if not row["unfit"]]
    unfit = "; ".join(f"{row['name']} {row['unfit']}" for row in rows if row["unfit"])
    if not actions:
        ls.window_show_message(t.ShowMessageParams(t.MessageType.Info, f"CuBridge: no bundled kernel fits: {unfit}"))
        return None
    message = "CuBridge: start from which kernel?" + (f" ({unfit})" if unfit else "")
    params = t.ShowMessageRequestParams(type=t.MessageType.Info, message=message, actions=actions)
    choice = await ls.window_show_message_request_async(params)
    return choice.title if choice else None
