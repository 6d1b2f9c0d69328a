"""Diagnostic rows of the command line (CB0xx): usage and environment."""

from __future__ import annotations

from ..diagnostics.catalogue import E, N, Row, register

register(
    {
        "CB002": Row(E, "'{path}' exists already", "Choose another name for -o, or pass --force to overwrite it."),
        "CB003": Row(
            E,
            "'{path}' is the kernel itself: an adaptation is never written over its source",
            "Choose another name for -o; apply the diff by hand or in the editor if you want the change in place.",
        ),
        "CB004": Row(
            E, "'{path}' cannot be written: {why}", "Choose a folder you may write to, or check its permissions."
        ),
        "CB005": Row(
            E, "'{text}' is not NAME=VALUE", "Write --set NAME=VALUE with a number, for example --set causal=1."
        ),
        "CB006": Row(
            E,
            "nothing was written: the adaptation did not reach a level at which it may be used ({level})",
            "See the diagnostics above; with --force the text is written anyway, as a sketch.",
        ),
        "CB007": Row(E, "the package '{package}' is missing: {why}", "Install it: {command}"),
        "CB008": Row(
            E,
            "'{text}' is no architecture this version knows",
            "Write it as sm_80, sm_86, sm_90 or sm_90a; several are separated by commas.",
        ),
        "CB010": Row(
            E,
            "'{text}' names no outputs",
            "Write their numbers, from 0 and separated by commas: --outputs 0.",
        ),
        "CB011": Row(
            E,
            "'{path}' cannot be written as a picture: {why}",
            "Name a file that ends in .svg; a .png needs the package pillow: pip install pillow",
        ),
        "CB012": Row(
            E,
            "'{text}' is no shape",
            "Write sizes as NAME=NUMBER with the names B, H, Hkv, Sq, Sk, S, D and Dv: --shape B=4,H=32,S=4096,D=128.",
        ),
        "CB013": Row(
            E,
            "nothing was written to '{path}': the change is in other files too ({files})",
            "Pass a folder (-o DIR): every file goes there under its own name. Or pass --format diff, and give that to "
            "`git apply` in the folder of the kernel.",
        ),
        "CB014": Row(
            N,
            "{files} were not copied to '{path}': they lie outside the folder of the files that change",
            "Give the compiler their folder (-I), or copy them yourself.",
        ),
        "CB009": Row(N, "stopped on request; nothing was written", "Run the command again when you like."),
    }
)
