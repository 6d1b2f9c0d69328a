"""Results worth keeping between runs, as JSON on disk, keyed by everything that decides them.

A room keeps its results under a kind of its own. Each kind is bounded in number and in bytes; what was not used for
the longest time goes first. As with compiled code: a cache that fails is no cache, and no error.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import zlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, cast

from .cache import cache_dir

MOST_ENTRIES = 400
MOST_BYTES = 64 << 20
_SUFFIX = ".json.z"


def key_of(*parts: str | bytes) -> str:
    """The key for a result that `parts` decide: texts of files, options, the version of what computes it."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


@cache
def engine_stamp() -> str:
    """Changes whenever a module of the engine does: results that the engine computed are keyed by it."""
    root = Path(__file__).resolve().parents[1]
    found: list[str] = []
    for path in sorted(root.rglob("*.py")):
        with contextlib.suppress(OSError):
            about = path.stat()
            found.append(f"{path.relative_to(root)} {about.st_size} {about.st_mtime_ns}")
    return key_of(*found)


def load_json(kind: str, key: str) -> dict[str, Any] | None:
    """What is kept under `key`, or None. Reading counts as use."""
    folder = _folder(kind)
    if folder is None:
        return None
    path = folder / (key + _SUFFIX)
    try:
        table = json.loads(zlib.decompress(path.read_bytes()))
    except (OSError, ValueError, zlib.error):
        return None
    with contextlib.suppress(OSError):
        os.utime(path)
    return cast("dict[str, Any]", table) if isinstance(table, dict) else None


def store_json(
    kind: str, key: str, table: Mapping[str, Any], *, entries: int = MOST_ENTRIES, limit: int = MOST_BYTES
) -> None:
    """Keep `table` (JSON values only), and let the oldest of its kind go beyond `entries` results or `limit` bytes.
    Written beside and renamed, so that a reader never sees half a file. Raises TypeError for what is not JSON.
    """
    folder = _folder(kind)
    data = zlib.compress(json.dumps(dict(table)).encode(), 6)
    if folder is None or len(data) > limit:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("wb", dir=folder, delete=False) as out:
            out.write(data)
        os.replace(out.name, folder / (key + _SUFFIX))
        _shrink(folder, entries, limit)
    except OSError:
        return


def _folder(kind: str) -> Path | None:
    folder = cache_dir()
    return None if folder is None else folder / "kept" / kind


def _shrink(folder: Path, entries: int, limit: int) -> None:
    """Remove the entries that were not used for the longest time. Another process may remove them as well."""
    found: list[tuple[float, int, Path]] = []
    for path in folder.glob("*" + _SUFFIX):
        with contextlib.suppress(OSError):
            about = path.stat()
            found.append((about.st_mtime_ns, about.st_size, path))
    found.sort(key=lambda item: (item[0], item[2].name))
    count, total = len(found), sum(size for _, size, _ in found)
    for _, size, path in found:
        if count <= entries and total <= limit:
            return
        path.unlink(missing_ok=True)
        count, total = count - 1, total - size
