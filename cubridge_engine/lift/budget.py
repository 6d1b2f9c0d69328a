"""The time that one lift may take: seconds of its own thread's work, so that a busy machine changes nothing.

Symbolic execution and classification ask now and then; what takes longer is refused, never left to run.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager

DEFAULT_S = 30.0
_EVERY = 512  # questions between two looks at the clock
_DEPTH = 6000  # frames: chains of thousands of additions are walked by recursion


class OutOfTime(Exception):
    """The lift has taken longer than it may."""


class _Local(threading.local):
    end: float | None = None
    asked: int = 0


_LOCAL = _Local()


@contextmanager
def limited(seconds: float) -> Generator[None]:
    """What runs inside raises OutOfTime after `seconds`. The innermost limit holds."""
    before = _LOCAL.end
    _LOCAL.end = time.thread_time() + seconds
    sys.setrecursionlimit(max(sys.getrecursionlimit(), _DEPTH))
    try:
        yield
    finally:
        _LOCAL.end = before


def spend() -> None:
    """Called for every step. Raises OutOfTime."""
    _LOCAL.asked += 1
    if _LOCAL.asked % _EVERY == 0 and _LOCAL.end is not None and time.thread_time() > _LOCAL.end:
        raise OutOfTime
