"""Diagnostic codes of lifting."""

from ..diagnostics import Row, Severity, register

register(
    {
        "CB120": Row(
            Severity.ERROR,
            "this file has no __global__ function with a body",
            "open the .cu file that defines the kernel; a header with only declarations cannot be lifted",
        ),
        "CB121": Row(Severity.ERROR, "there is no kernel named {name} in this file", "choose one of: {names}"),
        "CB122": Row(
            Severity.WARNING,
            "{name} was not recognised as attention: {missing} not found",
            "if it is an attention kernel, the lines that were not understood are listed; simplify them or report them",
        ),
        "CB123": Row(
            Severity.WARNING,
            "not understood: {why}",
            "the rest of the kernel is lifted; edits that depend on this line are refused",
        ),
        "CB124": Row(
            Severity.NOTE,
            "{name} is read with {values}, because the file does not say how it is instantiated",
            "add an explicit instantiation or a launch with the values that are meant; adapt and verify take the head "
            "dimension from the spec",
        ),
        "CB125": Row(
            Severity.NOTE,
            "{name} is read with {threads} threads per block, because the file does not say how it is launched",
            "add __launch_bounds__(threads) to the kernel or the launch to the file",
        ),
        "CB127": Row(
            Severity.ERROR,
            "{name} could not be read: {why}",
            "this is a defect of the lifter; please report it with the file",
        ),
        "CB128": Row(
            Severity.WARNING,
            "{names} not declared in this file",
            "declare it before its first use; what comes from another header has to be in this file to be understood",
        ),
        "CB129": Row(
            Severity.WARNING,
            "{name} was not read to its end: it takes longer than {seconds:.0f} s",
            "name the kernel that is meant; a loop of many trips over constants is executed trip by trip",
        ),
        "CB136": Row(
            Severity.NOTE,
            "the rows of m, l and O are read before this kernel has stored them: they are taken to hold -inf, 0 and 0",
            "fill them so before every launch; the kernel itself does not say what they hold at first",
        ),
        "CB126": Row(
            Severity.ERROR,
            "the block's part of the problem was not understood: {why}",
            "check that the batch, head and row offsets of Q, K and V are sums of index times stride",
        ),
    }
)
