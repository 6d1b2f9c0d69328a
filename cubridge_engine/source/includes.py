"""Following quote-includes: the project's own headers, within a time budget."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cubridge_engine.diagnostics import Diagnostic, make

from .parse import parse
from .preprocessor import Include, Macro
from .source_file import Header, SourceFile

_WAITING = 10  # how often the time for work may pass while files are waited for


@dataclass(frozen=True, slots=True)
class Includes:
    """The headers that were read, in order of discovery, and a note for each that was not. Iterates over `files`."""

    files: tuple[SourceFile, ...]
    diagnostics: tuple[Diagnostic, ...]
    via: tuple[Include, ...] = ()  # for each file the include of the first source that led to it

    def __iter__(self) -> Iterator[SourceFile]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)


def follow_includes(
    source: SourceFile,
    *,
    search: Sequence[str] = (),
    budget_s: float = 1.0,
    defines: Mapping[str, str] | None = None,
    read: Callable[[Path], bytes] = Path.read_bytes,
) -> Includes:
    """Read the headers that `source` includes by quotes, and theirs, each file once (cycles end there).

    A name is looked up beside the including file, then in the folders of `search`. ``<...>`` is never followed. After
    `budget_s` seconds of work (what other processes take does not count, a slow disk does) the rest is left out, and
    said. Never raises: unreadable and missing files become notes on the line of the first include that named them.
    `read` gives a file's bytes (an editor passes its open buffers).
    """
    began, worked = time.monotonic(), time.thread_time()
    seen = {file_key(Path(source.path))}
    missing: set[str] = set()
    files: list[SourceFile] = []
    notes: list[Diagnostic] = []
    via: list[Include] = []
    queue = deque((source, inc, inc) for inc in source.includes if inc.quoted)
    while queue:
        if time.thread_time() - worked > budget_s or time.monotonic() - began > _WAITING * budget_s:
            owner, include, _ = queue[0]
            span = owner.span_of(include.start, include.end)
            notes.append(make("CB111", span, budget=budget_s, count=len(queue), target=include.target))
            break
        owner, include, first = queue.popleft()
        found = _find(owner, include.target, search)
        if found is None:
            if include.target not in missing:
                missing.add(include.target)
                notes.append(make("CB110", owner.span_of(include.start, include.end), target=include.target))
            continue
        if file_key(found) in seen:
            continue
        seen.add(file_key(found))
        try:
            data = read(found)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            span = owner.span_of(include.start, include.end)
            notes.append(make("CB112", span, target=include.target, reason=reason))
            continue
        header = _parsed(str(found), data, defines)
        # a header that defines no kernel is what headers are
        kept = tuple(finding for finding in header.diagnostics if finding.code != "CB105")
        files.append(replace(header, diagnostics=kept))
        via.append(first)
        queue.extend((header, inc, first) for inc in header.includes if inc.quoted)
    return Includes(tuple(files), tuple(notes), tuple(via))


def with_includes(
    source: SourceFile,
    *,
    search: Sequence[str] = (),
    budget_s: float = 0.5,
    read: Callable[[Path], bytes] = Path.read_bytes,
) -> SourceFile:
    """`source` with the headers that it includes by quotes: lifting then knows their functions, types and macros."""
    found = follow_includes(source, search=search, budget_s=budget_s, read=read)
    if not found.files and not found.diagnostics:
        return source
    headers = tuple(Header(f, (i.start, i.end)) for f, i in zip(found.files, found.via, strict=True))
    macros: dict[str, Macro] = {}
    for header in reversed(found.files):  # what is included first is defined first
        macros.update(header.macros)
    return replace(source, headers=headers, macros={**macros, **source.macros}, missing=found.diagnostics)


def _parsed(path: str, data: bytes, defines: Mapping[str, str] | None) -> SourceFile:
    """A header as it was read before, unless it has changed: who types in a kernel does not type in its headers."""
    if defines:
        return parse(path, data, defines=defines)
    key = (path, data)
    header = _PARSED.pop(key, None) or parse(path, data)
    _PARSED[key] = header  # at the end: recently used
    while len(_PARSED) > _MOST_PARSED:
        del _PARSED[next(iter(_PARSED))]
    return header


_PARSED: dict[tuple[str, bytes], SourceFile] = {}
_MOST_PARSED = 32


def _find(owner: SourceFile, target: str, search: Sequence[str]) -> Path | None:
    for folder in (Path(owner.path).parent, *map(Path, search)):
        try:
            if (folder / target).is_file():
                return folder / target
        except (OSError, ValueError):  # a name the file system refuses: too long, NUL
            continue
    return None


def file_key(path: Path) -> str:
    """The same for all names of one file."""
    try:
        return str(path.resolve())
    except (OSError, RuntimeError, ValueError):
        return str(path)
