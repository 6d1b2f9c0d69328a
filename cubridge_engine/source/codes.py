"""Diagnostic codes of reading CUDA text: CB101 to CB119."""

from cubridge_engine.diagnostics import Row, Severity, register

E, W, N = Severity.ERROR, Severity.WARNING, Severity.NOTE

ROWS: dict[str, Row] = {
    "CB101": Row(
        W,
        "{count} byte(s) here are not UTF-8 text; they are read as blanks",
        "Save the file as UTF-8. If it is a compiled object, pass the .cu source instead.",
    ),
    "CB102": Row(
        E,
        "the file has {size} bytes, more than the {limit} that are read",
        "Pass the kernel's own source file; a generated or amalgamated file can be split at its kernels.",
    ),
    "CB103": Row(
        W,
        "this part of kernel `{kernel}` could not be read as CUDA C++ ({share:.1%} of its body is unread)",
        "Correct the syntax here. If the code compiles, an unknown macro is the usual cause: define it here.",
    ),
    "CB104": Row(
        W,
        "a kernel starts here, but its definition could not be read",
        "Correct the syntax of the function's header, or define the macros that stand in it in this file.",
    ),
    "CB105": Row(
        W,
        "the file defines no kernel: no `__global__` function has a body here",
        "Open the file that defines the `__global__` function; headers it includes by quotes are read along.",
    ),
    "CB106": Row(
        E,
        "`{bracket}` {problem}",
        "Add or remove the bracket; the rest of the file is read as far as possible until then.",
    ),
    "CB107": Row(
        E,
        "`{directive}` is never closed by #endif",
        "Add the missing #endif.",
    ),
    "CB108": Row(
        E,
        "`{directive}` has no #if that it belongs to",
        "Remove it, or add the #if that it belongs to.",
    ),
    "CB109": Row(
        N,
        "the condition `{condition}` cannot be evaluated here; this branch is read",
        "Give the macros it needs as definitions (-D NAME=VALUE) to choose another branch.",
    ),
    "CB110": Row(
        N,
        'the include "{target}" was not found; what it defines is not known here',
        "Add the folder that holds it to the include path (-I DIR).",
    ),
    "CB111": Row(
        N,
        'reading the includes took longer than {budget:.2f} s; {count} file(s) left out, first "{target}"',
        "Reading goes on with what was found. Run the command line tool to read all of them.",
    ),
    "CB113": Row(
        E,
        "the text could not be parsed within {budget:.0f} s; it is not read",
        "Check that this is CUDA source. Deeply nested generated text can be split into smaller files.",
    ),
    "CB114": Row(
        W,
        "the settings in {path} cannot be read: {why}",
        "Correct the file; until then it is as if there were none.",
    ),
    "CB112": Row(
        N,
        'the include "{target}" could not be read: {reason}',
        "Check the permissions of the file.",
    ),
}
register(ROWS)
