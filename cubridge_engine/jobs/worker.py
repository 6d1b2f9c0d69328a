"""The worker process: ``python -m cubridge_engine.jobs.worker``. One job at a time, in the main thread.

Requests come as JSON lines on what was stdin, events go out as JSON lines on what was stdout. Both are moved away to
private descriptors first: whatever user code prints (from Python or C) ends in stderr, and what it reads is empty.
A job that is asked to stop does so at its next progress, from where it raises `Stopped`. When the parent goes away, the
whole process group ends.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import queue
import signal
import sys
import threading
import traceback
from typing import Any, BinaryIO

from .tasks import load


class Stopped(BaseException):
    """The parent has cancelled the job. No `Exception`: nothing on the way may take it for a failure of its own."""


def main() -> int:
    """Serve until the parent closes the pipe."""
    requests_in, events_out = _private_streams()
    faulthandler.enable()
    if hasattr(signal, "SIGUSR1"):
        # The parent asks "where are you" before it stops a job that takes too long.
        faulthandler.register(signal.SIGUSR1, all_threads=False, chain=False)
    pending: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    cancelled: set[int] = set()
    threading.Thread(target=_receive, args=(requests_in, pending, cancelled), daemon=True).start()
    send = _Sender(events_out)
    send({"event": "ready", "pid": os.getpid()})
    while True:
        _run(pending.get(), send, cancelled)


class _Sender:
    """Writes one event per line; callable from any thread of a task."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._lock = threading.Lock()

    def __call__(self, event: dict[str, Any]) -> None:
        line = json.dumps(event).encode("utf-8") + b"\n"
        with self._lock:
            self._out.write(line)
            self._out.flush()


def _private_streams() -> tuple[BinaryIO, BinaryIO]:
    requests_in = os.fdopen(os.dup(0), "rb")
    events_out = os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return requests_in, events_out


def _receive(requests_in: BinaryIO, pending: queue.SimpleQueue[dict[str, Any]], cancelled: set[int]) -> None:
    for line in requests_in:
        request = json.loads(line)
        if "cancel" in request:
            cancelled.add(request["cancel"])
        else:
            pending.put(request)
    # The parent is gone. Compilers that a job started are in our process group and go with us.
    if hasattr(os, "killpg") and os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


def _run(request: dict[str, Any], send: _Sender, cancelled: set[int]) -> None:
    job = request["job"]

    def progress(stage: str, fraction: float, message: str = "") -> None:
        if job in cancelled:
            raise Stopped
        send({"event": "progress", "job": job, "stage": stage, "fraction": float(fraction), "message": message})

    send({"event": "begun", "job": job})
    try:
        value = load(request["target"])(request["params"], progress)
        send({"event": "result", "job": job, "value": value})
    except Stopped:
        send({"event": "stopped", "job": job})
    except BaseException as error:
        traceback.print_exc(file=sys.stderr)
        with contextlib.suppress(OSError):
            sys.stderr.flush()
        text = f"{type(error).__name__}: {error}"
        send({"event": "error", "job": job, "error": text, "traceback": traceback.format_exc()})


if __name__ == "__main__":
    sys.exit(main())
