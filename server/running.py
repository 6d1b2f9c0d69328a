"""Which task serves which request, so that a cancel reaches the job whatever way it comes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Generator
from dataclasses import dataclass, field


@dataclass(slots=True)
class Running:
    """Tasks of running commands by the id of their request. `request_id()` gives the id in the current context."""

    request_id: Callable[[], str | int | None]
    _tasks: dict[str | int, asyncio.Task[object]] = field(default_factory=dict[str | int, "asyncio.Task[object]"])

    @contextlib.contextmanager
    def current_task(self) -> Generator[None, None, None]:
        """While the body runs, a ``$/cancelRequest`` for the present request cancels the present task."""
        key, task = self.request_id(), asyncio.current_task()
        if key is None or task is None:
            yield
            return
        self._tasks[key] = task
        try:
            yield
        finally:
            self._tasks.pop(key, None)

    async def drain(self, timeout_s: float) -> None:
        """Cancel everything and wait for it, so that no request is left unanswered."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)

    def cancel(self, request: str | int) -> None:
        """Cancel the task of `request`, if one is running."""
        task = self._tasks.get(request)
        if task is not None:
            task.cancel()
