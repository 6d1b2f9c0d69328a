"""A file that does not compile since its build gives a macro: which one it is, from what can be read. The macro is
named, the user gives it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..diagnostics import Diagnostic, Span, make
from .log import line_span
from .search import Build

_ERROR = re.compile(r"#error\b")
_GUARD = re.compile(r"^[ \t]*#[ \t]*(?:ifndef[ \t]+(\w+)|(?:el)?if[ \t]+!?[ \t]*defined[ \t(]+(\w+))")
_ANY_IF = re.compile(r"^[ \t]*#[ \t]*(if|endif)")
_INCLUDED = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"\n]+)[>"]', re.M)
_MOST_TEXTS = 200  # headers that are looked through for the name of a macro


def macros_wanted(
    path: Path, data: bytes, dirs: Sequence[Path], build: Build, failed: Iterable[Diagnostic]
) -> list[Diagnostic]:
    """CB619 for a macro whose lack an ``#error`` reports, else for each that a build script gives under a condition and
    an ``#if`` of the file or of its headers asks about.
    """
    errors = [d for d in failed if d.code == "CB603"]
    for one in errors:
        if _ERROR.search(one.message) and one.span is not None and (name := _guard(one.span, path, data)):
            return [make("CB619", one.span, macro=name, reason="an #error stands where it is not defined")]
    if not errors:
        return []
    given = {macro.partition("=")[0] for macro in build.defines}
    open_ = {name: where for name, where in build.choices if name not in given}
    if not open_:
        return []
    asked = re.compile(rb"^[ \t]*#[ \t]*(?:el)?if[^\n]*\b(" + "|".join(map(re.escape, open_)).encode() + rb")\b", re.M)
    names = {m[1].decode() for text in _texts(path, data, dirs) for m in asked.finditer(text)}
    start = line_span(str(path), data, 0)
    return [
        make("CB619", start, macro=name, reason=f"{open_[name]} has it, not always, and an #if asks for it")
        for name in open_
        if name in names
    ][:4]


def _guard(span: Span, path: Path, data: bytes) -> str:
    """The macro of the innermost ``#ifndef`` around a line; '' where it is no such."""
    try:
        text = data if span.path == str(path) else Path(span.path).read_bytes()
    except OSError:
        return ""
    depth = 0
    for line in reversed(text.decode("utf-8", "replace").splitlines()[: span.line]):
        edge = _ANY_IF.match(line)
        if edge is None:
            continue
        depth += edge[1] == "endif"
        if edge[1] == "if" and not depth:
            match = _GUARD.match(line)
            return (match[1] or match[2]) if match and "!" in line.replace("ifndef", "!") else ""
        depth -= edge[1] == "if"
    return ""


def _texts(path: Path, data: bytes, dirs: Sequence[Path]) -> Iterable[bytes]:
    seen: set[Path] = set()
    todo = [(data, path.parent)]
    while todo and len(seen) < _MOST_TEXTS:
        text, where = todo.pop()
        yield text
        for match in _INCLUDED.finditer(text):
            name = match[1].decode("utf-8", "replace")
            found = next((f for folder in (where, *dirs) if (f := folder / name).is_file()), None)
            if found is None or found in seen:
                continue
            seen.add(found)
            try:
                todo.append((found.read_bytes(), found.parent))
            except OSError:
                continue
