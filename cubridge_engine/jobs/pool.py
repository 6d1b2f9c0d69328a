"""`Worker`: jobs one after another in a process of their own, which is killed and replaced when needed."""

from __future__ import annotations

import contextlib
import logging
import queue
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..diagnostics import Diagnostic, Span, make
from ..source import TextIndex
from .handle import Job, JobHandle, JobOutcome, cancelled
from .process import WorkerProcess
from .tasks import TASKS, Progress

LOG = logging.getLogger("cubridge.jobs")
_POLL_S = 0.05  # how often limits are looked at; a cancel wakes the watcher at once
_GRACE_S = 0.15  # for a cancelled job to stop by itself


class Worker:
    """A queue of jobs and the process that runs them. Thread-safe. The process starts with the first job.

    The process stays warm between jobs (torch is imported once). A limit, a crash, or a cancel that the job does not
    follow at once ends it; the next job starts a fresh one. `close` ends it for good; a `Worker` is a context manager.
    """

    def __init__(
        self,
        *,
        tasks: Mapping[str, str] = TASKS,
        python: str = sys.executable,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """`tasks`: name -> ``module:function``; `python`: the interpreter; `env`: additions to the environment."""
        self._tasks, self._python, self._env = dict(tasks), python, dict(env or {})
        self._queue: queue.SimpleQueue[JobHandle | None] = queue.SimpleQueue()
        self._process: WorkerProcess | None = None
        self._closed = False
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._running: JobHandle | None = None
        self._jobs = 0

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """Process id of the worker, None while there is none."""
        process = self._process
        return process.pid if process is not None and process.alive else None

    def run(
        self,
        task: str,
        params: Mapping[str, Any],
        *,
        on_progress: Progress | None = None,
        timeout_s: float | None = None,
        memory_bytes: int | None = None,
    ) -> JobHandle:
        """Queue a job. `on_progress(stage, fraction, message)` is called in order, from the worker's own thread.

        The limits count from the moment the job starts. Whatever goes wrong becomes a diagnostic of the outcome
        (CB801 to CB808); this raises RuntimeError only on a closed worker.
        """
        target = self._tasks.get(task, "")
        handle = JobHandle(Job(task, target, dict(params), on_progress, timeout_s, memory_bytes))
        if not target:
            handle.finish(_failed(make("CB806", task=task, known=", ".join(sorted(self._tasks)))))
            return handle
        with self._lock:
            if self._closed:
                raise RuntimeError("the worker is closed")
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="cubridge-jobs", daemon=True)
                self._thread.start()
        self._queue.put(handle)
        return handle

    def warm_up(self, modules: tuple[str, ...] = ("torch",)) -> JobHandle:
        """Start the process and import the slow modules, ahead of the first job."""
        return self.run("warm_up", {"modules": list(modules)})

    def close(self) -> None:
        """Kill the process; running and queued jobs end as cancelled."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            thread, running = self._thread, self._running
        if running is not None:
            running.cancel()
        self._queue.put(None)
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=5)

    # --- in the thread of the worker ---

    def _serve(self) -> None:
        while (handle := self._queue.get()) is not None:
            if not handle.begin():
                continue
            self._running = handle
            try:
                outcome = cancelled(handle.job) if self._closed else self._execute(handle)
            except Exception as error:
                LOG.exception("the job %s failed in the parent", handle.job.task)
                outcome = _failed(make("CB805", task=handle.job.task, error=f"{type(error).__name__}: {error}"))
            self._running = None
            handle.finish(outcome)
        if self._process is not None:
            self._process.kill()
            self._process = None

    def _execute(self, handle: JobHandle) -> JobOutcome:
        # An idle worker may have been killed from outside, which shows only now: then once more with a fresh one.
        outcome = self._attempt(handle)
        if isinstance(outcome, WorkerProcess):
            outcome = self._attempt(handle)
        return self._crash(handle, outcome) if isinstance(outcome, WorkerProcess) else outcome

    def _attempt(self, handle: JobHandle) -> JobOutcome | WorkerProcess:
        """One try; the process when it was gone before it began the job."""
        job = handle.job
        try:
            process = self._ensure()
        except OSError as error:
            return _failed(make("CB807", python=self._python, reason=error.strerror or str(error)))
        self._jobs += 1
        try:
            process.send({"job": self._jobs, "target": job.target, "params": job.params})
        except OSError:
            return self._end(process)
        except (TypeError, ValueError) as error:
            return _failed(make("CB808", task=job.task, reason=str(error)))
        handle.attach(lambda: process.events.put({"event": "wake"}))
        return self._watch(handle, process, self._jobs)

    def _ensure(self) -> WorkerProcess:
        if self._process is None or not self._process.alive:
            if self._process is not None:
                self._process.kill()
            self._process = WorkerProcess(self._python, self._env)
        else:
            self._process.tail.clear()  # of a fresh one it may already say why it failed
        return self._process

    def _watch(self, handle: JobHandle, process: WorkerProcess, number: int) -> JobOutcome | WorkerProcess:
        """Pass on events and enforce the limits until the job ends, one way or another; the process: it never began."""
        job, begun = handle.job, False
        started = looked = time.monotonic()
        while True:
            event: dict[str, Any] = {}
            with contextlib.suppress(queue.Empty):
                event = process.events.get(timeout=_POLL_S)
            if handle.cancel_requested:
                self._stop(process, number)
                return cancelled(handle.job)
            kind = event.get("event")
            if kind == "end" or (kind is None and not process.alive):
                return self._crash(handle, process) if begun else self._end(process)
            if event.get("job") == number:
                begun = True
                if kind == "result":
                    return JobOutcome("done", event["value"], (), tuple(process.tail))
                if kind == "error":
                    found = make("CB805", task=job.task, error=event["error"], traceback=event["traceback"])
                    return JobOutcome("failed", None, (found,), tuple(process.tail))
                _report(job, event)
            now = time.monotonic()
            if job.timeout_s is not None and now - started > job.timeout_s:
                return self._too_long(job, process)
            if job.memory_bytes is not None and now - looked >= _POLL_S:
                looked = now
                if (used := process.memory()) > job.memory_bytes:
                    self._end(process)
                    found = make("CB802", task=job.task, used=used >> 20, limit=job.memory_bytes >> 20)
                    return JobOutcome("failed", None, (found,), tuple(process.tail))

    def _stop(self, process: WorkerProcess, number: int) -> None:
        """Ask the job to stop at its next progress. What does not, or leaves processes behind, is killed."""
        with contextlib.suppress(OSError):
            process.send({"cancel": number})
        deadline = time.monotonic() + (0 if self._closed else _GRACE_S)
        while (left := deadline - time.monotonic()) > 0 and process.alive:
            event: dict[str, Any] = {}
            with contextlib.suppress(queue.Empty):
                event = process.events.get(timeout=left)
            if event.get("job") == number and event["event"] in ("stopped", "result", "error"):
                if process.has_children():
                    break
                return
        self._end(process)

    def _too_long(self, job: Job, process: WorkerProcess) -> JobOutcome:
        tail = tuple(process.tail)
        place = process.where()
        self._end(process)
        at = f"; it was at {Path(place[0]).name}:{place[1]}" if place else ""
        found = make("CB801", _line_span(*place) if place else None, task=job.task, limit=job.timeout_s, at=at)
        return JobOutcome("failed", None, (found,), tail)

    def _crash(self, handle: JobHandle, process: WorkerProcess) -> JobOutcome:
        how = process.reap()
        self._end(process)
        tail = tuple(process.tail)
        if handle.cancel_requested:
            return cancelled(handle.job)
        line = next((line.strip() for line in reversed(tail) if line.strip()), "")
        last = f"its last words: {line}" if line else "its log is empty"
        found = make("CB803", task=handle.job.task, how=how, last=last, stderr="\n".join(tail[-20:]))
        return JobOutcome("failed", None, (found,), tail)

    def _end(self, process: WorkerProcess) -> WorkerProcess:
        process.kill()
        self._process = None
        return process


def _report(job: Job, event: Mapping[str, Any]) -> None:
    if job.on_progress is None or event.get("event") != "progress":
        return
    try:
        job.on_progress(event["stage"], event["fraction"], event["message"])
    except Exception:
        LOG.exception("the progress callback of %s failed", job.task)


def _failed(diagnostic: Diagnostic) -> JobOutcome:
    return JobOutcome("failed", None, (diagnostic,))


def _line_span(path: str, line: int) -> Span | None:
    """The span of the 1-based `line` of the file at `path`, None when it cannot be read."""
    try:
        index = TextIndex(Path(path).read_bytes())
    except (OSError, ValueError):
        return None
    end = index.line_end(line - 1)
    text = index.line_bytes(line - 1)
    start = end - len(text.lstrip())
    return Span(path, start, end, *index.locate(start), *index.locate(end))
