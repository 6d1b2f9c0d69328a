"""The drop-in of an adaptation, and what the kernel takes that the spec does not have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ..diagnostics import Diagnostic, make
from ..results import DerivedResult
from ..spec.attention import Attention
from ..spec.dropin import DropIn, drop_in
from ..spec.dropin_derived import Derived
from ..spec.dropin_padding import Padding
from ..spec.dropin_plain import plain_drop_in
from ..transfer.model import Operand
from ..transfer.tile_builder import FUNCTION, tile_builder
from ..transfer.tile_lists import TileList
from .common import Loaded

_LETTERS = {"b": "B", "h": "H", "hk": "Hkv", "i": "Sq", "j": "Sk"}
_MOST_LINES = 4  # of the mask that are quoted beside its formula


def make_drop_in(
    loaded: Loaded, operands: Sequence[Operand], bindings: Mapping[str, float | int]
) -> tuple[DropIn | None, tuple[Diagnostic, ...]]:
    """The file around the kernel, where the spec is more than an attention, or the kernel takes a list of tiles or is
    wider than the spec. CB247 where it cannot be written.
    """
    assert loaded.attention is not None
    made = [o for o in operands if o.tiles is not None]
    kernel = loaded.lifted.kernel
    padding = Padding(kernel.D, kernel.Dv) if loaded.padded else None
    if loaded.core is None and not made and padding is None:
        return None, ()
    values = [f"{name} = {value:g}" for name, value in bindings.items()]
    notes = [f"The kernel takes {', '.join(values)}."] if values else []
    try:
        derived = _derived(made[0], loaded.attention) if made else None
        if loaded.core is not None:
            return drop_in(loaded.core, loaded.attention, notes, derived, padding, any(o.page for o in operands)), ()
        return plain_drop_in(loaded.program, loaded.attention, derived, notes, padding), ()
    except Exception as error:  # the user's function is traced again, at other lengths
        reason = f"{error}".splitlines()[0] if f"{error}" else type(error).__name__
        return None, (make("CB247", loaded.attention.spans.get("function"), reason=reason),)


def _derived(operand: Operand, attention: Attention) -> Derived:
    assert operand.tiles is not None
    return tile_builder(operand.name, operand.tiles, attention, _mask_lines(attention))


def _mask_lines(attention: Attention) -> list[str]:
    """The user's lines that say the mask, with their places."""
    file = Path(attention.path).name
    lines = [f"{file}:{m.line + 1}  {m.text.strip()}" for m in attention.meanings if "mask" in m.kinds]
    span = attention.spans.get("mask")
    if not lines and span is not None:
        lines = [f"{file}:{span.line + 1}"]
    return lines if len(lines) <= _MOST_LINES else [*lines[:_MOST_LINES], "..."]


def derived_results(loaded: Loaded, operands: Sequence[Operand], drop_in: DropIn | None) -> tuple[DerivedResult, ...]:
    """The report's rows for tensors that the caller makes."""
    return tuple(_row(loaded, o.param, o.tiles, drop_in) for o in operands if o.tiles is not None)


def _row(loaded: Loaded, name: str, tiles: TileList, drop_in: DropIn | None) -> DerivedResult:
    assert loaded.attention is not None
    sizes = example_sizes(loaded.attention, [tuple(int(n) for n in t.shape) for t in loaded.program.example])
    return DerivedResult(
        name=name,
        what=f"the KV tiles of {tiles.bc} keys that each Q tile of {tiles.br} rows visits, made from the mask",
        dtype="int32",
        shape=tiles.extents(),
        bytes=tiles.most_bytes(sizes),
        sizes=sizes,
        built_by=FUNCTION if drop_in is not None else None,
    )


def example_sizes(attention: Attention, shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
    """B, H, Hkv, Sq, Sk of arguments of these shapes, in the order of ``attention.inputs``."""
    sizes = {"B": 1, "H": 1, "Hkv": 1}
    for item, shape in zip(attention.inputs, shapes, strict=True):
        if item.role in ("q", "k"):
            sizes |= {_LETTERS[axis]: n for axis, n in zip(item.axes, shape, strict=True) if axis in _LETTERS}
    return sizes
