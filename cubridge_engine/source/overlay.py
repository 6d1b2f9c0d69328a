"""Texts that an editor holds and the disk does not: a job reads them in place of the files of that name.

A worker process runs one job at a time, so that one table for the process is enough.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Mapping
from pathlib import Path

_TEXTS: dict[str, bytes] = {}


@contextlib.contextmanager
def overlay(texts: Mapping[str, str | bytes]) -> Generator[None, None, None]:
    """While the body runs, `read_bytes` of these paths gives these texts (UTF-8) or bytes."""
    before = dict(_TEXTS)
    given = {path: t if isinstance(t, bytes) else t.encode("utf-8", "surrogatepass") for path, t in texts.items()}
    _TEXTS.update({_key(path): data for path, data in given.items()})
    try:
        yield
    finally:
        _TEXTS.clear()
        _TEXTS.update(before)


def read_bytes(path: str) -> bytes:
    """The bytes of the file at `path`, or the text laid over it. Raises OSError."""
    laid = _TEXTS.get(_key(path)) if _TEXTS else None
    return Path(path).read_bytes() if laid is None else laid


def _key(path: str) -> str:
    return os.path.realpath(path)
