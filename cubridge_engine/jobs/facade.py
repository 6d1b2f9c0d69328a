"""The two ways to run a job: `run_job` waits (command line), `AsyncWorker.submit` is awaited (language server)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from .handle import JobOutcome
from .pool import Worker
from .tasks import Progress


def run_job(
    task: str,
    params: Mapping[str, Any],
    *,
    on_progress: Progress | None = None,
    timeout_s: float | None = None,
    memory_bytes: int | None = None,
    worker: Worker | None = None,
) -> JobOutcome:
    """Run one job and wait. Without `worker` a process is started for it and ended after it.

    Ctrl-C kills the job and raises KeyboardInterrupt.
    """
    if worker is None:
        with Worker() as own:
            return run_job(
                task, params, on_progress=on_progress, timeout_s=timeout_s, memory_bytes=memory_bytes, worker=own
            )
    handle = worker.run(task, params, on_progress=on_progress, timeout_s=timeout_s, memory_bytes=memory_bytes)
    try:
        return handle.result()
    except KeyboardInterrupt:
        handle.cancel()
        raise


class AsyncWorker:
    """A `Worker` for one event loop: progress is called in the loop, cancelling the awaiting task kills the job."""

    def __init__(self, worker: Worker | None = None) -> None:
        self.worker = worker if worker is not None else Worker()

    async def submit(
        self,
        task: str,
        params: Mapping[str, Any],
        *,
        on_progress: Progress | None = None,
        timeout_s: float | None = None,
        memory_bytes: int | None = None,
    ) -> JobOutcome:
        """Run one job. Progress calls come before the return. Raises CancelledError after having killed the job."""
        loop = asyncio.get_running_loop()

        def forward(stage: str, fraction: float, message: str) -> None:
            if on_progress is not None and not loop.is_closed():
                loop.call_soon_threadsafe(on_progress, stage, fraction, message)

        handle = self.worker.run(task, params, on_progress=forward, timeout_s=timeout_s, memory_bytes=memory_bytes)
        try:
            # shielded: the future belongs to the worker's thread, which resolves it in any case
            return await asyncio.shield(asyncio.wrap_future(handle.future))
        except asyncio.CancelledError:
            handle.cancel()
            raise

    async def warm_up(self) -> JobOutcome:
        """Start the process and import torch there, ahead of the first job."""
        return await asyncio.wrap_future(self.worker.warm_up().future)

    async def close(self) -> None:
        """Kill the process, without blocking the loop."""
        await asyncio.to_thread(self.worker.close)
