"""Rows CB623 to CB635: finding out how to call a kernel."""

from __future__ import annotations

from ..diagnostics.catalogue import E, N, Row, W, register

register(
    {
        "CB623": Row(E, "{path} has no kernel.", "Name the file that defines the __global__ function."),
        "CB624": Row(
            E,
            "{path} has no kernel {name}; it has {available}.",
            "Choose one of these with --kernel.",
        ),
        "CB625": Row(
            E,
            "How to call {kernel} is not known: {open}.",
            "Answer with --set, or write a comment `// cubridge: q=Q k=K v=V o=O grid=... block=...`"
            " with the kernel's own names.",
        ),
        "CB626": Row(
            W,
            "Called in this way, {kernel} computes none of the forms of attention that were tried"
            " (the nearest is {error} away).",
            "Check the roles of its parameters; if they are right, the kernel computes something else.",
        ),
        "CB627": Row(
            N,
            "The host launcher was not recorded: {reason}.",
            "Nothing is lost where the launch was found in another way; else say in a comment how to call the kernel.",
        ),
        "CB628": Row(E, "{path} exists already.", "Pass --force to overwrite it, or keep it: it is what is used."),
        "CB629": Row(
            W,
            "The trial of the call ended with a finding: {message}",
            "Check grid, block and the roles of the parameters; if they are right, the kernel has this fault.",
        ),
        "CB630": Row(
            E,
            "The comment says {text}, and {reason}.",
            "Write ROLE=NAME with a parameter of the kernel, grid=X,Y,Z, block=X,Y,Z, shared=BYTES or instance=NAME.",
        ),
        "CB631": Row(
            E,
            "{text} answers nothing: {reason}.",
            "Write --set NAME=ROLE with a parameter of the kernel, --set grid=X,Y,Z, --set block=X,Y,Z or"
            " --set instance=NAME.",
        ),
        "CB632": Row(
            W,
            "The call could not be tried: {reason}.",
            "What was found in the file is shown as it is; it was not confirmed by a run.",
        ),
        "CB633": Row(E, "{path} cannot be written: {reason}.", "Check the permissions of its folder."),
        "CB634": Row(
            N,
            "To compile it, these were found by themselves: {found}.",
            "Where your build uses others, name them in cubridge.toml: include, define, std.",
        ),
        "CB635": Row(
            N,
            "{kernel} is launched in another file: {file}, line {line}.",
            "Ask there, where more of the call is known: cubridge contract {file} --kernel {kernel}",
        ),
    }
)
