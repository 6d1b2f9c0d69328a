"""Which axes of the arguments may change their length, and together with which others: found by trying.

The user's function is run on tensors without data, so a try costs what its Python costs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from .inputs import with_empty_rows
from .program import Program
from .trace import make_mode, quiet

_STEP = 7  # how much longer an axis is made: no size that a spec has by itself
_MOST_TRIES = 12  # small sets of axes that are tried before all of one length
_KEPT = 0.8  # the part of a made-up mask that lets a key through
_FILL = -1e4  # what a float mask adds where it lets nothing through is this or less
Axis = tuple[int, int]  # number of the tensor, axis of it


@dataclass(frozen=True)
class FreeLength:
    """Axes of the arguments that only change together; `base` is their length in the example."""

    axes: tuple[Axis, ...]
    base: int

    @property
    def first(self) -> Axis:
        """The axis that names the length: ``x.shape[1]``."""
        return self.axes[0]


Point = frozenset[int]  # which of the free lengths are one longer than the model's


@dataclass(frozen=True)
class Multilinear:
    """A number as a sum of lengths and products of two of them: ``constant + sum c*n + sum c*n*m``."""

    constant: int
    single: tuple[tuple[int, int], ...]  # (length, coefficient)
    pairs: tuple[tuple[tuple[int, int], int], ...]

    def at(self, values: Sequence[int]) -> int:
        """The number at these lengths."""
        total = self.constant + sum(c * values[i] for i, c in self.single)
        return total + sum(c * values[i] * values[j] for (i, j), c in self.pairs)


def points(count: int) -> list[Point]:
    """Where a number must be known to be written as a `Multilinear` of `count` lengths."""
    return [frozenset(p) for size in range(3) for p in combinations(range(count), size)]


def multilinear(model: Sequence[int], at: Mapping[Point, int]) -> Multilinear:
    """The number that is `at` at the points around the lengths `model`."""
    base = at[frozenset()]
    pairs = {
        p: at[frozenset(p)] - at[frozenset((p[0],))] - at[frozenset((p[1],))] + base
        for p in combinations(range(len(model)), 2)
    }
    single = {
        i: at[frozenset((i,))] - base - sum(c * model[p[1 - p.index(i)]] for p, c in pairs.items() if i in p)
        for i in range(len(model))
    }
    constant = base - sum(c * model[i] for i, c in single.items())
    constant -= sum(c * model[i] * model[j] for (i, j), c in pairs.items())
    return Multilinear(
        constant, tuple((i, c) for i, c in single.items() if c), tuple((p, c) for p, c in pairs.items() if c)
    )


def free_lengths(program: Program) -> tuple[FreeLength, ...]:
    """The lengths that may vary, each independently of the others."""
    shapes = [list(t.shape) for t in program.example]
    runs = _runner(program)
    if not runs(shapes):
        return ()
    found: list[FreeLength] = []
    taken: set[Axis] = set()
    axes = [(t, a) for t, shape in enumerate(shapes) for a, n in enumerate(shape) if n > 1]
    for axis in axes:
        if axis in taken:
            continue
        for group in _groups(axis, [a for a in axes if a not in taken], shapes):
            if runs(_changed(shapes, [(group, shapes[axis[0]][axis[1]] + _STEP)])):
                found.append(FreeLength(tuple(group), shapes[axis[0]][axis[1]]))
                taken.update(group)
                break
    ones = [(t, 0) for t, shape in enumerate(shapes) if len(shape) > 2 and shape[0] == 1]
    if ones and runs(_changed(shapes, [(ones, 3)])):
        found.insert(0, FreeLength(tuple(ones), 1))
    # One query, as in decoding: it may be more.
    single = [(0, a) for a, n in enumerate(shapes[0]) if 0 < a < len(shapes[0]) - 1 and n == 1]
    found += [FreeLength((one,), 1) for one in single if runs(_changed(shapes, [([one], 1 + _STEP)]))]
    together = [(list(f.axes), f.base + _STEP + 2 * n) for n, f in enumerate(found)]
    return tuple(found) if runs(_changed(shapes, together)) else ()


def _groups(axis: Axis, free: Sequence[Axis], shapes: Sequence[Sequence[int]]) -> list[list[Axis]]:
    """Sets of axes that may be one length, smallest first."""
    extent = shapes[axis[0]][axis[1]]
    equal = [a for a in free if shapes[a[0]][a[1]] == extent]
    same_place = [a for a in equal if a[1] == axis[1]]
    others = [a for a in equal if a[0] != axis[0]]
    few = [[axis, *some] for size in (1, 2) for some in combinations(others, size)][:_MOST_TRIES]
    groups: list[list[Axis]] = []
    for group in ([axis], same_place, *few, [axis, *others], equal):
        if group not in groups:
            groups.append(group)
    return groups


def _changed(shapes: Sequence[Sequence[int]], changes: Sequence[tuple[Sequence[Axis], int]]) -> list[list[int]]:
    made = [list(s) for s in shapes]
    for axes, extent in changes:
        for tensor, axis in axes:
            made[tensor][axis] = extent
    return made


def shapes_at(program: Program, lengths: Sequence[FreeLength], values: Sequence[int]) -> list[tuple[int, ...]]:
    """Shapes of the arguments where the free lengths have these values."""
    shapes = [list(t.shape) for t in program.example]
    changes = [(f.axes, n) for f, n in zip(lengths, values, strict=True)]
    return [tuple(s) for s in _changed(shapes, changes)]


def fake_arguments(program: Program, lengths: Sequence[FreeLength], values: Sequence[int]) -> list[Any]:
    """Arguments without data at these lengths, for tracing."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    shapes = shapes_at(program, lengths, values)
    with FakeTensorMode():
        return [torch.empty(s, dtype=t.dtype) for s, t in zip(shapes, program.example, strict=True)]


