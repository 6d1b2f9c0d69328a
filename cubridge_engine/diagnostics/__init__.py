"""One Diagnostic type, the catalogue of codes, emitters (text, JSON, SARIF, GitHub)."""

from .catalogue import CATALOGUE, Row, make, register
from .model import Diagnostic, Related, Severity, Span

__all__ = ["CATALOGUE", "Diagnostic", "Related", "Row", "Severity", "Span", "make", "register"]
