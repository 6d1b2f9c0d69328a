"""From samples of a launch to a proposal: a role for every argument, grid, block and shared bytes as expressions."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..compile import Field, Parameter
from ..compile.parameters import POINTER_DTYPES, SCALAR_BYTES, STRUCT
from . import hints
from .fit import SIZE_ROLES, fit_float, fit_int, fit_stride
from .recorded import as_float
from .samples import Pointer, Sample, Value
from .signature import Argument

_POINTER_OF = {"float32": "float*", "float16": "half*", "bfloat16": "bfloat16*", "int32": "int32*", "int64": "int64*",
               "bool": "bool*", "uint8": "bool*"}  # fmt: skip
MAX_PLAIN = 1 << 24  # an int whose bits are a float's is larger


@dataclass(slots=True)
class Proposal:
    """What one way of finding out says. `parameters` by position; None for one that it does not know. `unknown`:
    names of what stays open. `seen`: size roles that occur anywhere, which tells what the kernel is told of.
    """

    parameters: list[Parameter | None] = field(default_factory=list[Parameter | None])
    grid: tuple[str, str, str] | None = None
    block: tuple[int, int, int] | None = None
    shared: str | None = None
    requires: tuple[str, ...] = ()
    layout: str = "bhsd"
    unknown: list[str] = field(default_factory=list[str])


def propose(
    samples: Sequence[Sample], arguments: Sequence[Argument], layout: str, unknown: Mapping[str, str], ragged: bool
) -> Proposal:
    """Fit the samples. `arguments` are the kernel's parameters as its signature has them, or made of the PTX's."""
    first = samples[0]
    found = Proposal(layout="bshd" if layout == "bshd" else "bhsd")
    for position, argument in enumerate(arguments):
        values = [s.args[position] if position < len(s.args) else None for s in samples]
        parameter = None if any(v is None for v in values) else _parameter(argument, values, samples)
        found.parameters.append(parameter)
        if parameter is None:
            found.unknown.append(argument.name)
    if "grid" not in unknown:
        axes = [fit_int([s.grid[n] for s in samples], samples) for n in range(3)]
        found.grid = (axes[0], axes[1], axes[2]) if axes[0] and axes[1] and axes[2] else None
    if "block" not in unknown and all(s.block == first.block for s in samples):
        found.block = first.block
    if "shared" not in unknown:
        found.shared = fit_int([s.shared for s in samples], samples)
    found.parameters = laid_out(found.parameters, found.layout)
    found.requires = requires_of(found, layout, ragged, first.sizes["H"])
    return found


def _parameter(argument: Argument, values: Sequence[object], samples: Sequence[Sample]) -> Parameter | None:
    if all(isinstance(v, tuple) for v in values):
        return _struct(argument, values, samples)  # type: ignore[arg-type]
    if all(isinstance(v, Pointer) for v in values):
        return _pointer(argument.name, argument.kind, values, samples)  # type: ignore[arg-type]
    if argument.kind in POINTER_DTYPES:
        zero = all(v == 0 or (isinstance(v, Pointer) and v.memory is None) for v in values)
        return (
            Parameter(argument.name, f"operand:{_word(argument.name)}", argument.kind, optional=True) if zero else None
        )
    numbers = [v for v in values if isinstance(v, (int, float))]
    if len(numbers) != len(values):
        return None
    return _number(argument, numbers, samples)


def _word(name: str) -> str:
    return name if name.isidentifier() else "_" + re.sub(r"\W", "_", name)


def _pointer(name: str, kind: str, pointers: Sequence[Pointer], samples: Sequence[Sample]) -> Parameter | None:
    memories = [p.memory for p in pointers]
    first = memories[0]
    if any((m is None) != (first is None) for m in memories):
        return None
    if first is None:
        pointer_kind = kind if kind in POINTER_DTYPES else "float*"
        return Parameter(name, f"operand:{_word(name)}", pointer_kind, optional=True)
    known = [m for m in memories if m is not None]
    if any(p.offset for p in pointers) or len({m.role for m in known}) > 1:
        return None
    role = first.role
    kind = kind if kind in POINTER_DTYPES else _POINTER_OF.get(first.dtype, "float*")
    fill = _fill(first.fill)
    if role in ("q", "k", "v"):
        return Parameter(name, role, kind)
    if role in ("o", "lse"):
        return Parameter(name, role, "float*" if role == "lse" else kind, fill=fill)
    if role.startswith("extra:"):
        return None
    elements = fit_int([m.elements for m in known], samples, ("B * H * Sq",))
    return (
        Parameter(name, "scratch", kind if kind != "T*" else "float*", elements=elements or "", fill=fill)
        if (elements)
        else None
    )


def _fill(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _number(argument: Argument, numbers: Sequence[int | float], samples: Sequence[Sample]) -> Parameter | None:
    name, kind = argument.name, argument.kind
    if kind in ("float32", "float64") or any(isinstance(v, float) for v in numbers):
        kind = kind if kind in ("float32", "float64") else "float32"
        return _real(name, kind, [_as_real(v, kind) for v in numbers], samples)
    kind = kind if kind in SCALAR_BYTES else "int32"
    whole = [int(v) for v in numbers]
    if hints.is_causal(name) and set(whole) <= {0, 1}:
        return Parameter(name, "flag:causal", kind)
    return _whole(name, kind, whole, samples)


def _as_real(value: int | float, kind: str) -> float:
    """A recorded float is four bytes, read as a word; an evaluated one is a float already."""
    return as_float(value) if isinstance(value, int) and kind == "float32" and abs(value) > MAX_PLAIN else float(value)


def _real(name: str, kind: str, values: Sequence[float], samples: Sequence[Sample]) -> Parameter | None:
    found = fit_float(values, samples)
    if found in ("scale", "scale_log2"):
        return Parameter(name, found, kind)
    if found is None or not math.isfinite(float(found)):
        return None
    return Parameter(name, "value", kind, value=found if "." in found else f"{float(found):f}")


def _whole(name: str, kind: str, values: Sequence[int], samples: Sequence[Sample]) -> Parameter | None:
    tensor, axis = hints.stride_of(name)
    hint = hints.size_role(name)
    stride = fit_stride(values, samples, (tensor,) if tensor else ())
    padded = any(_is_padded(s) for s in samples)
    if stride is not None and (tensor or axis or hints.STRIDE.search(name.lower()) or (padded and not hint)):
        return Parameter(name, stride, kind)
    prefer = ("H // Hkv",) if hint == "group" else (hint,) if hint in SIZE_ROLES else ("D",) if hint == "Dv" else ()
    text = fit_int(values, samples, prefer)
    if text is None and stride is not None:
        return Parameter(name, stride, kind)
    if text is None:
        return None
    if text in SIZE_ROLES:
        return Parameter(name, text, kind)
    return Parameter(name, "group", kind) if text == "H // Hkv" else Parameter(name, "value", kind, value=text)


def _is_padded(sample: Sample) -> bool:
    return any(step % sample.sizes["D"] for name, step in sample.strides.items() if name.endswith(".row"))


# ---- structs


def _struct(
    argument: Argument, values: Sequence[tuple[tuple[int, Value], ...]], samples: Sequence[Sample]
) -> Parameter | None:
    offsets = sorted({offset for leaves in values for offset, _ in leaves})
    tables = [dict(leaves) for leaves in values]
    size = max(offset + (8 if isinstance(value, Pointer) else 4) for offset, value in values[0])
    fields: list[Field] = []
    end = 0
    for offset in offsets:
        column = [table.get(offset, 0) for table in tables]
        if offset < end or all(v == 0 for v in column):
            continue
        leaf = _leaf(f"{argument.name}_{offset}", column, samples)
        if leaf is None:
            return None
        fields.append(Field(offset, leaf))
        end = offset + leaf.width
    return Parameter(argument.name, STRUCT, STRUCT, fields=tuple(fields), size=-(-size // 4) * 4)


def _leaf(name: str, column: Sequence[Value], samples: Sequence[Sample]) -> Parameter | None:
    if all(isinstance(v, Pointer) for v in column):
        return _pointer(name, "", column, samples)  # type: ignore[arg-type]
    if any(isinstance(v, Pointer) for v in column):
        return None
    words = [int(v) for v in column]  # type: ignore[arg-type]
    reals = [as_float(word) for word in words]
    if all(abs(word) > MAX_PLAIN for word in words) and all(1e-8 < abs(r) < 1e8 for r in reals):
        return _real(name, "float32", reals, samples)
    stride = (
        fit_stride(words, samples) if any(_is_padded(s) for s in samples) or fit_int(words, samples) is None else None
    )
    return Parameter(name, stride, "int32") if stride is not None else _whole(name, "int32", words, samples)


# ---- what a call must keep to


def laid_out(parameters: Sequence[Parameter | None], layout: str) -> list[Parameter | None]:
    """`parameters`, with the layout of tensors whose strides the kernel is not told."""
    leaves = [leaf for p in parameters if p is not None for leaf in p.leaves]
    told = {p.role.removeprefix("stride:").partition(".")[0] for p in leaves if p.role.startswith("stride:")}

    def laid(p: Parameter) -> Parameter:
        if p.type == STRUCT:
            return replace(p, fields=tuple(replace(f, parameter=laid(f.parameter)) for f in p.fields))
        if p.role not in ("q", "k", "v", "o") or p.role in told:
            return p
        # One set of strides for K and V: where the kernel is told K's alone, V has them.
        return replace(p, layout="k" if p.role == "v" and "k" in told else layout)

    return [laid(p) if p is not None else None for p in parameters]


def requires_of(found: Proposal, layout: str, ragged: bool, heads: int) -> tuple[str, ...]:
    """Conditions on the sizes: two lengths of which the kernel is told one are one, and so for heads."""
    leaves = [leaf for p in found.parameters if p is not None for leaf in p.leaves]
    words = {w for p in leaves for w in re.findall(r"\w+", f"{p.role} {p.value} {p.elements}")}
    rows: list[str] = []
    if "Sk" not in words:
        rows.append("Sq == Sk")
    if not words & {"Hkv", "group"} and heads != 1:
        rows.append("H == Hkv")
    if layout == "sd":
        rows += ["B == 1", "H == 1"]
    if not ragged and found.grid is not None:
        tile = next((int(m[1]) for text in found.grid if (m := re.match(r"(?:cdiv\(Sq, |Sq // )(\d+)", text))), 0)
        rows += [f"Sq % {tile} == 0"] if tile > 1 else []
    return tuple(dict.fromkeys(rows))


def tile_of(grid: Sequence[str]) -> int:
    """Query rows of a CTA as the grid says it; 0 where it does not."""
    for text in grid:
        match = re.search(r"cdiv\(Sq, (\d+)\)|Sq // (\d+)|cdiv\([BH *]+ \* Sq, (\d+)\)", text)
        if match:
            return int(match[1] or match[2] or match[3])
    return 1 if any(re.fullmatch(r"(B \* H \* |H \* |B \* )?Sq", text) for text in grid) else 0
