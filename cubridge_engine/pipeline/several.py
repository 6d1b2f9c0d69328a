"""An adaptation that changes headers of the user too: worked out on the pasted text, taken apart into the files."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..diagnostics import Diagnostic, Related, Span, make
from ..lower import Hunk, apply_hunks, unified_diff
from ..results import ChangedFile, CostResult, HunkResult, LineCost, Report
from ..source import Flat, SourceFile, flatten, overlay, parse, read_bytes, with_includes

_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.MULTILINE)
_SUFFIXES = (".cu", ".cuh", ".h", ".hpp", ".cpp", ".cc", ".inl")
_MOST_FILES, _MOST_BYTES = 400, 1_000_000  # looked at for other users of a header


@dataclass(frozen=True, slots=True)
class Several:
    """The hunks and the new text of each file by path, and the pasted text before and after. `main`: the kernel's."""

    main: str
    before: Flat
    after: Flat
    hunks: Mapping[str, tuple[Hunk, ...]]
    texts: Mapping[str, bytes]

    @property
    def headers(self) -> list[str]:
        """The paths of the headers that change."""
        return [path for path in self.hunks if path != self.main]


def taken_apart(flat: Flat, hunks: Sequence[Hunk], text: bytes) -> Several | None:
    """The hunks of a pasted text as those of its files. None where one has no place in a single file, and where the
    changed files pasted again are not `text`, the text that is verified.
    """
    main = next(iter(flat.files))
    own: dict[str, list[Hunk]] = {}
    for hunk in hunks:
        place = flat.place(hunk.start, hunk.end)
        if place is None:
            return None
        path, start, end = place
        line = flat.files[path].span_of(start, end).line
        own.setdefault(path, []).append(replace(hunk, start=start, end=end, line=line))
    texts = {path: file.data for path, file in flat.files.items()}
    try:
        texts |= {path: apply_hunks(texts[path], some) for path, some in own.items()}
    except ValueError:
        return None  # the text of a hunk is not that of the file
    with overlay(texts):
        after = flatten(with_includes(parse(main, texts[main]), read=lambda header: read_bytes(str(header))))
    if after is None or after.data != text:
        return None
    ordered = {path: tuple(own[path]) for path in flat.files if path in own}
    return Several(main, flat, after, ordered, texts)


def flat_of_launcher(source: SourceFile) -> Flat | None:
    """The pasted text of a file that has no kernel, where a header of it has one."""
    if source.kernels() or not any(header.source.kernels() for header in source.headers):
        return None
    return flatten(source)


def located(diagnostic: Diagnostic, flat: Flat) -> Diagnostic:
    """A finding on the pasted text at its place in the file that it is about."""
    span = diagnostic.span
    related = tuple(Related(_located(r.span, flat), r.message) for r in diagnostic.related)
    return replace(diagnostic, span=None if span is None else _located(span, flat), related=related)


def _located(span: Span, flat: Flat) -> Span:
    if span.path != next(iter(flat.files)):
        return span
    # What goes on beyond the end of a file is shown by its beginning.
    place = flat.place(span.start, span.end) or flat.place(span.start, span.start)
    return span if place is None else flat.files[place[0]].span_of(place[1], place[2])


def by_line(report: Report, flat: Flat) -> Report:
    """A report on a pasted text with costs by the lines of the kernel's own file, those of headers left out."""
    main, file = next(iter(flat.files.items()))
    rows: dict[int, int] = {}
    at = 0
    for number, text in enumerate(flat.data.split(b"\n")):
        place = flat.place(at, at)
        if place is not None and place[0] == main:
            rows[number] = file.data.count(b"\n", 0, place[1])
        at += len(text) + 1

    def mapped(lines: tuple[LineCost, ...]) -> tuple[LineCost, ...]:
        return tuple(c.model_copy(update={"line": rows[c.line]}) for c in lines if c.line in rows)

    def shown(cost: CostResult | None) -> CostResult | None:
        if cost is None:
            return None
        cost = cost.model_copy(update={"lines": mapped(cost.lines), "calls": mapped(cost.calls)})
        return cost if cost.lines or cost.calls else None  # all of it is in headers

    simulated = tuple(one.model_copy(update={"cost": shown(one.cost)}) for one in report.simulated)
    return report.model_copy(update={"simulated": simulated})


def changed_files(several: Several) -> tuple[ChangedFile, ...]:
    """The headers that change, for the result."""
    return tuple(_changed(several, path) for path in several.headers)


def _changed(several: Several, path: str) -> ChangedFile:
    file, after = several.before.files[path], several.texts[path]
    name = relative(path, several.main)
    encoding = encoding_of(file.data)
    return ChangedFile(
        path=path,
        name=name,
        base_sha256=hashlib.sha256(file.data).hexdigest(),
        hunks=tuple(hunk_result(h, file) for h in several.hunks[path]),
        text=after.decode(encoding),
        encoding=encoding,
        diff=unified_diff(name, file.data, after),
    )


def relative(path: str, main: str) -> str:
    """The name of a file from the folder of the kernel."""
    return Path(os.path.relpath(path, os.path.dirname(main) or ".")).as_posix()


def encoding_of(data: bytes) -> str:
    """How bytes become the text of a result without loss: UTF-8, or Latin-1 where the file is not UTF-8."""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return "latin-1"
    return "utf-8"


def hunk_result(hunk: Hunk, source: SourceFile) -> HunkResult:
    """A hunk of `source`, for the result."""
    span = source.span_of(hunk.start, hunk.end)
    spec_line = hunk.spec_span.line if hunk.spec_span is not None else None
    return HunkResult(
        start=hunk.start, end=hunk.end, line=span.line, old=hunk.old, new=hunk.new, why=hunk.why, spec_line=spec_line
    )


def stale_headers(several: Several) -> list[Diagnostic]:
    """CB020 for each header that no longer is what was read."""
    found: list[Diagnostic] = []
    for path in several.headers:
        try:
            now = read_bytes(path)
        except OSError:
            now = b""
        if now != several.before.files[path].data:
            found.append(make("CB020", path=path))
    return found


def shared_headers(several: Several) -> list[Diagnostic]:
    """CB035 for each changed header that other files beside it, or beside the kernel, include."""
    parts = {os.path.realpath(path) for path in several.before.files}
    folders = dict.fromkeys(Path(path).parent for path in (several.main, *several.headers))
    users: dict[str, list[str]] = {}
    for file in [f for folder in folders for f in _sources(folder)]:
        if os.path.realpath(file) in parts:
            continue
        for target in _INCLUDE.findall(_head(file)):
            included = os.path.realpath(file.parent / target.decode("utf-8", "replace"))
            users.setdefault(included, []).append(file.name)
    found: list[Diagnostic] = []
    for path in several.headers:
        others = sorted(set(users.get(os.path.realpath(path), ())))
        if others:
            first = several.hunks[path][0]
            span = several.before.files[path].span_of(first.start, first.end)
            found.append(make("CB035", span, header=os.path.basename(path), others=", ".join(others)))
    return found


def _sources(folder: Path) -> list[Path]:
    try:
        files = sorted(f for f in folder.iterdir() if f.suffix in _SUFFIXES and f.is_file())
    except OSError:
        return []
    return files[:_MOST_FILES]


def _head(file: Path) -> bytes:
    try:
        with open(file, "rb") as opened:
            return opened.read(_MOST_BYTES)
    except OSError:
        return b""
