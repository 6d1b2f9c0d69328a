"""Diagnostic rows of a whole job: files, head dimensions, stale results (CB001, CB02x)."""

from __future__ import annotations

from ..diagnostics.catalogue import E, N, Row, W, register

register(
    {
        "CB001": Row(E, "'{path}' cannot be read: {why}", "Check the path and its permissions."),
        "CB020": Row(
            E,
            "'{path}' changed while the job ran; the result is for the old text and is not offered",
            "Run the command again on the file as it is now.",
        ),
        "CB021": Row(
            E,
            (
                "head dimension {want} does not fit: '{kernel}' would need {bytes} bytes of shared memory per CTA, "
                "{arch} has {limit}"
            ),
            "Use one of its head dimensions ({have}), or a kernel with smaller tiles or fewer stages.",
        ),
        "CB022": Row(
            E,
            "the spec has head dimension {want}; '{kernel}' is written for {have}",
            (
                "Change the spec's example inputs, or choose another kernel; with {want} it would need {bytes} bytes "
                "of shared memory."
            ),
        ),
        "CB029": Row(
            N,
            (
                "padded {what}: '{kernel}' is called with columns of zeros behind those of the spec, which change no "
                "score, and what they add to o is cut off; the scale is the spec's own"
            ),
            "The drop-in pads, which copies q, k and v; a kernel of the spec's own widths needs no copies.",
        ),
        "CB023": Row(
            E,
            "'{path}' holds no attention kernel that could be read",
            "Name the kernel with --kernel if the file has several; 'cubridge lift' shows what was understood. "
            "'cubridge adapt --watch' looks for the scores by running it.",
        ),
        "CB025": Row(
            E,
            "there is no kernel '{want}' in the file; it has {have}",
            "Choose one of these with --kernel.",
        ),
        "CB026": Row(
            E,
            "the adaptation failed its own verification, which is a defect of CuBridge, not of your files",
            "The text is shown as a sketch only; please report the kernel and the spec.",
        ),
        "CB027": Row(
            E,
            "the kernel was understood in part only ({what}), too little to change or to verify it",
            "See the other diagnostics: they name the statements that were not understood. 'cubridge adapt --watch' "
            "looks for the scores by running the kernel.",
        ),
        "CB033": Row(
            N,
            "inherited: on case '{case}' ({sizes}) the original kernel is wrong as well, at {place}: {got}, where "
            "attention over all keys has {want}",
            "Mend the kernel, or say in limits.requires of its contract what it needs (such as `1 <= Sk`): then"
            " nothing else is tested, and the report says so.",
        ),
        "CB034": Row(
            N,
            "the bundled kernel {name} can be changed to compute this spec: cubridge adapt {path} {spec}",
            "Start from it, if this kernel need not be the one.",
        ),
        "CB035": Row(
            W,
            "{header} changes, and is included by others as well ({others}): what they do changes with it",
            "Look at them, or write the result to a folder of its own (-o DIR) and leave the shared header as it is.",
        ),
        "CB036": Row(
            E,
            "the change is in no single file: it goes across the line of an #include",
            "Nothing was written. Put the part of the kernel that is in both into one file, and try again.",
        ),
        "CB037": Row(
            N,
            "tiles without an attended key are visited and masked: the text of '{kernel}' has no place to skip them",
            "The result is right, and slower than it could be. Compute the first tile in a variable before the loop, "
            "and let the loop and the loads before it use that.",
        ),
        "CB028": Row(
            E,
            "there is no tile map: {why}",
            "Choose lengths, tile, batch and head with --sq, --sk, --br, --bc, --b and --h.",
        ),
    }
)
