"""Random inputs for an `Attention`, of any sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..ir.expr import reads
from .attention import Attention, TensorInput

_SIZES = {"b": "B", "h": "H", "hk": "Hkv", "i": "Sq", "j": "Sk"}


def shape_of(item: TensorInput, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of an input at these sizes. Raises KeyError for a size that is not given."""
    shape: list[int] = []
    for axis in item.axes:
        if axis.isdigit():
            shape.append(int(axis))
        elif axis == "d":
            shape.append(sizes["Dv"] if item.role == "v" and "Dv" in sizes else sizes["D"])
        else:
            shape.append(sizes[_SIZES.get(axis, axis)])
    return tuple(shape)


def make_inputs(
    attention: Attention,
    sizes: Mapping[str, int],
    dtype: str | None = None,
    seed: int = 0,
    *,
    scale: float = 1.0,
    empty_rows: bool = False,
    device: str = "cpu",
) -> list[Any]:
    """Random tensors in the order of ``attention.inputs``: q, k, v normal, operands as in the example.

    `sizes` gives B, H, Hkv, Sq, Sk (and D, Dv where not specialised). `scale` is the deviation of q, k, v.
    `dtype` replaces that of q, k, v and of operands that share it.
    `empty_rows` makes bool masks with a row that keeps no key; otherwise every row of a mask
    keeps one at least. Raises KeyError for a size that is missing.
    """
    import torch

    full = {**attention.specialised, **sizes}
    full.setdefault("Hkv", full.get("H", 1))
    generator = torch.Generator().manual_seed(seed)
    own = attention.input("q").dtype
    result: list[Any] = []
    for item in attention.inputs:
        shape = shape_of(item, full)
        name = dtype if dtype is not None and item.dtype == own else item.dtype
        kind: torch.dtype = getattr(torch, name)
        if item.dtype == "bool":
            tensor = _mask(shape, generator, empty_rows)
        elif item.dtype.startswith(("int", "uint")):
            tensor = _integers(item, shape, full, generator).to(kind)
        elif item.role == "operand":
            tensor = _operand(attention, item, shape, generator).to(kind)
        else:
            tensor = (torch.randn(shape, generator=generator, dtype=torch.float32) * scale).to(kind)
        result.append(tensor.to(device))
    return result


def without_data(tensors: Sequence[Any]) -> list[Any]:
    """Tensors of the same shapes, strides and types without data: tracing them is twice as fast."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    mode = FakeTensorMode()
    return [mode.from_tensor(t.detach()) for t in tensors]


def fake_inputs(attention: Attention, sizes: Mapping[str, int]) -> list[Any]:
    """Tensors without data, of any size at no cost, in the order of ``attention.inputs``: for tracing only."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    full = {**attention.specialised, **sizes}
    with FakeTensorMode():
        return [torch.empty(shape_of(item, full), dtype=getattr(torch, item.dtype)) for item in attention.inputs]


def _mask(shape: tuple[int, ...], generator: Any, empty: bool) -> Any:
    """True in runs (a padded end) with random holes; with rows of one value on request."""
    import torch

    if not shape or 0 in shape:
        return torch.ones(shape, dtype=torch.bool)
    keep = torch.rand(shape, generator=generator) < 0.8
    keys = shape[-1]
    lengths = torch.randint(max(1, keys // 2), keys + 1, shape[:-1] or (1,), generator=generator)
    keep &= torch.arange(keys) < lengths.reshape(*shape[:-1], 1)
    keep[..., 0] |= ~keep.any(-1)
    return with_empty_rows(keep) if empty else keep


def with_empty_rows(keep: Any) -> Any:
    """The mask with a row along its last axis that is all False and, where it has more rows, one that is all True: the
    spec may mean either by a masked key.
    """
    rows = keep.view(-1, keep.shape[-1])
    if len(rows) > 1:
        rows[-1] = True
    rows[0] = False
    return keep


def _integers(item: TensorInput, shape: tuple[int, ...], sizes: Mapping[str, int], generator: Any) -> Any:
    """Lengths for one number per batch, sorted ids along a sequence, else the range seen in the example."""
    import torch

    low, high = (int(v) for v in item.observed or (0, 1))
    if (low, high) in ((0, 1), (0, 0), (1, 1)):
        keep = torch.randint(0, 2, shape, generator=generator)
        if shape and 0 not in shape:
            keep[..., 0] = 1
        return keep
    if item.axes == ("B",):
        return torch.randint(min(1, sizes["Sk"]), sizes["Sk"] + 1, shape, generator=generator)
    values = torch.randint(low, high + 1, shape, generator=generator)
    return values.sort(dim=-1).values if shape and item.axes[-1] in ("Sq", "Sk") else values


def _operand(attention: Attention, item: TensorInput, shape: tuple[int, ...], generator: Any) -> Any:
    """Slopes are positive and geometric, as ALiBi's; biases and sinks are normal."""
    import torch

    low = item.observed[0] if item.observed else -1.0
    values = torch.randn(shape, generator=generator, dtype=torch.float32)
    in_sink = attention.sink is not None and item.name in reads(attention.sink)
    if low >= 0 and not in_sink:
        if item.axes == ("H",):
            return torch.exp2(-8.0 * torch.arange(1, shape[0] + 1, dtype=torch.float32) / shape[0])
        return values.abs()
    return values
