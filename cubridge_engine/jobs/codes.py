"""Diagnostic codes of jobs: CB801 to CB808."""

from __future__ import annotations

from ..diagnostics import Row, Severity, register

E, N = Severity.ERROR, Severity.NOTE

ROWS: dict[str, Row] = {
    "CB801": Row(
        E,
        "`{task}` ran longer than its limit of {limit:g} s and was stopped{at}",
        "Look there for a loop without end; if the work is that large, raise the time limit.",
    ),
    "CB802": Row(
        E,
        "`{task}` used {used} MB, more than its limit of {limit} MB, and was stopped",
        "Use smaller example inputs, or raise the memory limit.",
    ),
    "CB803": Row(
        E,
        "the worker process ended ({how}) while it ran `{task}`; {last}",
        "The next job starts a fresh one. Code that calls exit() or crashes in native code ends it; the log has more.",
    ),
    "CB804": Row(
        N,
        "`{task}` was cancelled",
        "Nothing was changed; start it again at any time.",
    ),
    "CB805": Row(
        E,
        "`{task}` failed inside: {error}",
        "This is a defect of CuBridge: please report it with the traceback from the log.",
    ),
    "CB806": Row(
        E,
        "there is no job named `{task}`",
        "Known jobs: {known}.",
    ),
    "CB807": Row(
        E,
        "the worker process cannot be started: {reason}",
        "Check that `{python}` exists and runs, or choose another interpreter.",
    ),
    "CB808": Row(
        E,
        "the parameters of `{task}` cannot be sent to the worker: {reason}",
        "Parameters are JSON values: numbers, strings, lists, objects.",
    ),
}
register(ROWS)
