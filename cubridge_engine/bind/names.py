"""Binding by names alone: a role for each parameter as it is called, and launches to try."""

from __future__ import annotations

import re

from ..compile import Parameter
from ..compile.parameters import POINTER_DTYPES
from ..source import SourceFile
from . import hints
from .signature import Argument, Signature

_ROWS = re.compile(
    r"(k?br|k?b_?r|k?block_?m|block_?q|q_tile|tile_?q|bm|q_block\w*|rows_per_block|block_size_?[mrq]|tile_?m)$", re.I
)
_THREADS = re.compile(r"(n?_?threads?|num_?threads|block_?size|threads_per_block|block_?dim|k?n?threads)$", re.I)


def parameter_named(argument: Argument, taken: set[str]) -> Parameter | None:
    """The parameter that a name suggests; None where it suggests nothing, or what another has already."""
    name, kind = argument.name, argument.kind
    if kind in POINTER_DTYPES:
        role = hints.tensor_role(name)
        if role and role not in taken:
            return Parameter(name, role, "float*" if role == "lse" and kind == "T*" else kind)
        if re.fullmatch(r"l|m|li|mi|l_i|m_i|row_sum|row_max|denom\w*|sums?|maxs?", hints.plain(name)):
            return Parameter(name, "scratch", "float*" if kind == "T*" else kind, elements="B * H * Sq")
        if hints.OPTIONAL.fullmatch(name.lower()):
            return Parameter(name, f"operand:{name}", kind, optional=True)
        return None
    if kind in ("float32", "float64"):
        role = hints.scale_role(name)
        off = Parameter(name, "value", kind, value="0.0") if hints.is_off_by_default(name) else None
        return Parameter(name, role, kind) if role else off
    if kind == "struct":
        return None
    tensor, axis = hints.stride_of(name)
    if tensor and axis:
        return Parameter(name, f"stride:{tensor}.{axis}", kind)
    if hints.is_causal(name):
        return Parameter(name, "flag:causal", kind)
    role = hints.size_role(name)
    return Parameter(name, "D" if role == "Dv" else role, kind) if role else None


def parameters_named(kernel: Signature) -> list[Parameter | None]:
    """A parameter for each argument whose name says something; unnamed tensors are q, k, v, o in order."""
    taken: set[str] = set()
    found: list[Parameter | None] = []
    for argument in kernel.arguments:
        parameter = parameter_named(argument, taken)
        taken |= {parameter.role} if parameter is not None else set()
        found.append(parameter)
    pointers = [n for n, a in enumerate(kernel.arguments) if a.kind in POINTER_DTYPES]
    if not taken & {"q", "k", "v", "o"} and len(pointers) >= 4:
        for role, n in zip(("q", "k", "v", "o"), pointers, strict=False):
            found[n] = Parameter(kernel.arguments[n].name, role, kernel.arguments[n].kind)
    return found


def constants(source: SourceFile, pattern: re.Pattern[str]) -> list[int]:
    """Numbers that the file gives to names of a kind: macros and constants."""
    rows = [(name, m.body.strip(" ()")) for name, m in source.macros.items() if m.params is None]
    text = source.code.decode("utf-8", "replace")
    rows += re.findall(r"\b(?:constexpr|const|int)\s+(?:\w+\s+)*(\w+)\s*=\s*(\d+)\s*[;,]", text)
    return list(dict.fromkeys(int(value) for name, value in rows if value.isdigit() and pattern.match(name)))


# Orders of a grid's axes: T stands for tiles of query rows.
ORDERS = (("T", "H", "B"), ("T", "B * H", "1"), ("B * H", "T", "1"), ("B", "H", "T"), ("H", "B", "T"), ("B", "T", "H"))


def blocks_to_try(source: SourceFile, bounds: int | None) -> list[tuple[int, int, int]]:
    """Blocks, the likeliest first; `bounds`: ``__launch_bounds__`` or ``.maxntid`` of the kernel."""
    threads = [*([bounds] if bounds else []), *constants(source, _THREADS), *constants(source, _ROWS), 128, 256, 64, 32]
    return [(n, 1, 1) for n in dict.fromkeys(threads) if 1 <= n <= 1024]
