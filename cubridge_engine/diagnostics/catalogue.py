"""The catalogue of codes. One row per condition; the text is a template filled by ``make``.

Ranges: CB0xx usage and environment, CB1xx reading CUDA, CB2xx reading the spec, CB3xx transfer, CB4xx lowering,
CB5xx simulation, CB6xx compiling and device, CB7xx verification, CB8xx jobs, CB9xx internal.
"""

from __future__ import annotations

from dataclasses import dataclass

from .model import Diagnostic, Related, Severity, Span


@dataclass(frozen=True, slots=True)
class Row:
    """A condition: its severity, the sentence (``{name}`` fields filled by ``make``) and the way out."""

    severity: Severity
    message: str
    help: str


E = Severity.ERROR
W = Severity.WARNING
N = Severity.NOTE
H = Severity.HINT

CATALOGUE: dict[str, Row] = {}


def register(rows: dict[str, Row]) -> None:
    """Add a room's rows. A code may be registered once only."""
    for code, row in rows.items():
        if code in CATALOGUE:
            raise ValueError(f"diagnostic code {code} is registered twice")
        CATALOGUE[code] = row


def make(code: str, span: Span | None = None, *, related: tuple[Related, ...] = (), **fields: object) -> Diagnostic:
    """Build the diagnostic `code`; `fields` fill the templates and are kept as ``data``."""
    row = CATALOGUE[code]
    return Diagnostic(
        code=code,
        message=row.message.format(**fields),
        severity=row.severity,
        span=span,
        help=row.help.format(**fields),
        related=related,
        data=dict(fields),
    )
