"""Findings of lowering: a site that is missing, a text that changed, an edit that does not read back as what was asked
for.
"""

from __future__ import annotations

from ..diagnostics import Row, Severity, register

E = Severity.ERROR

register(
    {
        "CB401": Row(
            E,
            "the change of rule `{rule}` needs {what} in kernel {kernel}, and that place was not found",
            "run `cubridge lift` on the kernel to see which places were found",
        ),
        "CB402": Row(
            E,
            "{name} is not in scope where rule `{rule}` needs it",
            "make {name} available there (as a variable or a parameter), and try again",
        ),
        "CB403": Row(
            E,
            "the file changed while the adaptation ran: the text at byte {start} is no longer what was read",
            "run the adaptation again on the file as it is now",
        ),
        "CB404": Row(
            E,
            "{function} is called here without the new argument(s) {params}, which this function does not have",
            "pass them through this function, or update this call by hand",
        ),
        "CB405": Row(
            E,
            "the adapted kernel does not read back as intended: {what}",
            "nothing was written; please report the kernel and the spec",
        ),
        "CB406": Row(
            E,
            "the adapted kernel could not be read again: {why}",
            "nothing was written; please report the kernel and the spec",
        ),
        "CB410": Row(
            E,
            "the sink has a value for each row, and where {role} starts no variable holds the number of the row",
            "declare the row of the thread before {role} (`const int row = q0 + r;`), with {role} in its scope, or "
            "make the sink one number per head",
        ),
        "CB411": Row(
            E,
            "rule `{rule}` needs {what} in kernel {kernel}, which has one index for batch and head, and nothing in it "
            "tells the two apart",
            "give the kernel the number of heads, and form its addresses from `batch = bh / heads` and "
            "`head = bh % heads`",
        ),
        "CB412": Row(
            E,
            "rule `{rule}` changes {function}, which kernel {other} of the same file calls too",
            "give kernel {kernel} a copy of {function} under another name, or adapt a file with this kernel alone",
        ),
        "CB408": Row(
            E,
            "the new parameter {name} has the name of something else in the kernel's file",
            "pass the file's identifiers to transfer as `reserved`, or rename the argument in the spec",
        ),
        "CB407": Row(
            E,
            "two changes touch the same text at byte {start}",
            "nothing was written; please report the kernel and the spec",
        ),
    }
)
