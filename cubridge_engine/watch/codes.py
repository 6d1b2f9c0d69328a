"""Diagnostic codes of watching."""

from __future__ import annotations

from ..diagnostics import Row, Severity, register

CODES = {
    "CB130": Row(
        Severity.NOTE,
        "what the kernel writes is none of the attention functions that are known here: {error}",
        "watch it with what it should compute (check --expect): the first value that differs is shown",
    ),
    "CB131": Row(
        Severity.NOTE,
        "no small problem to watch the kernel on meets what its contract requires: {requires}",
        "relax limits.requires of the contract, or give a problem",
    ),
}
register(CODES)
