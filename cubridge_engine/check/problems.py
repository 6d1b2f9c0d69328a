"""Small problems that a program is tried on: lengths around its tiles, each of its switches, numbers for the rest."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..ir.expr import Expr, Read, walk
from ..ir.nodes import Copy, For, If, Kernel, Let, Mask, Op, StoreTile
from ..ir.validate import iterate

_MOST_FLAGS = 3  # beyond that only all off and all on
_SCALE = 0.173  # no power of two, and no number that a kernel would hold


@dataclass(frozen=True, slots=True)
class Problem:
    """Sizes B, H, Hkv, Sq, Sk, and a value for every parameter that is no size."""

    sizes: Mapping[str, int]
    values: Mapping[str, Any]
    flags: Mapping[str, int]

    def words(self) -> str:
        """``Sq = 64, Sk = 71, causal = 1``."""
        named = {"Sq": self.sizes["Sq"], "Sk": self.sizes["Sk"], **self.flags}
        return ", ".join(f"{name} = {value}" for name, value in named.items())


def full_rows(kernel: Kernel) -> bool:
    """True when the kernel knows no last tile of queries: neither loads nor stores are predicated."""
    ops = list(iterate(kernel.body))
    limits = [op.limit for op in ops if isinstance(op, StoreTile) or (isinstance(op, Copy) and op.tensor == "q")]
    return all(limit is None for limit in limits)


def full_keys(kernel: Kernel) -> bool:
    """True when the kernel knows no last tile of keys: no load is predicated, and no mask asks for the length."""
    ops = list(iterate(kernel.body))
    limits = [op.limit for op in ops if isinstance(op, Copy) and op.tensor in ("k", "v")]
    return all(limit is None for limit in limits) and not any(
        _names(op.keep) & {"Sk"} for op in ops if isinstance(op, Mask)
    )


def _names(expr: Expr) -> set[str]:
    return {getattr(e, "name", "") for e in walk(expr)}


def problems(kernel: Kernel) -> Iterator[Problem]:
    """From the plainest on: whole tiles of equal lengths first, then tails, then lengths that differ."""
    br, bc = kernel.Br, kernel.Bc
    rows = [2 * max(br, bc)] if full_rows(kernel) else [2 * max(br, bc), 2 * br + max(1, br // 3), max(1, br // 2)]
    keys = [bc, 3 * bc] if full_keys(kernel) else [2 * bc + max(1, bc // 3), 3 * bc, max(1, bc // 2), bc]
    pairs = [(n, n) for n in rows if not full_keys(kernel) or n % bc == 0]
    pairs += [(a, b) for a in rows[:2] for b in keys if a != b]
    for flags in _switches(kernel):
        for sq, sk in pairs:
            yield problem(kernel, sq, sk, flags)


def problem(kernel: Kernel, sq: int, sk: int, flags: Mapping[str, int]) -> Problem:
    """One problem."""
    sizes = {"B": 1, "H": 1, "Hkv": 1, "Sq": sq, "Sk": sk}
    return Problem(sizes, {**_numbers(kernel), **flags}, dict(flags))


def _switches(kernel: Kernel) -> Iterator[dict[str, int]]:
    names = [p.name for p in kernel.params if p.role == "flag"]
    if len(names) > _MOST_FLAGS:
        yield dict.fromkeys(names, 0)
        yield dict.fromkeys(names, 1)
        return
    for values in itertools.product((0, 1), repeat=len(names)):
        yield dict(zip(names, values, strict=True))


def _numbers(kernel: Kernel) -> dict[str, Any]:
    """Scales as numbers below one; any other integer is large, so that a window of that width masks nothing."""
    found: dict[str, Any] = {}
    for at, p in enumerate(kernel.params):
        if p.role in ("scale", "scale_log2", "scalar"):
            whole = "float" not in p.ctype and "half" not in p.ctype
            found[p.name] = 1 << 20 if whole else _SCALE + 0.011 * at
    return found


def operands(kernel: Kernel) -> dict[str, NDArray[Any]] | None:
    """Something to read for every extra tensor of the program; None when what is read steers the loop."""
    ranks: dict[str, int] = {}
    for op in iterate(kernel.body):
        for steers, expr in expressions(op):
            for read in (e for e in walk(expr) if isinstance(e, Read)):
                if steers:
                    return None
                ranks[read.tensor] = len(read.index)
    rng = np.random.default_rng(5)
    return {name: rng.uniform(-0.5, 0.5, (2,) * rank) for name, rank in ranks.items()}


def expressions(op: Op) -> Iterator[tuple[bool, Expr]]:
    """(whether it steers the loop, expression) of an operation's fields."""
    steers = isinstance(op, For | Let | If)
    for name in op.__dataclass_fields__:
        value = getattr(op, name)
        if isinstance(value, Expr):
            yield steers, value