def _runner(program: Program) -> Callable[[Sequence[Sequence[int]]], bool]:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    def runs(shapes: Sequence[Sequence[int]]) -> bool:
        with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad(), quiet(), make_mode(program.path):
            tensors = [torch.empty(list(s), dtype=t.dtype) for s, t in zip(shapes, program.example, strict=True)]
            try:
                program.call(tensors)
            except Exception:
                return False
        return True

    return runs


def real_arguments(
    program: Program, lengths: Sequence[FreeLength], values: Sequence[int], seed: int, *, empty_rows: bool = False
) -> list[Any]:
    """Random arguments at these lengths, each made alike to the example's: ranges of integers and scale of numbers.

    `empty_rows`: bool arguments get a row of False along their last axis, and one of True.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    made: list[Any] = []
    for shape, example in zip(shapes_at(program, lengths, values), program.example, strict=True):
        if example.dtype.is_floating_point:
            made.append(_numbers(example, shape, generator))
        elif example.dtype == torch.bool:
            new = torch.rand(shape, generator=generator) < _KEPT
            if shape and 0 not in shape:
                new[..., 0] = True
                if empty_rows:
                    with_empty_rows(new)
            made.append(new)
        elif (axis := cumulative_axis(program.example, example)) is not None:
            end = shapes_at(program, lengths, values)[axis[0]][axis[1]]
            made.append(_cumulative(example, shape[0], end, generator))
        else:
            made.append(_within(_integers(example, shape), example, program, lengths, values))
    return made


def _within(new: Any, example: Any, program: Program, lengths: Sequence[FreeLength], values: Sequence[int]) -> Any:
    """Integers that may number the first axis of a tensor in the example (the pages of a cache) still do."""
    most = int(example.max()) if example.numel() else 0
    for tensor, shape in zip(program.example, shapes_at(program, lengths, values), strict=True):
        if tensor.dtype.is_floating_point and tensor.dim() > 2 and shape[0] <= most < tensor.shape[0]:
            new = new % shape[0]
    return new


def cumulative_axis(tensors: Sequence[Any], one: Any) -> Axis | None:
    """The axis whose rows `one` divides into sequences, where it holds cumulative lengths: whole numbers that start at
    0, never fall, and end at the length of the first axis of a float tensor. None where it does not.
    """
    if one.dim() != 1 or one.numel() < 2 or one.dtype.is_floating_point or one.dtype.itemsize < 4:
        return None
    if int(one[0]) or bool((one[1:] < one[:-1]).any()) or not int(one[-1]):
        return None
    end = int(one[-1])
    first = ((n, a) for a in (0, 1, 2) for n, t in enumerate(tensors) if t.dim() > a + 1 and t.shape[a] == end)
    return next((x for x in first if tensors[x[0]].dtype.is_floating_point), None)


def _cumulative(example: Any, count: int, end: int, generator: Any) -> Any:
    """Cumulative lengths of ``count - 1`` sequences, some of them perhaps empty, of `end` rows together."""
    import torch

    inner = torch.randint(0, end + 1, (max(count - 2, 0),), generator=generator).sort().values
    ends = torch.tensor([0, end])
    return torch.cat([ends[:1], inner, ends[1:]])[-count:].to(example.dtype)


def _numbers(example: Any, shape: tuple[int, ...], generator: Any) -> Any:
    """Normal numbers with the example's mean and spread. Where it holds the fill of a mask, part of the entries
    get that as it is, but none at the start of the last axis, so that a row keeps a key.
    """
    import torch

    finite = example.double()[torch.isfinite(example)]
    fills, rest = finite[finite <= _FILL], finite[finite > _FILL]
    if not rest.numel() or not shape:
        fills, rest = rest[:0], finite
    spread = float(rest.std()) if rest.numel() > 1 else 1.0
    middle = float(rest.mean()) if rest.numel() else 0.0
    new = torch.randn(shape, generator=generator) * spread + middle
    if fills.numel():
        filled = torch.rand(shape, generator=generator) >= _KEPT
        filled[..., :1] = False
        new = torch.where(filled, fills[0], new.double())
    return new.to(example.dtype)


def _integers(example: Any, shape: tuple[int, ...]) -> Any:
    """The example's integers repeated or cut to the new shape: they may be positions, offsets, or ids that mean
    something, so that made-up ones might mean nothing.
    """
    import torch

    new = example
    for axis, n in enumerate(shape):
        have = new.shape[axis]
        if have != n:
            places = torch.arange(n) % have if have else torch.zeros(n, dtype=torch.int64)
            new = new.index_select(axis, places)
    return new.contiguous()
