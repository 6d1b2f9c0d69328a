"""Work-done progress of one job: stages with a percentage, and the client's cancel button wired to the job's task."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from lsprotocol import types as t

if TYPE_CHECKING:
    from .app import CubridgeServer

LOG = logging.getLogger(__name__)
CREATE_TIMEOUT_S = 2.0  # a client that never answers the create request must not hold up the job


class Progress:
    """Reports to one token; silent when the client shows no progress."""

    def __init__(self, ls: CubridgeServer, token: str | None) -> None:
        self._ls = ls
        self._token = token
        self._percentage = 0
        self.outcome = "done"

    def report(self, stage: str, fraction: float, message: str = "") -> None:
        """`fraction` in 0..1 of the whole job; it never goes back."""
        if self._token is None:
            return
        self._percentage = max(self._percentage, min(100, round(100 * fraction)))
        text = f"{stage}: {message}" if message else stage
        self._ls.work_done_progress.report(
            self._token, t.WorkDoneProgressReport(message=text, percentage=self._percentage, cancellable=True)
        )


@contextlib.asynccontextmanager
async def job_progress(ls: CubridgeServer, title: str, token: str | None) -> AsyncGenerator[Progress, None]:
    """Show `title` while the body runs; a cancel by the user cancels the current task.

    `token` is the caller's own work-done token, if it brought one; else one is created with the client.
    """
    token = token or await _create(ls)
    task = asyncio.current_task()
    progress = Progress(ls, token)
    if token is None or task is None:
        yield progress
        return
    ls.work_done_progress.begin(token, t.WorkDoneProgressBegin(title=title, cancellable=True, percentage=0))
    cancel = ls.work_done_progress.tokens[token]
    cancel.add_done_callback(lambda future: task.cancel() if future.cancelled() else None)
    try:
        yield progress
    except asyncio.CancelledError:
        progress.outcome = "cancelled"
        raise
    finally:
        ls.work_done_progress.tokens.pop(token, None)
        ls.work_done_progress.end(token, t.WorkDoneProgressEnd(message=progress.outcome))


async def _create(ls: CubridgeServer) -> str | None:
    if not ls.client.progress:
        return None
    token = f"cubridge-{uuid.uuid4()}"
    try:
        await asyncio.wait_for(ls.work_done_progress.create_async(token), CREATE_TIMEOUT_S)
    except Exception as error:  # refused or unanswered: go on without showing progress
        LOG.info("no progress: %r", error)
        return None
    return token
