"""Inputs of one grid case: random tensors from the spec's room, changed by named twists, and their NumPy form by role.

Runs in a worker process: torch is imported inside functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..spec.attention import Attention, TensorInput
from .grid import Case

if TYPE_CHECKING:
    import torch

Array = NDArray[Any]

CANONICAL = {
    "q": ("b", "h", "i", "d"),
    "k": ("b", "hk", "j", "d"),
    "v": ("b", "hk", "j", "d"),
    "o": ("b", "h", "i", "d"),
}


@dataclass(frozen=True, slots=True)
class Tile:
    """What a twist may depend on besides the case: tile rows and columns, the natural scale of the scores, and the
    largest natural score that inputs are sent to (finite where a weight is no softmax and grows with its score); how
    far operands are moved (finite where such a weight grows with them).
    """

    br: int
    bc: int
    scale: float
    reach: float = math.inf
    operand_reach: float = math.inf


def canonical_view(tensor: torch.Tensor, axes: tuple[str, ...], role: str) -> torch.Tensor:
    """A view of `tensor` (whose axes are named by `axes`) in the order ``b, h, row, d``; a missing axis has extent
    one.
    """
    wanted = CANONICAL[role]
    present = [axes.index(name) for name in wanted if name in axes]
    view = tensor.permute(present)
    for position, name in enumerate(wanted):
        if name not in axes:
            view = view.unsqueeze(position)
    return view


def roles(attention: Attention, tensors: list[Any]) -> dict[str, Array]:
    """q, k, v as ``[B, H, S, D]`` float64 arrays and operands by name, from tensors in the order of
    ``attention.inputs``.
    """
    result: dict[str, Array] = {}
    for item, tensor in zip(attention.inputs, tensors, strict=True):
        if item.role == "operand":
            result[item.name] = to_numpy(tensor)
        else:
            result[item.role] = to_numpy(canonical_view(tensor, item.axes, item.role))
    return result


def widened(array: Array, width: int) -> Array:
    """``[.., width]``: `array` with columns of zeros behind its own, as the caller of a wider kernel adds them."""
    missing = width - array.shape[-1]
    return np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, missing)]) if missing else array


def outputs_by_role(attention: Attention, tensors: list[Any]) -> dict[str, Array]:
    """The spec's outputs as ``o [B, H, Sq, D]`` and, if it returns one, ``lse [B, H, Sq]``, in float64."""
    result: dict[str, Array] = {}
    for item, tensor in zip(attention.outputs, tensors, strict=True):
        if item.role == "o":
            result["o"] = to_numpy(canonical_view(tensor, item.axes, "o"))
        else:
            order = [item.axes.index(name) for name in ("b", "h", "i") if name in item.axes]
            view = tensor.permute(order)
            for position, name in enumerate(("b", "h", "i")):
                if name not in item.axes:
                    view = view.unsqueeze(position)
            result[item.role] = to_numpy(view)
    return result


def twist(attention: Attention, tensors: list[Any], case: Case, tile: Tile) -> list[Any]:
    """`tensors` changed in place by the case's q scale and twists, in order."""
    by_role = {
        item.role: canonical_view(tensor, item.axes, item.role)
        for item, tensor in zip(attention.inputs, tensors, strict=True)
        if item.role != "operand"
    }
    operands = [
        (item, tensor) for item, tensor in zip(attention.inputs, tensors, strict=True) if item.role == "operand"
    ]
    if case.q_scale != 1.0:
        by_role["q"].mul_(case.q_scale)
    for name in case.twists:
        TWISTS[name](by_role, operands, case, tile)
    return tensors


Roles = dict[str, "torch.Tensor"]
Operands = list[tuple[TensorInput, "torch.Tensor"]]


def _rising(by_role: Roles, operands: Operands, case: Case, tile: Tile) -> None:
    """Keys grow from tile to tile, most in the last one, so that the row max rises there."""
    k = by_role["k"]
    tiles = math.ceil(case.Sk / tile.bc)
    for t in range(tiles):
        k[:, :, t * tile.bc : (t + 1) * tile.bc].mul_(min(1.0 + t, max(tile.reach / 4.0, 1.0)))


