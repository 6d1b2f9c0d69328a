"""Calls of a kernel as numbers, whichever way they were found: the sizes of a problem, and what was then passed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Sizes = Mapping[str, int]

# Problems whose sizes tell every size from every other, and from their products, over the set. Multiples of 128 first:
# many launchers refuse others.
PROBLEMS: tuple[dict[str, int], ...] = (
    {"B": 2, "H": 6, "Hkv": 3, "Sq": 256, "Sk": 384},
    {"B": 3, "H": 10, "Hkv": 2, "Sq": 128, "Sk": 512},
    {"B": 1, "H": 4, "Hkv": 1, "Sq": 640, "Sk": 256},
    {"B": 5, "H": 14, "Hkv": 7, "Sq": 384, "Sk": 128},
)
# Lengths that every tile size rounds up to another number.
RAGGED: dict[str, int] = {"B": 2, "H": 6, "Hkv": 3, "Sq": 261, "Sk": 521}
SCALES = (0.3125, 0.40625, 0.28125, 0.34375, 0.4375, 0.21875)  # of the calls in turn: no power of a head dimension


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of a launch. `role` is q, k, v, o or lse, ``extra:NAME`` for another tensor that was given, or '' for what
    the launcher allocated. `dtype` may be ''. `fill` is what it holds: a number as text, or '' when nobody knows.
    """

    name: str
    role: str
    elements: int
    dtype: str = ""
    fill: str = ""


@dataclass(frozen=True, slots=True)
class Pointer:
    """An address in a memory, `offset` bytes from its start. A null pointer has no memory."""

    memory: Memory | None
    offset: int = 0


Value = Pointer | int | float
Leaf = tuple[int, Value]  # byte offset within the argument, value


@dataclass(frozen=True, slots=True)
class Sample:
    """One launch. `args`: for each argument its value, or its parts by byte offset for a struct; None where it is not
    known. `strides` of the tensors passed, in elements, by ``q.b`` and its like; `scale` as it was passed.
    """

    sizes: Sizes
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    args: tuple[Value | tuple[Leaf, ...] | None, ...]
    strides: Mapping[str, int] = field(default_factory=dict[str, int], hash=False)
    scale: float = 0.0
    kernel: str = ""
    causal: bool = False


def shape_of(role: str, sizes: Sizes, layout: str) -> tuple[int, ...]:
    """The shape of q, k, v, o or lse in a layout: ``bhsd``, ``bshd``, ``hsd`` (batch and heads in one axis), ``sd``."""
    heads = sizes["Hkv"] if role in ("k", "v") else sizes["H"]
    rows = sizes["Sk"] if role in ("k", "v") else sizes["Sq"]
    b, d = sizes["B"], sizes["D"]
    if role == "lse":
        return {"hsd": (b * heads, rows), "sd": (rows,)}.get(layout, (b, heads, rows))
    shapes = {"bhsd": (b, heads, rows, d), "bshd": (b, rows, heads, d), "hsd": (b * heads, rows, d), "sd": (rows, d)}
    return shapes[layout]


def dense(shape: tuple[int, ...], pad: int = 0) -> tuple[int, ...]:
    """Strides in elements, with `pad` unused elements behind each row."""
    steps: list[int] = []
    step = 1
    for extent in reversed(shape):
        steps.append(step)
        step = step * extent + (pad if len(steps) == 1 else 0)
    return tuple(reversed(steps))


def strides_of(role: str, sizes: Sizes, layout: str, pad: int = 0) -> dict[str, int]:
    """``{"q.b": ..., "q.h": ..., "q.row": ...}`` of a tensor in a layout."""
    steps = dense(shape_of(role, sizes, layout), pad)
    axes = {"bhsd": ("b", "h", "row"), "bshd": ("b", "row", "h"), "hsd": ("h", "row"), "sd": ("row",)}[layout]
    found = {f"{role}.{axis}": step for axis, step in zip(axes, steps, strict=False)}
    if layout == "hsd":
        heads = sizes["Hkv"] if role in ("k", "v") else sizes["H"]
        found[f"{role}.b"] = heads * found[f"{role}.h"]
    return found
