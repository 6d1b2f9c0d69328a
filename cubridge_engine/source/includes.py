"""Following quote-includes: the project's own headers, within a time budget."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cubridge_engine.diagnostics import Diagnostic, make

from .parse import parse
from .preprocessor import Include
from .source_file import SourceFile


@dataclass(frozen=True, slots=True)
class Includes:
    """The headers that were read, in order of discovery, and a note for each that was not. Iterates over `files`."""

    files: tuple[SourceFile, ...]
    diagnostics: tuple[Diagnostic, ...]

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
    `budget_s` seconds the rest is left out, and said. Never raises: unreadable and missing files become notes on the
    line of the first include that named them. `read` gives a file's bytes (an editor passes its open buffers).
    """
    deadline = time.monotonic() + budget_s
    seen = {_key(Path(source.path))}
    missing: set[str] = set()
    files: list[SourceFile] = []
    notes: list[Diagnostic] = []
    queue: deque[tuple[SourceFile, Include]] = deque((source, inc) for inc in source.includes if inc.quoted)
    while queue:
        if time.monotonic() > deadline:
            owner, include = queue[0]
            span = owner.span_of(include.start, include.end)
            notes.append(make("CB111", span, budget=budget_s, count=len(queue), target=include.target))
            break
        owner, include = queue.popleft()
        found = _find(owner, include.target, search)
        if found is None:
            if include.target not in missing:
                missing.add(include.target)
                notes.append(make("CB110", owner.span_of(include.start, include.end), target=include.target))
            continue
        if _key(found) in seen:
            continue
        seen.add(_key(found))
        try:
            data = read(found)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            span = owner.span_of(include.start, include.end)
            notes.append(make("CB112", span, target=include.target, reason=reason))
            continue
        header = parse(str(found), data, defines=defines)
        # a header that defines no kernel is what headers are
        kept = tuple(finding for finding in header.diagnostics if finding.code != "CB105")
        files.append(replace(header, diagnostics=kept))
        queue.extend((header, inc) for inc in header.includes if inc.quoted)
    return Includes(tuple(files), tuple(notes))


def _find(owner: SourceFile, target: str, search: Sequence[str]) -> Path | None:
    for folder in (Path(owner.path).parent, *map(Path, search)):
        try:
            if (folder / target).is_file():
                return folder / target
        except (OSError, ValueError):  # a name the file system refuses: too long, NUL
            continue
    return None


def _key(path: Path) -> str:
    try:
        return str(path.resolve())
    except (OSError, RuntimeError, ValueError):
        return str(path)
