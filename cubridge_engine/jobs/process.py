"""One worker process as the parent sees it: its events, its last words, what it uses, and its end."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import re
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, cast

import psutil

LOG = logging.getLogger("cubridge.worker")
_ROOT = str(Path(__file__).resolve().parents[2])
_FRAME = re.compile(r'^\s*File "(.+)", line (\d+) in (\S+)')
# The tensors of the grid are small: on a busy machine, threads waiting for each other cost twenty times what they save.
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_CHILDREN_EVERY_S = 0.5  # listing children reads all of /proc


class WorkerProcess:
    """A started worker. `events` yields the worker's events, ``{"event": "end"}`` when its pipe closes."""

    def __init__(self, python: str, env: Mapping[str, str]) -> None:
        """Raises OSError when `python` cannot be started."""
        installed = python == sys.executable and sysconfig.get_path("purelib") == _ROOT
        paths = [*([] if installed else [_ROOT]), *filter(None, [os.environ.get("PYTHONPATH")])]
        # -P: modules of the folder we happen to be in must not shadow ours
        safe = ["-P"] if sys.version_info >= (3, 11) else []
        self._popen = subprocess.Popen(
            [python, *safe, "-m", "cubridge_engine.jobs.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**_ONE_THREAD, **os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1", **env},
            start_new_session=True,
        )
        self.pid = self._popen.pid
        self.events: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.tail: deque[str] = deque(maxlen=60)
        self._ps = psutil.Process(self.pid)
        self._children: list[psutil.Process] = []
        self._children_at = 0.0
        out, err = cast("IO[bytes]", self._popen.stdout), cast("IO[bytes]", self._popen.stderr)
        threading.Thread(target=self._read_events, args=(out,), daemon=True).start()
        self._stderr_reader = threading.Thread(target=self._read_stderr, args=(err,), daemon=True)
        self._stderr_reader.start()

    def _read_events(self, out: IO[bytes]) -> None:
        with contextlib.suppress(OSError, ValueError):
            for line in out:
                self.events.put(json.loads(line))
        self.events.put({"event": "end"})

    def _read_stderr(self, err: IO[bytes]) -> None:
        with contextlib.suppress(OSError, ValueError):
            for line in err:
                text = line.decode("utf-8", "replace").rstrip()
                self.tail.append(text)
                LOG.debug("%s", text)

    def send(self, request: dict[str, Any]) -> None:
        """Send one request. Raises OSError when the worker is gone, TypeError or ValueError for what is not JSON."""
        stdin = cast("IO[bytes]", self._popen.stdin)
        stdin.write(json.dumps(request).encode("utf-8") + b"\n")
        stdin.flush()

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._popen.poll() is None

    def has_children(self) -> bool:
        """Whether a process that the worker started still runs."""
        return bool(self._descendants())

    def memory(self) -> int:
        """Resident bytes of the worker and of the processes it started (those looked up every half second)."""
        now = time.monotonic()
        if now - self._children_at > _CHILDREN_EVERY_S:
            self._children_at = now
            self._children = self._descendants()
        total = 0
        for process in (self._ps, *self._children):
            with contextlib.suppress(psutil.Error):
                total += process.memory_info().rss
        return total

    def where(self, wait_s: float = 0.15) -> tuple[str, int] | None:
        """(file, 1-based line) that the job's main thread is executing, the user's own file if one is on the stack."""
        if not hasattr(signal, "SIGUSR1") or not self.alive:
            return None
        self.tail.clear()
        self._popen.send_signal(signal.SIGUSR1)
        deadline = time.monotonic() + wait_s
        frames: list[tuple[str, int]] = []
        while time.monotonic() < deadline:
            time.sleep(0.02)
            found = [match for match in map(_FRAME.match, list(self.tail)) if match]
            frames = [(match.group(1), int(match.group(2))) for match in found]
            if any(path.endswith("worker.py") for path, _ in frames):  # the outermost frames: the dump is complete
                break
        own = (frame for frame in frames if "site-packages" not in frame[0] and not _is_ours_or_python(frame[0]))
        return next(own, None)

    def kill(self) -> None:
        """End the worker and everything it started, now, and reap it."""
        descendants = self._descendants()
        if hasattr(os, "killpg"):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            self._popen.kill()
        for process in descendants:  # those that left the process group
            with contextlib.suppress(psutil.Error):
                process.kill()
        self.reap()

    def reap(self) -> str:
        """How the process ended: ``exit status 3``, ``signal SIGSEGV``. Waits a moment for its last words."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(timeout=2)
        self._stderr_reader.join(timeout=0.3)
        with contextlib.suppress(OSError):
            cast("IO[bytes]", self._popen.stdin).close()
        status = self._popen.returncode
        if status is None:
            return "it does not end"
        if status >= 0:
            return f"exit status {status}"
        with contextlib.suppress(ValueError):
            return f"signal {signal.Signals(-status).name}"
        return f"signal {-status}"

    def _descendants(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.Error):
            return self._ps.children(recursive=True)
        return []


_PYTHON = os.path.dirname(os.__file__)


def _is_ours_or_python(path: str) -> bool:
    return path.startswith((os.path.join(_ROOT, "cubridge_engine"), _PYTHON, "<"))
