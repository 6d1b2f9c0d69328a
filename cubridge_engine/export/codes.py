"""Rows CB670 to CB679: a kernel as a PyTorch operator."""

from __future__ import annotations

from ..diagnostics.catalogue import E, Row, register

register(
    {
        "CB670": Row(
            E,
            "No contract says how {kernel} is compiled and called.",
            "Write a contract.toml beside the file (those of the bundled kernels are examples), or export an adapted "
            "bundled kernel.",
        ),
        "CB671": Row(
            E,
            "The parameters of {kernel} are not those of its contract: {reason}.",
            "Adapt the kernel again, or make the contract's `parameters` those of the text.",
        ),
        "CB672": Row(
            E,
            "The file was adapted, but does not say at which head dimension; {name} depends on it.",
            "Adapt it again with this version, or name the one that it was adapted at: --head-dim 64.",
        ),
        "CB673": Row(
            E,
            "The parameter {name} cannot be passed: {reason}.",
            "Give it a value with --set, or adapt the kernel again so that its header says what it is.",
        ),
        "CB674": Row(
            E,
            "The kernel has no instantiation at head dimension {widths} for which its header gives values.",
            "Adapt the kernel again, at a head dimension that its contract lists.",
        ),
        "CB675": Row(
            E,
            'The file includes "{header}", which {reason}.',
            "Put the header beside the kernel, or its text into the kernel's file.",
        ),
        "CB676": Row(
            E,
            "'{name}' cannot be the name of an operator: {reason}.",
            "Choose another with --name, for example --name gemma_attention.",
        ),
        "CB677": Row(
            E,
            "{kernel} takes {name}, {reason}, for which a module has no place.",
            "Call the kernel by the launcher in its file, or by `cubridge_engine.device`, which binds such arguments.",
        ),
    }
)
