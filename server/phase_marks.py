"""The command ``cubridge.phases``: which lines belong to which phase of attention, for marks in gutter and ruler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import job

if TYPE_CHECKING:
    from .app import CubridgeServer

WAIT_S = 10.0


async def phase_marks(ls: CubridgeServer, argument: Any = None) -> dict[str, Any]:
    """``workspace/executeCommand cubridge.phases``: ``{version, legend, marks: [{phase, title, first, last}]}``, lines
    0-based and inclusive; of the present text, or no marks at all."""
    from .phases import PHASES

    request = job.parse_request("cubridge.phases", argument)
    if isinstance(request, job.Outcome):
        return {"version": None, "legend": PHASES, "marks": [], "message": request.message}
    document = await ls.documents.fresh(request.kernel, WAIT_S)
    reply: dict[str, Any] = {"version": document.version if document else None, "legend": PHASES, "marks": []}
    if document is None or document.reading is None or document.stale:
        return reply
    seen: dict[tuple[str, int, int], dict[str, Any]] = {}
    for view in document.reading.kernels:
        for step in view.steps:
            first, last = step.lines
            mark = {"phase": step.phase, "title": step.title, "first": first, "last": last}
            seen.setdefault((step.phase, first, last), mark)
    return reply | {"marks": list(seen.values())}
