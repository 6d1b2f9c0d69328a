"""A baseline: the findings that a project has agreed to live with, as a JSON file. New ones are shown all the same.

A finding is known again by its code, its file and the text of its line, blanks aside, so that lines may move. Of
several with equal texts as many are hidden as the file counts.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from ..diagnostics import Diagnostic, make
from . import codes as codes
from .model import Finding

VERSION = 1
Texts = Mapping[str, bytes]


def key_of(found: Finding, texts: Texts, root: Path) -> str:
    """``CB850:kernels/a.cu:1f3a…``: code, file below `root`, digest of the line without its blanks."""
    span = found.span
    if span is None:
        return f"{found.code}::{_digest(found.diagnostic.message)}"
    lines = texts.get(span.path, b"").splitlines()
    line = lines[span.line].decode("utf-8", "replace") if span.line < len(lines) else ""
    path = Path(span.path).absolute()
    name = path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name
    return f"{found.code}:{name}:{_digest(''.join(line.split()))}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def write_baseline(path: Path, found: Iterable[Finding], texts: Texts) -> None:
    """Write the findings' keys. Raises OSError."""
    counts = Counter(key_of(f, texts, path.absolute().parent) for f in found)
    path.write_text(json.dumps({"version": VERSION, "findings": dict(sorted(counts.items()))}, indent=2) + "\n")


def read_baseline(path: Path) -> tuple[Counter[str], tuple[Diagnostic, ...]]:
    """Keys and how often each may occur; empty, with CB893, for a file that is no baseline."""
    try:
        loaded = json.loads(path.read_text("utf-8"))
        table = cast("dict[str, Any]", loaded)
        if not isinstance(loaded, dict) or table.get("version") != VERSION or not isinstance(table["findings"], dict):
            raise ValueError("it is no baseline of version 1")
        return Counter({str(k): int(v) for k, v in table["findings"].items()}), ()
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return Counter(), (make("CB893", None, path=str(path), why=why),)


def without_known(
    found: Sequence[Finding], known: Counter[str], texts: Texts, root: Path
) -> tuple[list[Finding], list[Finding]]:
    """(findings that are new, those of the baseline at folder `root`)."""
    left = Counter(known)
    new: list[Finding] = []
    old: list[Finding] = []
    for item in found:
        key = key_of(item, texts, root)
        if left[key] > 0:
            left[key] -= 1
            old.append(item)
        else:
            new.append(item)
    return new, old
