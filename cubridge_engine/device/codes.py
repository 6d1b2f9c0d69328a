"""Rows CB640 to CB669: the device, binding arguments, launching."""

from __future__ import annotations

from ..diagnostics.catalogue import E, N, Row, register

ROWS = {
    "CB640": Row(
        N,
        "No CUDA device: {reason}.",
        "The result stays at the level that needs no device; run `cubridge verify` again where there is one.",
    ),
    "CB641": Row(
        E,
        "The driver cannot load the kernel: {message}",
        "Compile for the architecture of the device ({device}), with a toolkit no newer than its driver ({driver}).",
    ),
    "CB642": Row(
        E,
        "The launch of {kernel} was refused: {message} (grid {grid}, block {block}, {shared} bytes of shared memory).",
        "Check the block size, the registers per thread and the shared memory against the device.",
    ),
    "CB643": Row(
        E,
        "{kernel} touched memory it does not own: {message}",
        "Look for a load or store without a bound on rows or columns; compute-sanitizer names the line.",
    ),
    "CB644": Row(E, "{kernel} failed on the device: {message}", "compute-sanitizer names the line."),
    "CB645": Row(
        E,
        "The kernel's argument {name} (role {role}) has no value.",
        "Give it in the bindings by name or by role.",
    ),
    "CB646": Row(E, "The tensor for {name} cannot be passed: {reason}.", "Make it contiguous or convert it first."),
    "CB647": Row(
        E,
        "The compiled module has no kernel {kernel}; it has {available}.",
        "Compile with the kernel's name expression.",
    ),
    "CB648": Row(
        E,
        "{kernel} asks for {needed} bytes of shared memory; a CTA of {device} can have {limit}.",
        "Use a smaller tile, fewer stages or a smaller head dimension.",
    ),
    "CB649": Row(E, "The argument {name} is {value}, which does not fit {type}.", "Use smaller sizes or strides."),
    "CB650": Row(
        E,
        "`cubridge bench` needs a CUDA device: {reason}.",
        "Run it on a machine with an NVIDIA GPU, its driver, and a torch that is built for CUDA.",
    ),
    "CB651": Row(
        E,
        "The spec or the kernel does not take this problem: {reason}.",
        "Choose sizes that both take with --shape, for example --shape B=4,H=32,S=4096.",
    ),
    "CB652": Row(
        E,
        "The kernel's result is wrong: an error of {error:.2e} where {limit:.0e} is accepted; it was not timed.",
        "`cubridge verify` says where kernel and spec differ.",
    ),
    "CB653": Row(E, "The kernel cannot be run: {reason}.", "`cubridge verify` says more about a kernel that fails."),
}

register(ROWS)
