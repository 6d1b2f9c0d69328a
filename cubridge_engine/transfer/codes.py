"""Findings of transfer: what a kernel cannot be made to compute, and what a user should know about what was kept."""

from __future__ import annotations

from ..diagnostics import Row, Severity, register

E = Severity.ERROR
N = Severity.NOTE

register(
    {
        "CB301": Row(
            E,
            "the spec's normaliser is {normaliser}, and kernel {kernel} computes {have}",
            "start from a kernel with a softmax: it can be kept, or taken out for weights of single scores",
        ),
        "CB302": Row(
            E,
            "the spec's values have width {dv} and its keys width {d}; this kernel has one head dimension for both",
            (
                "choose a kernel with separate widths, as the bundled flash_fwd_scalar and flash_fwd_sm80 have, or pad "
                "v (or q and k) with zeros to one width in the spec"
            ),
        ),
        "CB303": Row(
            N,
            "the spec's example is in {dtype}; kernel {kernel} computes in {have} and is verified in that",
            "choose a kernel with the spec's element type if the precision matters",
        ),
        "CB304": Row(
            E,
            "the spec has head dimension {want}; kernel {kernel} holds {have} ({bytes} bytes of shared tiles)",
            "instantiate the kernel for D={want}, if the shared memory of the target allows it",
        ),
        "CB305": Row(
            E,
            "{role} is laid out as ({axes}) in the spec, and kernel {kernel} takes no stride argument to address that",
            "transpose {role} to (b, h, sequence, d) before the call, or give the kernel stride arguments",
        ),
        "CB306": Row(
            E,
            "the spec returns the log-sum-exp, and kernel {kernel} does not write it",
            "drop the second output from the spec, or choose a kernel that stores LSE",
        ),
        "CB307": Row(
            E,
            "kernel {kernel} already applies {have} to its scores, which the spec does not ask for",
            "start from a kernel with plain scaled scores",
        ),
        "CB308": Row(
            E,
            "kernel {kernel} was not understood well enough to change it: {why}",
            "run `cubridge lift` on the kernel: it names the statement that was not understood",
        ),
        "CB309": Row(
            E,
            "operand {name} is read as {read}, which has {got} indices for a tensor of {want} axes",
            "report the spec: this read cannot be addressed",
        ),
        "CB310": Row(
            N,
            "rows whose keys are all masked: the spec gives {spec}, the kernel keeps its own convention ({kernel})",
            "choose --empty-rows exact to get the spec's values there",
        ),
        "CB311": Row(
            E,
            "the sink needs the initial row maximum and row sum of kernel {kernel}, and {what} was not found",
            "initialise both before the KV loop, one statement each",
        ),
        "CB312": Row(
            E,
            "operand {name} has type {dtype}, which kernel {kernel} cannot read: {why}",
            "pass {name} as float32",
        ),
        "CB313": Row(
            E,
            "the change fails its check `{check}`: {detail}",
            "nothing was changed; simplify the spec at this line, or report it",
        ),
        "CB314": Row(
            N,
            "KV tiles without an attended key are visited: kernel {kernel} cannot be given a list of tiles, {why}",
            "correct, but not the fastest; a kernel whose loop counts KV tiles from 0, or down to it, can have a list",
        ),
        "CB315": Row(
            E,
            "the log-sum-exp of kernel {kernel} is not a natural logarithm of the same scores ({detail})",
            "store m + log(l) in natural units",
        ),
        "CB316": Row(
            N,
            "operand {name} has no effect on the result: the kernel does not take it",
            "nothing to do where the argument is there for the caller's sake; else use it",
        ),
        "CB317": Row(
            E,
            "the scale of the spec is {scale}; this kernel needs a positive one",
            "move the sign into q",
        ),
        "CB318": Row(
            E,
            "the head map {want} needs the number of KV heads, which kernel {kernel} does not take",
            "give the kernel the number of KV heads as an argument",
        ),
        "CB319": Row(
            E,
            "the spec returns a log-sum-exp, and its weights are no softmax",
            "return the output only",
        ),
        "CB321": Row(
            E,
            "k and v lie in pages of `{k}` and `{v}`, and kernel {kernel} cannot look rows up in `{table}`: {why}; "
            "gathering them first would copy {bytes} bytes in the example for each call",
            "start from a kernel with stride arguments that copies rows of K and V up to their number; to accept the "
            "copy, gather before the call and pass k and v as arguments of the spec",
        ),
        "CB322": Row(
            E,
            "kernel {kernel} attends only where {have}, which is less than the spec does, and its test has no place in "
            "the text that can be changed",
            "write the test as `if (masked) s = -INFINITY;` on a line of its own, or take it out of the kernel",
        ),
        "CB320": Row(
            E,
            "the online softmax of kernel {kernel} cannot be taken out: {why}",
            "start from a kernel that computes exp(S - m), the correction and the row sum as steps of their own",
        ),
    }
)
