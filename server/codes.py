"""Diagnostic codes of the server: what can be wrong with a request before the engine sees it."""

from __future__ import annotations

from cubridge_engine.diagnostics import Row, Severity, register

ROWS: dict[str, Row] = {
    "CB071": Row(
        Severity.ERROR,
        "This workspace is not trusted, so {job} did not run: it executes the spec and the compiler.",
        "Trust the workspace (in VS Code: Workspaces: Manage Workspace Trust). Reading the kernel works without trust.",
    ),
    "CB072": Row(
        Severity.ERROR,
        "{command} was called with wrong arguments: {problem}.",
        "Pass one object as docs/lsp-extensions.md describes it.",
    ),
    "CB073": Row(
        Severity.ERROR,
        "{name} changed while {job} ran, so its result was thrown away.",
        "Run it again on the present text.",
    ),
    "CB074": Row(
        Severity.ERROR,
        "No spec was found in the workspace.",
        "Write a Python file with `def attention(q, k, v): ...`; examples/ has some to start from.",
    ),
    "CB075": Row(
        Severity.ERROR,
        "{name} cannot be read: {problem}.",
        "Check that the file exists and may be read.",
    ),
    "CB076": Row(
        Severity.ERROR,
        "{name} could not be written: {problem}.",
        "Make the kernel's folder writable, or move the file that is in the way; then adapt again.",
    ),
    "CB078": Row(
        Severity.ERROR,
        "{name} was never saved, so {job} did not run.",
        "Save it to a file first: a kernel is compiled, and its contract looked for, where it is.",
    ),
    "CB079": Row(
        Severity.ERROR,
        "There is no bundled kernel '{name}'.",
        "The bundled kernels are: {known}.",
    ),
    "CB080": Row(
        Severity.ERROR,
        "{name} could not be copied to {folder}: {problem}.",
        "Choose a folder that can be written.",
    ),
    "CB081": Row(
        Severity.ERROR,
        "No kernel was found in the workspace.",
        "Open a folder with a .cu file that has a __global__ function, or start from an expert kernel.",
    ),
    "CB083": Row(
        Severity.ERROR,
        "No model was asked: nothing may be sent to {host} before you agree to it.",
        "Ask again, and choose Send when you are told what leaves this machine.",
    ),
    "CB084": Row(
        Severity.WARNING,
        "Checking {name} failed inside CuBridge, so nothing is known of what its rules would find.",
        "This is a defect of CuBridge: please report it with the traceback from the server's log.",
    ),
    "CB085": Row(
        Severity.ERROR,
        "There is no page about '{name}'.",
        "Codes look like CB850; docs/findings lists those that have a page.",
    ),
    "CB077": Row(
        Severity.ERROR,
        "Reading {name} failed inside CuBridge.",
        "This is a defect of CuBridge: please report it with the traceback from the server's log.",
    ),
}

register(ROWS)
