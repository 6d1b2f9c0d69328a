"""Compiled results on disk, keyed by everything that decides them. A cache that fails is no cache, and no error."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import sys
import tempfile
import zlib
from collections.abc import Iterable
from pathlib import Path

from .model import Raw

_SCHEMA = "2"
_QUOTED = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.M)
_MOST_HEADERS = 400


def cache_dir() -> Path | None:
    """``$CUBRIDGE_CACHE``, else the user's cache directory; None when CUBRIDGE_CACHE is empty or 'off'."""
    chosen = os.environ.get("CUBRIDGE_CACHE")
    if chosen is not None:
        return Path(chosen).expanduser() if chosen not in ("", "off", "0") else None
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        return Path(base).expanduser() / "cubridge" / "compiled"
    except RuntimeError:  # no home directory
        return None


def _headers(source: bytes, folder: Path, include_dirs: Iterable[Path]) -> list[bytes]:
    """The contents of the quoted includes, followed, so that editing a header changes the key."""
    texts: list[bytes] = []
    seen: set[Path] = set()
    todo = [(source, folder)]
    dirs = tuple(include_dirs)
    while todo and len(seen) < _MOST_HEADERS:
        text, where = todo.pop()
        for match in _QUOTED.finditer(text):
            name = match[1].decode("utf-8", "replace")
            found = next((d / name for d in (where, *dirs) if (d / name).is_file()), None)
            if found is None or found in seen:
                continue
            seen.add(found)
            try:
                data = found.read_bytes()
            except OSError:
                continue
            texts.append(data)
            todo.append((data, found.parent))
    return texts


def cache_key(source: bytes, path: str, parts: Iterable[str], include_dirs: Iterable[Path]) -> str:
    """Hash of the source, its headers, the options and the compiler. The path counts: messages carry it."""
    digest = hashlib.sha256()
    for part in (_SCHEMA, path, *parts):
        digest.update(part.encode() + b"\0")
    for text in (source, *_headers(source, Path(path).parent, include_dirs)):
        digest.update(len(text).to_bytes(8, "little") + text)
    return digest.hexdigest()


def load(key: str) -> Raw | None:
    """The stored result, or None."""
    folder = cache_dir()
    if folder is None:
        return None
    try:
        table = json.loads((folder / key[:2] / f"{key}.json").read_text("utf-8"))
        cubin = zlib.decompress(base64.b64decode(table["cubin"])) if table["cubin"] else None
        return Raw(True, str(table["log"]), table["ptx"], cubin, dict(table["lowered"]))
    except (OSError, ValueError, KeyError, TypeError, zlib.error):
        return None


def store(key: str, raw: Raw) -> None:
    """Keep a successful result. Written beside and renamed, so that a reader never sees half a file."""
    folder = cache_dir()
    if folder is None or not raw.ok:
        return
    cubin = base64.b64encode(zlib.compress(raw.cubin, 6)).decode() if raw.cubin else ""
    text = json.dumps({"log": raw.log, "ptx": raw.ptx, "cubin": cubin, "lowered": raw.lowered})
    target = folder / key[:2] / f"{key}.json"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=target.parent, delete=False) as out:
            out.write(text)
        os.replace(out.name, target)
    except OSError:
        return
