"""Findings that show every part of a diagnostic, and the sources they point into."""

import pytest

from cubridge_engine.diagnostics import CATALOGUE, Diagnostic, Related, Row, Severity, Span

KERNEL = (
    "\ufeff__global__ void k(float* O) {\r\n"
    "\tfloat é𝜎 = O[0], 値 = 1; // tile\r\n"
    "  if (O[0] > 1) {\r\n"
    "    O[1] = 2;\r\n"
    "  }\r\n"
    "}\r\n"
).encode()
SPEC = b"def attention(q, k, v):\n    return softcap(q @ k, 30, x)\n"
SOURCES = {"kernels/a b.cu": KERNEL, "spec.py": SPEC}


def span_at(path: str, first: str, last: str = "") -> Span:
    """From the start of `first` to the end of `last` (default: of `first`)."""
    data = SOURCES[path]
    start = data.index(first.encode())
    end = data.index((last or first).encode()) + len((last or first).encode())
    places = [(data[:at].count(b"\n"), at - (data.rfind(b"\n", 0, at) + 1)) for at in (start, end)]
    return Span(path, start, end, *places[0], *places[1])


@pytest.fixture
def sources() -> dict[str, bytes]:
    return SOURCES


ROWS = {
    "CB991": Row(Severity.ERROR, "`{name}` is read before it is scaled", "Move it, then run again."),
    "CB992": Row(Severity.WARNING, "this block is unread", "Save the file."),
}


@pytest.fixture(autouse=True)
def _rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows for the codes of `findings` (two of them; a code without a row must be reported too)."""
    for code, row in ROWS.items():
        monkeypatch.setitem(CATALOGUE, code, row)


@pytest.fixture
def findings() -> list[Diagnostic]:
    return [
        Diagnostic(
            "CB991",
            "`値` is read: 100%, before it is scaled",
            Severity.ERROR,
            span_at("kernels/a b.cu", "値"),
            "Move it, then run again.",
            (
                Related(span_at("spec.py", "softcap(q @ k, 30, x)"), "the spec caps here"),
                Related(Span("gone.py", 0, 1, 8, 2, 8, 3), "and here"),
            ),
            {"tile": (64, 64), "worst": float("nan"), "span": object},
        ),
        Diagnostic("CB992", "this block is unread", Severity.WARNING, span_at("kernels/a b.cu", "if (O", "  }\r\n}")),
        Diagnostic("CB993", "no kernel here", Severity.NOTE, Span("spec.py", 0, 0, 0, 0, 0, 0), "Open one."),
        Diagnostic("CB994", "no compiler was found", Severity.HINT, None, "Install one."),
        Diagnostic("CB992", "stale", Severity.WARNING, Span("spec.py", 900, 910, 99, 4, 99, 14), "Save the file."),
    ]
