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
    "CB442": Row(
        N,
        "KV tiles without an attended key are visited and masked: the loop over keys was seen, and not understood, "
        "and keeps its bounds",
        "The result is right, and slower than it could be. Where the kernel takes a first and a last tile or a window, "
        "pass the one of the spec and verify again.",
    ),
    "CB441": Row(
        N,
        "the original has this finding, too, which is no reason to refuse what was changed ({finding}): {what}",
        "every number of the grid was right although unwritten memory holds NaN there",
    ),
    "CB440": Row(
        N,
        "masked scores become -2^100, not -INFINITY: with that the kernel gives NaN where the first are masked",
        "nothing is to be done: the adapted text was executed with it",
    ),
    "CB439": Row(
        N,
        "watched, not read: the kernel was compiled, and run as its contract says. There is no level ir",
        "`cubridge explain --watch` on the kernel shows what was seen of it",
    ),
    "CB438": Row(
        E,
        "a sink joins the sum of a row behind the loop over keys, and {why}",
        "keep running maximum and sum of the rows in variables that live on behind the loop: floats, an array, or "
        "public members of one variable",
    ),
    "CB437": Row(
        E,
        "the compiler's lines for this kernel lead to no file that may be changed: {why}",
        "adapt the kernel in a checkout of its own, with the header it is written in beside it",
    ),
}
register(CODES)
