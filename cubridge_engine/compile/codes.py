"""Rows CB600 to CB639: compiling, and the contract of a kernel."""

from __future__ import annotations

from ..diagnostics.catalogue import E, N, Row, W, register

PIP_INSTALL = "pip install 'nvidia-cuda-nvrtc==13.0.*' 'nvidia-cuda-runtime==13.0.*' 'nvidia-cuda-crt==13.0.*'"

ROWS = {
    "CB600": Row(
        E,
        "No CUDA compiler was found: NVRTC is not installed and nvcc is not on the PATH.",
        "Install NVRTC, which needs neither a GPU nor a host compiler: {install}",
    ),
    "CB601": Row(
        E,
        "The compiler backend {backend} was asked for and is not available: {reason}.",
        "Use the automatic choice of backend, or install it: {install}",
    ),
    "CB602": Row(
        E,
        "{compiler} cannot compile for {arch}.",
        "Choose an architecture that it knows: {supported}.",
    ),
    "CB603": Row(
        E, "The compiler says: {message}", "Correct the line; if it is host code, guard it with #ifndef __CUDACC_RTC__."
    ),
    "CB604": Row(W, "The compiler warns: {message}", "Check the line; the kernel compiles."),
    "CB605": Row(
        E,
        "ptxas rejects the generated PTX: {message}",
        "An instruction in an asm statement needs another architecture than {arch}, or has wrong operands.",
    ),
    "CB606": Row(
        E,
        "The header {header} was not found.",
        "{way}",
    ),
    "CB607": Row(
        E,
        "Nothing was generated: the file has no kernel outside a template.",
        "Name the instance to compile, such as name_expressions=['my_kernel<__half, 64>'], or write a contract.toml.",
    ),
    "CB608": Row(
        E,
        "The kernel instance {expression} does not exist: {message}",
        "Check its name, its namespace and its template arguments.",
    ),
    "CB609": Row(
        W,
        "{kernel} spills {spill_stores} bytes of registers on {arch} ({registers} registers per thread).",
        "Spilled registers go through local memory in every tile; use a smaller tile or a shorter inner loop.",
    ),
    "CB610": Row(
        E,
        "{kernel} needs {needed} bytes of shared memory per CTA ({static} static, {dynamic} dynamic);"
        " {arch} has {limit}.",
        "Use a smaller tile, fewer stages or a smaller head dimension.",
    ),
    "CB611": Row(
        W,
        "ptxas notes {note}: {message}",
        "The kernel runs, but not as fast as it is written to; see the note in the CUDA documentation.",
    ),
    "CB612": Row(
        N,
        "{count} parts of host code were left out to compile the kernels alone.",
        "Guard host code with #ifndef __CUDACC_RTC__ to choose for yourself what is left out.",
    ),
    "CB613": Row(
        E,
        "{compiler} failed without naming a line: {message}",
        "Run it by hand on the file to see the whole message.",
    ),
    "CB614": Row(
        E, "{compiler} was stopped after {seconds} s.", "Compile fewer instances at once, or raise the limit."
    ),
    "CB615": Row(E, "{path} cannot be read: {reason}.", "Check the name of the file and its permissions."),
    "CB616": Row(
        E,
        "There is no folder for the stubs of {headers}.",
        "Set CUBRIDGE_CACHE to a folder that may be written; headers of host libraries are stood in for from there.",
    ),
    "CB617": Row(
        E,
        "{instructions} {verb} {needed}; the kernel was compiled for {arch}, which lacks what only {needed} has.",
        "Use {needed}: --arch {needed}, or archs in contract.toml.",
    ),
    "CB618": Row(
        E,
        "The header {header} is in {count} folders of the project, each with another text: {folders}.",
        'Name the one that your build uses in cubridge.toml: include = ["{first}"].',
    ),
    "CB619": Row(
        W,
        "A macro is missing that the build gives: {macro}; {reason}.",
        'Give it in cubridge.toml: define = ["{macro}"], or ["{macro}=VALUE"].',
    ),
    "CB620": Row(
        E, "The contract cannot be read: {reason}.", "Compare it with expert_kernels/flash_fwd_sm80/contract.toml."
    ),
    "CB621": Row(
        E, "The contract's field {field} is wrong: {reason}.", "Correct it; the fields are listed in {where}."
    ),
    "CB622": Row(
        E,
        "The contract has no instance for dtype {dtype} and head dimension {head_dim}; it has {available}.",
        "Use one of these, or add an instance to the kernel and its contract.",
    ),
}

register(ROWS)
