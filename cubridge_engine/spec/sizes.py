"""At which sizes to read and to check: from the most general plan to the example's sizes only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from ..ir.expr import Const, Expr
from .nodes import Algebra, walk

Sizes = dict[str, int]


class HasMask(Protocol):
    """What `plans` needs of a template."""

    score: Expr
    mask: Expr | None


@dataclass(frozen=True)
class Plan:
    """Sizes to read at (two, all different), to check at, and to look for empty rows at; and the limits they imply."""

    read_at: tuple[Sizes, ...]
    check_at: tuple[Sizes, ...]
    empty_at: tuple[Sizes, ...]
    fixed: Sizes
    equal: tuple[tuple[str, str], ...]
    step: int


# (lengths, heads, step): how freely each may vary, tried in this order.
_MODES = (
    ("free", "free", 1),
    ("free", "shared", 1),
    ("equal", "free", 1),
    ("equal", "shared", 1),
    ("free", "equal", 1),
    ("equal", "equal", 1),
    ("free", "free", 64),
    ("equal", "free", 64),
    ("equal", "equal", 64),
    ("free", "fixed", 1),
    ("equal", "fixed", 1),
    ("fixed", "free", 1),
    ("fixed", "equal", 1),
    ("fixed", "fixed", 1),
    ("all", "all", 1),
)


def plans(example: Sizes, algebra: Algebra, template: HasMask) -> Iterator[Plan]:
    """Plans for a spec whose example has these sizes, most general first."""
    reach = _largest_number(template)
    for lengths, heads, step in _MODES:
        if lengths == "equal" and example["Sq"] != example["Sk"]:
            continue
        if heads == "shared" and example["Hkv"] != 1:
            continue
        if heads == "equal" and example["H"] != example["Hkv"]:
            continue
        yield _plan(example, lengths, heads, step, reach)


def _largest_number(t: HasMask) -> int:
    """The largest integer in score and mask (a window, a prefix): empty rows and cut windows show beyond it only."""
    numbers = [
        abs(e.value)
        for part in (t.score, t.mask)
        if part is not None
        for e in walk(part)
        if isinstance(e, Const) and type(e.value) is int
    ]
    return min(max(numbers, default=0), 4096)


def _plan(example: Sizes, lengths: str, heads: str, step: int, reach: int) -> Plan:
    def sizes(batch: int, hkv: int, groups: int, sq: int, sk: int) -> Sizes:
        made = dict(example)
        if lengths != "all":
            made["B"] = batch
        if heads == "free":
            made["H"], made["Hkv"] = hkv * groups, hkv
        elif heads == "shared":
            made["H"] = hkv * groups
        elif heads == "equal":
            made["H"] = made["Hkv"] = hkv
        if lengths in ("free", "equal"):
            up = [-(-n // step) * step for n in (sq, sk)]
            made["Sq"], made["Sk"] = up[0], up[1] if lengths == "free" else up[0]
        return made

    base_q, base_k = example["Sq"] + 5, example["Sk"] + 16
    read_at = (
        sizes(3, 2, 2, base_q, base_k),
        sizes(2, 5, 3, base_q + max(19, step), base_k + max(11, 3 * step)),
    )
    near = max(24, min(reach + 9, 300), step)
    check_at = (sizes(1, 1, 2, near, near + 7 + step), sizes(1, example["H"] + 1, 1, near + 13, max(near - 5, 3)))
    empty_at = (*check_at, sizes(1, 1, 1, reach + 40, 1), sizes(1, 1, 1, 1, reach + 40))
    fixed: Sizes = {}
    if lengths == "all":
        fixed = {n: example[n] for n in ("B", "H", "Hkv", "Sq", "Sk")}
    if lengths == "fixed":
        fixed.update({n: example[n] for n in ("Sq", "Sk")})
    if heads == "shared":
        fixed["Hkv"] = 1
    if heads == "fixed":
        fixed.update({n: example[n] for n in ("H", "Hkv")})
    equal = ((("Sq", "Sk"),) if lengths == "equal" else ()) + ((("H", "Hkv"),) if heads == "equal" else ())
    return Plan(read_at, check_at, empty_at, fixed, equal, step)
