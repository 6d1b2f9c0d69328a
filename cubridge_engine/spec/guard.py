"""The user's code runs quietly and under a time limit."""

from __future__ import annotations

import contextlib
import io
import signal
import threading
import time
from collections.abc import Generator
from typing import Any

from .state import leave_vmap
from .trace import Line, frame_line

_WAITING = 0.05  # code that had less of a processor than this share of the time was waiting for something else
_TICK = 0.05  # seconds between two looks at the clock, when a limit is nearly reached
_SOON = 1e-5  # seconds from one interruption to the next, the least, where one was swallowed


class TimeUp(BaseException):
    """The time limit passed; not an Exception, so that the user's `except Exception` cannot swallow it."""

    def __init__(self, line: Line | None) -> None:
        super().__init__()
        self.line = line


@contextlib.contextmanager
def guarded(path: str, seconds: float) -> Generator[None]:
    """Run foreign code quietly, under a time limit (main thread only). Raises TimeUp with the user's line.

    The limit is on work: on a busy machine, the time that other processes take does not count. Code that only waits
    (for a lock, for a network) has the same limit by the clock. Where the time was up, that is what is raised, whatever
    became of the interruption on its way out: code that it reaches in a `finally` may fail in turn, or swallow it.
    """
    late: list[TimeUp] = []
    rings = 0
    main = threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer")
    began, worked = time.monotonic(), time.thread_time()

    def alarm(_signal: int, frame: Any) -> None:
        nonlocal rings
        work = time.thread_time() - worked
        if _WAITING * (time.monotonic() - began) < work < seconds:
            signal.setitimer(signal.ITIMER_REAL, max(seconds - work, _TICK))
            return
        while frame is not None and frame.f_code.co_filename != path:
            frame = frame.f_back
        # Again, should it be swallowed; in a loop around the `except` only one that comes soon after another ends it.
        rings += 1
        signal.setitimer(signal.ITIMER_REAL, seconds if rings == 1 else _SOON * 2 ** (rings % 16))
        if not late or frame is not None:  # on its way out of the user's code it is left alone
            late.append(TimeUp(frame_line(frame)[:1] if frame is not None else None))
            raise late[-1]

    previous: Any = None
    if main:
        previous = signal.signal(signal.SIGALRM, alarm)
        signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    except BaseException:
        if late:
            raise late[0] from None
        raise
    finally:
        if main:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, previous)
        leave_vmap()
    if late:
        raise late[0]
