"""Engine spans to LSP ranges, and URIs."""

from __future__ import annotations

from pathlib import Path

import pytest
from lsprotocol import types as t

from cubridge_engine.diagnostics import Diagnostic, Related, Severity, Span
from cubridge_engine.source import Encoding, TextIndex
from server import convert

TEXT = "int a;\n/* 𝛼é */ int b;\n".encode()
INDEX = TextIndex(TEXT)


def span_at(path: str, needle: bytes) -> Span:
    start = TEXT.index(needle)
    end = start + len(needle)
    return Span(path, start, end, *INDEX.locate(start), *INDEX.locate(end))


@pytest.mark.parametrize(("encoding", "column"), [("utf-8", 13), ("utf-16", 10), ("utf-32", 9)])
def test_columns_are_in_the_clients_unit(encoding: Encoding, column: int) -> None:
    place = convert.range_of(span_at("/k.cu", b"int b"), INDEX, encoding)
    assert place.start == t.Position(1, column)
    assert place.end == t.Position(1, column + 5)


def test_a_span_beyond_a_shorter_text_is_clamped() -> None:
    place = convert.range_of(Span("/k.cu", 500, 900, 40, 0, 50, 0), INDEX, "utf-16")
    assert place.start == place.end == t.Position(2, 0)


def test_a_diagnostic_carries_code_help_and_related_lines() -> None:
    found = Diagnostic(
        "CB703",
        "The kernel keeps j <= i, the spec j < i.",
        Severity.ERROR,
        span_at("/k.cu", b"int b"),
        help="Change the mask.",
        related=(Related(span_at("/s.py", b"int a"), "the spec's mask"),),
    )
    item = convert.diagnostic_of(found, lambda _path: INDEX, "utf-16", related=True)
    assert (item.code, item.source, item.severity) == ("CB703", "cubridge", t.DiagnosticSeverity.Error)
    assert item.data == {"help": "Change the mask."}
    assert item.related_information is not None
    assert item.related_information[0].location.uri == "file:///s.py"
    assert item.related_information[0].location.range.start == t.Position(0, 0)
    without = convert.diagnostic_of(found, lambda _path: INDEX, "utf-16", related=False)
    assert without.related_information is None


def test_uris_round_trip(tmp_path: Path) -> None:
    path = str(tmp_path / "a b" / "käse#1.cu")
    assert convert.path_of(convert.uri_of(path)) == path
    assert convert.path_of("untitled:Untitled-1") == "untitled:Untitled-1"
    assert convert.uri_of("untitled:Untitled-1.cu").startswith("file:")


@pytest.mark.parametrize(("uri", "yes"), [("file:///a.cu", True), ("file:///A.CUH", True), ("file:///a.cpp", False)])
def test_kernels_are_known_by_suffix(uri: str, yes: bool) -> None:
    assert convert.is_kernel(uri) is yes


@pytest.mark.parametrize(
    ("lines", "severity", "ends"), [(7, Severity.ERROR, 7), (40, Severity.ERROR, 0), (7, Severity.NOTE, 0)]
)
def test_what_is_said_of_a_whole_kernel_does_not_underline_all_of_it(lines: int, severity: Severity, ends: int) -> None:
    index = TextIndex(b"abc;\n" * 50)
    found = Diagnostic("CB027", "Not understood.", severity, Span("/k.cu", 0, 5 * lines + 3, 0, 0, lines, 3))
    place = convert.diagnostic_of(found, lambda _: index, "utf-16", related=False).range
    assert (place.start, place.end) == (t.Position(0, 0), t.Position(ends, 3 if ends else 4))
