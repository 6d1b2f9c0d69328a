"""Lowering: the change of a CuIR program as small hunks on the user's own text."""

from . import codes as codes
from .cuda_expr import Scope, print_cuda
from .engine import Lowered, identifiers, lower
from .header import Header, header_lines, parse_header, with_header
from .hunks import Hunk, StaleText, apply_hunks, stale_diagnostic, unified_diff
from .read_back import differences, read_back

__all__ = [
    "Header",
    "Hunk",
    "Lowered",
    "Scope",
    "StaleText",
    "apply_hunks",
    "differences",
    "header_lines",
    "identifiers",
    "lower",
    "parse_header",
    "print_cuda",
    "read_back",
    "stale_diagnostic",
    "unified_diff",
    "with_header",
]