def _large(by_role: Roles, operands: Operands, case: Case, tile: Tile) -> None:
    """Natural scores with a standard deviation of about 25, whatever the spec's scale."""
    by_role["q"].mul_(min(25.0, tile.reach / 4.0) / max(abs(tile.scale) * math.sqrt(case.D), 1e-6))


def _shift(by_role: Roles, case: Case, tile: Tile, natural: tuple[float, ...]) -> None:
    """Add ``natural[i % n]`` to every natural score of row i, by a common component in q and k."""
    import torch

    q, k = by_role["q"], by_role["k"]
    largest = max(abs(x) for x in natural)
    a = math.sqrt(largest / max(abs(tile.scale), 1e-6))
    sign = math.copysign(1.0, tile.scale)
    # One direction for q and k: u.u = 1, so that q.k moves by a * a times the row's factor.
    u = torch.ones(case.D, dtype=torch.float64) / math.sqrt(case.D)
    factors = torch.tensor([sign * natural[i % len(natural)] / largest for i in range(case.Sq)], dtype=torch.float64)
    q.add_((a * factors[:, None] * u).to(q.dtype))
    k.add_((a * u).to(k.dtype))


def _row_shift(by_role: Roles, operands: Operands, case: Case, tile: Tile) -> None:
    far = min(150.0, tile.reach)
    _shift(by_role, case, tile, (0.0, far, -far))


def _negative(by_role: Roles, operands: Operands, case: Case, tile: Tile) -> None:
    _shift(by_role, case, tile, (-min(200.0, tile.reach),))


def _operand_row_shift(by_role: Roles, operands: Operands, case: Case, tile: Tile) -> None:
    """Float operands that have a query axis: two rows in three get a constant of either sign; softmax must not move."""
    far = min(150.0, tile.operand_reach)
    for item, tensor in operands:
        if "Sq" in item.axes and tensor.is_floating_point():
            rows = tensor.movedim(item.axes.index("Sq"), 0)
            rows[1::3].add_(far)
            rows[2::3].sub_(far)


def _dead_rows(by_role: Roles, operands: Operands, case: Case, tile: Tile) -> None:
    """Boolean operands with a key axis: keys of the first tile, of the last one, or all masked, for one query (or
    batch) in four each.

    Masks both as data and inverted (True = masked) are met, since every row pattern appears with True and with False.
    """
    import torch

    last = (case.Sk - 1) // tile.bc * tile.bc
    for item, tensor in operands:
        if "Sk" not in item.axes or tensor.dtype != torch.bool:
            continue
        lines = tensor.movedim(item.axes.index("Sk"), -1)
        flat = torch.arange(lines[..., 0].numel()).reshape(lines.shape[:-1]) % 6
        for value, base in ((False, 0), (True, 3)):
            lines[..., : tile.bc][flat == base] = value
            lines[..., last:][flat == base + 1] = value
            lines[flat == base + 2] = value


def _operands_high(by_role: Roles, operands: Operands, case: Case, tile: Tile) -> None:
    """Per-head float operands plus 12: a sink that swallows its rows, a slope that matters."""
    for item, tensor in operands:
        if "Sq" not in item.axes and "Sk" not in item.axes and tensor.is_floating_point():
            tensor.add_(min(12.0, tile.reach))


def _along_sequence(operands: Operands) -> list[torch.Tensor]:
    """Integer operands with a query or key axis, that axis last: ids, positions, bounds."""
    found: list[torch.Tensor] = []
    for item, tensor in operands:
        place = next((n for n, axis in enumerate(item.axes) if axis in ("Sk", "Sq")), None)
        if place is not None and item.dtype.startswith("int"):
            found.append(tensor.movedim(place, -1))
    return found


