"""Diagnostic rows of the verification room (CB7xx)."""

from __future__ import annotations

from ..diagnostics.catalogue import E, N, Row, W, register

register(
    {
        "CB701": Row(
            E,
            (
                "{output} differs from the spec on {case}: {place}: got {got}, want {want} (row error {error}, "
                "tolerance {tolerance})"
            ),
            "{advice}",
        ),
        "CB702": Row(
            E,
            "the kernel keeps {got}, the spec keeps {want}",
            "Change the mask so that it keeps the keys the spec attends; {example}.",
        ),
        "CB703": Row(
            E,
            "the kernel's score is {got}, the spec's is {want}",
            "Change the score expression (in natural units) to the spec's; {example}.",
        ),
        "CB704": Row(
            E,
            "the kernel reads KV head {got}, the spec reads {want}",
            "Use the spec's head map in every K and V base.",
        ),
        "CB705": Row(
            E,
            "the kernel starts its softmax with {got}, the spec's sink is {want}",
            (
                "Let the sink join the denominator once per row: m starts at the sink in the unit of S, l at 1 on one"
                " lane only."
            ),
        ),
        "CB706": Row(
            E,
            "the kernel fills masked scores with {got}, the spec with {want}",
            "Use the spec's fill: a finite one is visible on rows that are masked altogether.",
        ),
        "CB707": Row(
            E,
            "the kernel stores {got} for a row whose weighted sum is s and whose weights add up to l, the spec {want}",
            "Divide by what the spec divides by, or by nothing; the row sum must add up the same weights.",
        ),
        "CB709": Row(
            N,
            (
                "{rows} rows of the grid attend to no key: the spec gives NaN there, the kernel's O = 0 and LSE = "
                "-inf were kept"
            ),
            "Choose --empty-rows exact to have NaN there as in the spec.",
        ),
        "CB710": Row(
            N,
            "no case of the grid depends on {what}: {old} could be {new}",
            (
                "Nothing to do where it cannot matter (a constant added to a whole row); else verify with longer "
                "sequences."
            ),
        ),
        "CB721": Row(
            W,
            "no case of the grid depends on {what}: {old} could be {new}, so the result is not offered as verified",
            "verify on a smaller constant too, or compare with the spec at lengths beyond it on a GPU",
        ),
        "CB711": Row(
            E,
            "the grid has no power here: {what} would pass as the spec",
            "The spec's output does not depend on its inputs enough to be tested; check what it computes.",
        ),
        "CB712": Row(
            W,
            "verified to level '{level}' only: {why}",
            "{way_out}",
        ),
        "CB713": Row(
            E,
            "parameter '{name}' of the kernel has no value: the spec gives none and the file's header does not set it",
            "Add a line '// cubridge: set {name}=VALUE' at the top of the kernel, or pass --set {name}=VALUE.",
        ),
        "CB714": Row(
            E,
            "parameter '{name}' of the kernel is read as an extra tensor, but the spec has no tensor for it",
            (
                "Add a line '// cubridge: param {name} = operand:TENSOR' at the top of the kernel, naming an argument"
                " of the spec."
            ),
        ),
        "CB715": Row(
            N,
            "the spec does not run at {sizes} ({why}); those cases were compared with what was read from it",
            "Make the spec independent of the lengths it was written with, to have it checked there by itself.",
        ),
        "CB717": Row(
            E,
            "spec argument '{name}' has no effect on the kernel: nothing in it reads this tensor",
            "Pass the tensor to the kernel and use it, or remove it from the spec.",
        ),
        "CB718": Row(
            E,
            "on the device, {what} on {case}",
            "The kernel writes outside its output or changes its inputs: check the store predicates and the strides.",
        ),
        "CB720": Row(
            E,
            (
                "in the simulator, {output} differs from the spec on {case}: {place}: got {got}, want {want} (row error"
                " {error})"
            ),
            (
                "Where the program read from the text is right, look for what reading cannot see: synchronisation,"
                " bounds, strides, reuse of shared memory; findings of the same stage name the line."
            ),
        ),
        "CB726": Row(
            E,
            "the kernel is made for pages of {have} rows, and those of `{table}` have {want}",
            "adapt the kernel to the spec again: the page size is a number in its text",
        ),
        "CB727": Row(
            E,
            "{role} is addressed by strides that the kernel works out itself, ({strides}) for batch, head and row, and "
            "no tensor without gaps has them",
            "Address [B, H, S, D] or [B, S, H, D] without gaps, or give the kernel stride arguments.",
        ),
        "CB728": Row(
            E,
            "{role} is laid out as ({axes}) in the spec, and kernel {kernel} addresses it by strides that it works out "
            "itself: ({strides}) for batch, head and row",
            "Transpose {role} in the spec to the kernel's order, or give the kernel stride arguments.",
        ),
        "CB729": Row(
            N,
            "verified for sizes with {requires} only: the kernel's contract requires it",
            "Where callers have other sizes, change limits.requires of the contract, and verify again.",
        ),
        "CB725": Row(
            E,
            "the whole function differs, with the kernel in its drop-in file: {reason}",
            "The kernel alone is right, so look at the drop-in: what it passes, and what it does with the result.",
        ),
    }
)
