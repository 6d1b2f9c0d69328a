"""One Diagnostic type, the catalogue of codes, emitters (text, JSON, SARIF, GitHub)."""

from .catalogue import CATALOGUE, Row, make, register
from .emit_github import to_github
from .emit_json import diagnostic_from_json, diagnostic_to_json, to_json
from .emit_sarif import to_sarif
from .emit_text import render_text, wants_colour
from .model import Diagnostic, Related, Severity, Span

__all__ = [
    "CATALOGUE",
    "Diagnostic",
    "Related",
    "Row",
    "Severity",
    "Span",
    "diagnostic_from_json",
    "diagnostic_to_json",
    "make",
    "register",
    "render_text",
    "to_github",
    "to_json",
    "to_sarif",
    "wants_colour",
]
