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
    "CB132": Row(
        Severity.WARNING,
        "Reading and watching disagree on {part}{where}: {read} by the text, {seen} when it ran ({problem}).",
        "The compiled kernel counts: look for what the compiler sees otherwise on this line (a macro, #if, a header);"
        " if there is nothing, the reading is wrong: report it, and trust no adapted text of this kernel",
    ),
    "CB133": Row(
        Severity.NOTE,
        "The kernel was not watched: what its parameter {names} holds is not known",
        "say it in a `// cubridge: param NAME = operand:NAME[H]` line at the top of the file, or in contract.toml",
    ),
}
register(CODES)
