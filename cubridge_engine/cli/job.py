"""Run a job in the worker and show where it is. Ctrl-C kills the worker."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any

from ..diagnostics import Diagnostic, make
from ..jobs import JobOutcome, Progress
from ..jobs import run_job as run_in_worker
from . import codes as codes

ENVIRONMENT_CODES = frozenset({"CB807"})  # the worker cannot be started


class JobFailed(Exception):
    """The job gave no result; carries the diagnostic and the exit code."""

    def __init__(self, diagnostic: Diagnostic, exit_code: int) -> None:
        super().__init__(diagnostic.message)
        self.diagnostic = diagnostic
        self.exit_code = exit_code

    @classmethod
    def of(cls, outcome: JobOutcome) -> JobFailed:
        """For a job that ended without a value."""
        found = outcome.diagnostics or (make("CB009"),)
        return cls(found[0], 3 if found[0].code in ENVIRONMENT_CODES else 1)


def run_job(task: str, params: Mapping[str, Any], args: argparse.Namespace, bar: bool = False) -> dict[str, Any]:
    """The task's JSON object. `bar`: its stages have a length worth seeing. Raises JobFailed, and KeyboardInterrupt
    when the user stops it.
    """
    with display(bar) as show:
        outcome = run_in_worker(
            task,
            params,
            on_progress=show,
            timeout_s=args.time_limit,
            memory_bytes=args.memory * 1024 * 1024 if args.memory else None,
        )
    if outcome.state == "cancelled":
        raise KeyboardInterrupt
    if outcome.value is None:
        raise JobFailed.of(outcome)
    return outcome.value


@contextmanager
def display(bar: bool = False) -> Generator[Progress]:
    """Shows progress while the body runs: a line that changes, with a bar in it where `bar` asks for one."""
    with _Display(bar) as shown:
        yield shown.update


class _Display:
    """A line that changes on a terminal; elsewhere one line per stage, on stderr."""

    def __init__(self, bar: bool = False) -> None:
        self._stage = ""
        self._bar = bar
        self._task: Any = None
        self._terminal = sys.stderr.isatty()
        self._status: Any = None
        self._before: Callable[..., Any] | int | None = None

    def __enter__(self) -> _Display:
        if self._terminal:
            from .render import console, progress_bar

            out = console(stderr=True)
            self._status = progress_bar(out) if self._bar else out.status("starting")
            self._task = self._status.add_task("starting", total=1.0) if self._bar else None
            self._status.start()
        # `kill` of the command must end the worker as Ctrl-C does.
        self._before = signal.signal(signal.SIGTERM, _interrupt)
        return self

    def __exit__(self, *exc: object) -> None:
        signal.signal(signal.SIGTERM, self._before)
        if self._status is not None:
            self._status.stop()

    def update(self, stage: str, fraction: float, message: str) -> None:
        """Called from the thread that reads the worker's events."""
        if self._task is not None:
            self._status.update(self._task, completed=fraction, description=f"{stage:<10} {message}")
        elif self._status is not None:
            self._status.update(f"{stage:<10} {fraction:4.0%}  {message}")
        elif stage != self._stage:
            print(f"cubridge: {stage}", file=sys.stderr, flush=True)
        self._stage = stage


def _interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt
