"""What the caller of a job holds: the handle while it runs, the outcome when it ended."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal

from ..diagnostics import Diagnostic, make
from .tasks import Progress

State = Literal["done", "failed", "cancelled"]


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """How a job ended. `value` is the task's JSON object when `state` is ``done``; otherwise `diagnostics` says why.

    `stderr`: the last lines that the job wrote to its standard output and error, oldest first.
    """

    state: State
    value: dict[str, Any] | None = None
    diagnostics: tuple[Diagnostic, ...] = ()
    stderr: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Job:
    """What was asked for: `timeout_s` in seconds, `memory_bytes` of resident memory; None is no limit."""

    task: str
    target: str
    params: dict[str, Any]
    on_progress: Progress | None = None
    timeout_s: float | None = None
    memory_bytes: int | None = None


class JobHandle:
    """A submitted job. `future` resolves to a `JobOutcome`; it never raises and is never cancelled by itself."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.future: Future[JobOutcome] = Future()
        self._lock = threading.Lock()
        self._begun = False
        self._cancel = False
        self._wake: Callable[[], None] | None = None

    def cancel(self) -> None:
        """Stop the job: queued, it never starts; running, it stops or its process is killed. Returns at once."""
        with self._lock:
            self._cancel = True
            queued, wake = not self._begun and not self.future.done(), self._wake
            if queued:
                self.future.set_result(cancelled(self.job))
        if wake is not None:
            wake()

    @property
    def cancel_requested(self) -> bool:
        """Whether `cancel` was called."""
        return self._cancel

    def done(self) -> bool:
        """Whether the outcome is there."""
        return self.future.done()

    def result(self, timeout: float | None = None) -> JobOutcome:
        """Wait for the outcome. Raises TimeoutError after `timeout` seconds; the job goes on then."""
        return self.future.result(timeout)

    # --- for the worker ---

    def begin(self) -> bool:
        """Take the job off the queue; False when it was cancelled there."""
        with self._lock:
            self._begun = not self._cancel
            return self._begun

    def attach(self, wake: Callable[[], None]) -> None:
        """How `cancel` wakes whoever watches the running job."""
        self._wake = wake

    def finish(self, outcome: JobOutcome) -> None:
        """Publish the outcome."""
        self._wake = None
        self.future.set_result(outcome)


def cancelled(job: Job) -> JobOutcome:
    """The outcome of a cancelled job."""
    return JobOutcome("cancelled", None, (make("CB804", task=job.task),))