def _numbers_shuffled(by_role: Roles, operands: Operands, case: Case, tile: Tile) -> None:
    """Ids that come back later: one document in several pieces, not in order."""
    import torch

    generator = torch.Generator().manual_seed(case.seed)
    for lines in _along_sequence(operands):
        lines.copy_(lines[..., torch.randperm(lines.shape[-1], generator=generator)])


def _numbers_equal(by_role: Roles, operands: Operands, case: Case, tile: Tile) -> None:
    """All ids of a sequence the same, and not those of the next one."""
    for lines in _along_sequence(operands):
        lines.copy_(lines[..., :1].expand_as(lines))


def _numbers_different(by_role: Roles, operands: Operands, case: Case, tile: Tile) -> None:
    """No two ids of a sequence the same: each query sees its own position at most."""
    import torch

    for lines in _along_sequence(operands):
        lines.copy_(torch.arange(lines.shape[-1]).expand_as(lines))


def _numbers_by_tile(by_role: Roles, operands: Operands, case: Case, tile: Tile) -> None:
    """Ids that change at the edges of KV tiles and one key beside them: a boundary off by one shows there."""
    import torch

    for lines in _along_sequence(operands):
        beside = torch.arange(lines[..., 0].numel()).reshape(lines.shape[:-1]) % 3 - 1
        lines.copy_((torch.arange(lines.shape[-1]) + beside.unsqueeze(-1)).clamp(min=0) // tile.bc)


def _numbers_anywhere(by_role: Roles, operands: Operands, case: Case, tile: Tile) -> None:
    """Bounds that cut this case's rows and keys: those of the example may all lie beyond a shorter sequence."""
    import torch

    generator = torch.Generator().manual_seed(case.seed)
    for lines in _along_sequence(operands):
        lines.copy_(torch.randint(0, max(case.Sq, case.Sk) + 1, lines.shape, generator=generator))


def _lengths_by_tile(by_role: Roles, operands: Operands, case: Case, tile: Tile) -> None:
    """One number of keys for each batch: the edge of a KV tile, one key to either side, a few, all but one, all.

    A cache without any key is left out: what its rows are is the spec's affair, and other cases have such rows.
    """
    _fill_lengths(operands, case, [tile.bc, tile.bc + 1, tile.bc - 1, 2 * tile.bc, 5, case.Sk - 1, case.Sk])


def _lengths_far(by_role: Roles, operands: Operands, case: Case, tile: Tile) -> None:
    """Caches that are full, or filled up to one key beyond the number that the case is about."""
    _fill_lengths(operands, case, [case.Sk, case.Sk - 2 * tile.bc - 4, case.Sk - tile.bc, case.Sk - 1])


def _fill_lengths(operands: Operands, case: Case, lengths: list[int]) -> None:
    import torch

    beside = torch.tensor(lengths)
    for item, tensor in operands:
        if item.axes == ("B",) and item.dtype.startswith("int") and case.Sk:
            tensor.copy_(beside[torch.arange(case.B) % len(beside)].clamp(1, case.Sk))


TWISTS: dict[str, Callable[[Roles, Operands, Case, Tile], None]] = {
    "rising": _rising,
    "large": _large,
    "row_shift": _row_shift,
    "negative": _negative,
    "operand_row_shift": _operand_row_shift,
    "dead_rows": _dead_rows,
    "operands_high": _operands_high,
    "numbers_shuffled": _numbers_shuffled,
    "numbers_equal": _numbers_equal,
    "numbers_different": _numbers_different,
    "numbers_by_tile": _numbers_by_tile,
    "numbers_anywhere": _numbers_anywhere,
    "lengths_by_tile": _lengths_by_tile,
    "lengths_far": _lengths_far,
}


def to_numpy(tensor: Any) -> Array:
    """A torch tensor as a NumPy array: floating types as float64, the others as they are."""
    import torch

    if tensor.dtype in (torch.bool, torch.int32, torch.int64, torch.int8, torch.int16, torch.uint8):
        return np.asarray(tensor.numpy())
    return np.asarray(tensor.to(torch.float64).numpy())
