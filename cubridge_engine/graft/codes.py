"""Diagnostic codes of adapting a kernel that was watched, not read."""

from __future__ import annotations

from ..diagnostics import Row, Severity, register

E = Severity.ERROR
N = Severity.NOTE

CODES = {
    "CB430": Row(
        E,
        "the kernel could not be watched: {why}",
        "`cubridge explain --watch` on the kernel says more; `cubridge contract` shows how it is called",
    ),
    "CB431": Row(
        E,
        "only a kernel that is seen to compute plain softmax attention over all keys its contract asks for can be "
        "adapted by watching, and this one computes: {what}",
        "change its contract, so that scale and masks are those of plain attention, or adapt a bundled kernel "
        "(`cubridge new`)",
    ),
    "CB432": Row(
        E,
        "no place in the text was found behind which every score is complete and in a variable of its own: {why}",
        "put the product of Q and K into a statement of its own that ends with the scores in an array of floats or in "
        "a tensor with size(t) and t(e)",
    ),
    "CB433": Row(
        E,
        "behind this line each score was seen, but its {what} is no sum of what is in scope there",
        "declare the {what} of the thread (an int) before this line",
    ),
    "CB434": Row(
        E,
        "{what} cannot be put into a kernel that was only watched: a score and a mask can",
        "adapt one of the bundled kernels to this spec, or leave {what} to the code around the kernel",
    ),
    "CB435": Row(
        N,
        "observed, not read: the kernel was run in the simulator ({problem}), where {function}; each of {count} "
        "scores passed exactly one of the changed places. What is said of the adapted text was executed; there is no "
        "level ir",
        "look at the hunks: nothing else of the text was changed or understood",
    ),
    "CB436": Row(
        E,
        "{name} is needed at the changed place, and nothing in scope there was seen to hold it",
        "declare it as an int before this line, or pass it as a parameter that the contract names",
    ),
    "CB437": Row(
        E,
        "the compiler's lines for this kernel lead to no file that may be changed: {why}",
        "adapt the kernel in a checkout of its own, with the header it is written in beside it",
    ),
}
register(CODES)
