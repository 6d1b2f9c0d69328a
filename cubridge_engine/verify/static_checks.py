"""The static findings of an instantiation, from what its contract promises: see ``simulate.static_findings``.

Sizes go from small to what the largest GPUs can hold, heads contiguous or interleaved with rows: a 32-bit product in
an address wraps at some of them, and no launch that can be executed here shows it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..compile import Compiled, Contract, Instance, Parameter
from ..diagnostics import Diagnostic
from ..simulate import Alignment, Module, StaticLaunch, static_findings

ELEMENT_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
MOST_BYTES = 1 << 37  # of a tensor: four of them fill the largest GPU
# (B, H, S), from small to large; Sq = Sk = S.
SIZES = (
    (1, 2, 200), (1, 64, 4096), (64, 64, 4096), (4, 64, 1 << 17), (1, 64, 1 << 20), (1024, 64, 8192), (1, 1, 1 << 26),
)  # fmt: skip
LONGEST = 1 << 26
_TENSORS = ("q", "k", "v", "o")


def static_checks(contract: Contract, instance: Instance, module: Module, compiled: Compiled) -> tuple[Diagnostic, ...]:
    """CB534..CB538 of one instantiation. `compiled` holds `module`'s PTX, and with a cubin also what ptxas noted."""
    return static_checks_of(contract, instance, module, compiled.lowered[instance.expression], compiled.notes)


def static_checks_of(
    contract: Contract,
    instance: Instance,
    module: Module,
    entry: str,
    notes: Sequence[str] = (),
    longest: int = LONGEST,
) -> tuple[Diagnostic, ...]:
    """The same for the entry of that name, with sequences up to `longest`."""
    size = ELEMENT_BYTES[instance.dtype]
    launches = [
        launch_of(contract, instance, dict(zip("BHS", sizes, strict=True)), layout)
        for sizes in SIZES
        for layout in ("bhsd", "bshd")
        if sizes[2] <= longest and sizes[0] * sizes[1] * sizes[2] * instance.head_dim * size <= MOST_BYTES
    ]
    promises = promises_of(contract.parameters, contract.alignment_bytes, size)
    return static_findings(module, entry, launches, promises=promises, notes=notes)


def promises_of(parameters: Sequence[Parameter], alignment: int, element: int) -> tuple[Alignment, ...]:
    """Tensors and their strides are multiples of `alignment` bytes; LSE and extra tensors are not judged."""
    found: list[Alignment] = []
    for position, parameter in enumerate(parameters):
        tensor = parameter.role.removeprefix("stride:").partition(".")[0]
        if tensor in _TENSORS and not parameter.role.endswith(".col"):
            unit = alignment if parameter.is_pointer else max(alignment // element, 1)
            found.append(Alignment(parameter.name, position, unit))
    return tuple(found)


def launch_of(contract: Contract, instance: Instance, bhs: Mapping[str, int], layout: str) -> StaticLaunch:
    """One launch as numbers: strides of contiguous ``bhsd`` or ``bshd`` tensors, eight query heads to a KV head."""
    b, h, s, (d, dv) = bhs["B"], bhs["H"], bhs["S"], instance.widths
    sizes = {"B": b, "H": h, "Hkv": max(h // 8, 1), "Sq": s, "Sk": s, "D": d, "Dv": dv}
    shape = contract.launch(sizes, instance.dtype)
    arguments: list[int | None] = []
    for position, parameter in enumerate(contract.parameters):
        if parameter.is_pointer:
            arguments.append((position + 1) << 40)
        elif parameter.role.startswith("stride:"):
            tensor, _, axis = parameter.role.removeprefix("stride:").rpartition(".")
            heads = sizes["Hkv"] if tensor in ("k", "v") else h
            width = dv if tensor in ("v", "o") else d
            arguments.append(_stride(axis, heads, s, width, layout) if tensor in _TENSORS else None)
        elif parameter.role.startswith("flag:"):
            arguments.append(0)
        else:
            arguments.append(sizes.get(parameter.role))
    label = f"B = {b}, H = {h}, Sq = Sk = {s}, D = {d}, layout {layout}"
    return StaticLaunch(label, tuple(arguments), shape.grid, shape.block, shape.dynamic_shared_bytes)


def _stride(axis: str, heads: int, length: int, d: int, layout: str) -> int:
    bshd = layout == "bshd"
    return {"b": heads * length * d, "h": d if bshd else length * d, "row": heads * d if bshd else d, "col": 1}[axis]
