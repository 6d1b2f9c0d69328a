"""Which kernel a panel is about, and how far what is known of it belongs to the present text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import job

if TYPE_CHECKING:
    from .app import CubridgeServer
    from .documents import Document
    from .engine import KernelView

WAIT_S = 10.0

Range = tuple[int, int]  # first and last line, 0-based


@dataclass(frozen=True, slots=True)
class LookedAt:
    """`head` are the fields that every reply about an open kernel has; `view` is None when there is nothing to show."""

    head: dict[str, Any]
    document: Document | None = None
    view: KernelView | None = None

    def lines(self, lines: Range | None) -> list[int] | None:
        """Lines of the reading at their present place; None when an edit touched one of the ends."""
        if lines is None or self.document is None:
            return None
        first, last = self.document.shown(lines[0]), self.document.shown(lines[1])
        return None if first is None or last is None or last < first else [first, last]


async def look(ls: CubridgeServer, command: str, argument: Any) -> LookedAt:
    """The kernel that `argument` names: in a file with several, the one around its ``line`` (0-based). Waits for the
    reading of the present text, for ten seconds at most.
    """
    request = job.parse_request(command, argument)
    if isinstance(request, job.Outcome):
        return LookedAt(_head(request.state, request.message, ""))
    document = await ls.documents.fresh(request.kernel, WAIT_S)
    if document is None or document.reading is None:
        return LookedAt(_head("refused", "This kernel is not open in the editor.", request.kernel))
    line = job.field_of(argument, "line")
    around = document.read_line(line) if isinstance(line, int) else None
    view = document.reading.covering(around, around) if around is not None else None
    view = view or document.reading.kernel
    state, message = ("done", "") if view else ("refused", "No kernel was understood in this file.")
    found = LookedAt(_head(state, message, request.kernel, document), document, view)
    if view is not None:
        found.head["span"] = found.lines((view.span.line, view.span.end_line))
        found.head["kernels"] = len(document.reading.kernels)
    return found


def _head(state: str, message: str, kernel: str, document: Document | None = None) -> dict[str, Any]:
    return {
        "state": state,
        "message": message,
        "kernel": kernel,
        "version": document.version if document else None,
        "stale": bool(document and document.stale),
        "span": None,
        "kernels": 0,
    }
