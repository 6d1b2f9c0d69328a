"""Caches that the processes of a test run share."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # no such locks there
    fcntl = None


@contextmanager
def one_at_a_time(folder: Path) -> Generator[None]:
    """Makes `folder`. Another process that asks for it waits until this one has left, and finds what this one made."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        if fcntl is not None:
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
