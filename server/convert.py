"""Engine terms to LSP terms: byte columns to the client's column unit, paths to URIs, diagnostics to diagnostics."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import cast

from lsprotocol import types as t
from pygls.uris import from_fs_path, to_fs_path

from cubridge_engine.diagnostics import Diagnostic, Severity, Span
from cubridge_engine.source import TextIndex
from cubridge_engine.source.text_index import BOM, Encoding

KERNEL_SUFFIXES = (".cu", ".cuh")
SOURCE = "cubridge"

SEVERITIES = {
    Severity.ERROR: t.DiagnosticSeverity.Error,
    Severity.WARNING: t.DiagnosticSeverity.Warning,
    Severity.NOTE: t.DiagnosticSeverity.Information,
    Severity.HINT: t.DiagnosticSeverity.Hint,
}

TextOf = Callable[[str], TextIndex]  # path -> the text that the client sees there (open document, else disk)


def is_kernel(uri: str) -> bool:
    """Whether `uri` names a CUDA file. By suffix: the language id of ``.cu`` is cuda-cpp, cuda or cpp, by editor."""
    return uri.lower().endswith(KERNEL_SUFFIXES)


def is_spec(uri: str) -> bool:
    """Whether `uri` names a Python file, which may be a spec."""
    return uri.lower().endswith(".py")


def path_of(uri: str) -> str:
    """File-system path of a ``file:`` URI; any other URI stays as it is and is never read from disk."""
    return (to_fs_path(uri) if uri.startswith("file:") else None) or uri


def uri_of(path: str) -> str:
    """URI of a path, as the client would spell it."""
    if "://" in path:
        return path
    return from_fs_path(str(Path(path).absolute())) or path


def same_text(shown: bytes, disk: bytes) -> bool:
    """Whether the client's text `shown` (always UTF-8, no byte order mark) is what `disk` holds."""
    if shown == disk.removeprefix(BOM):
        return True
    try:
        disk.decode("utf-8")
    except UnicodeDecodeError:  # a client that guessed Latin-1 shows every byte as one character
        return shown == disk.decode("latin-1").encode("utf-8")
    return False


def sha256(data: bytes) -> str:
    """Identity of a text, to tell whether a result still belongs to it."""
    return hashlib.sha256(data).hexdigest()


def read_disk(path: str) -> bytes:
    """The file's bytes; empty when it cannot be read."""
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError):
        return b""


def encoding_of(name: str | t.PositionEncodingKind | None) -> Encoding:
    """The negotiated position encoding as the engine's word for it."""
    value = name.value if isinstance(name, t.PositionEncodingKind) else name
    return cast("Encoding", value) if value in ("utf-8", "utf-32") else "utf-16"


def range_of(span: Span, text: TextIndex, encoding: Encoding) -> t.Range:
    """The LSP range of `span`, by its lines and byte columns: a byte order mark that the client's text lacks moves
    nothing but the first line. A span of an older, longer text is clamped to the present one."""
    start = _offset(text, span.line, span.column)
    end = max(_offset(text, span.end_line, span.end_column), start)
    return t.Range(t.Position(*text.position(start, encoding)), t.Position(*text.position(end, encoding)))


def _offset(text: TextIndex, line: int, column: int) -> int:
    if line >= text.line_count:
        return len(text.data)
    return min(text.line_start(line) + column, text.line_end(line))


def line_range(line: int, text: TextIndex, encoding: Encoding) -> t.Range:
    """The whole visible text of one line."""
    end = text.position(text.line_end(line), encoding)
    return t.Range(t.Position(line, 0), t.Position(*end))


# A finding underlines at most this many lines more than one; what is longer is about a whole, as a loop or a kernel.
MARKED_LINES = 8
NOWHERE = t.Range(t.Position(0, 0), t.Position(0, 0))


def diagnostic_of(
    found: Diagnostic,
    text_of: TextOf,
    encoding: Encoding,
    *,
    related: bool,
    link: Callable[[str], str | None] | None = None,
) -> t.Diagnostic:
    """One engine diagnostic for the client. The message is one sentence; the way out travels in ``data.help``. `link`
    gives the address of a code's page."""
    information = [
        t.DiagnosticRelatedInformation(
            location=t.Location(uri_of(item.span.path), range_of(item.span, text_of(item.span.path), encoding)),
            message=item.message,
        )
        for item in found.related
    ]
    place = range_of(found.span, text_of(found.span.path), encoding) if found.span else NOWHERE
    lines = 0 if found.span and found.severity <= Severity.NOTE else MARKED_LINES
    if found.span and place.end.line - place.start.line > lines:
        # What is said of a whole kernel must not underline it all: its first line shows where it belongs.
        place = t.Range(place.start, line_range(place.start.line, text_of(found.span.path), encoding).end)
    return t.Diagnostic(
        range=place,
        message=found.message,
        severity=SEVERITIES[found.severity],
        code=found.code,
        code_description=t.CodeDescription(href) if link and (href := link(found.code)) else None,
        source=SOURCE,
        related_information=information if related and information else None,
        data={"help": found.help} if found.help else None,
    )


def field(data: object, name: str) -> object:
    """A field of a free-form value of the client, which arrives as a dict or as an attribute bag; None without it."""
    return cast("dict[str, object]", data).get(name) if isinstance(data, dict) else getattr(data, name, None)


def drop_in_name(kernel: str, spec: str) -> str:
    """The file of the Python around an adapted kernel, as the header of the adapted text names it."""
    return f"{Path(kernel).stem}_{Path(spec).stem}_drop_in.py"


def base_name(path: str) -> str:
    """The file name of a path, as titles and messages show it."""
    return Path(path).name
