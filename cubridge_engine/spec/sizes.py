"""At which sizes to read and to check: from the most general plan to the example's sizes only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from ..ir.expr import Const, Expr
from .nodes import walk
from .program import Program

Sizes = dict[str, int]


class HasMask(Protocol):
    """What `reach_of` needs of a template."""

    score: Expr
    mask: Expr | None


class HasAxes(HasMask, Protocol):
    """What `plans` needs of a template."""

    roles: dict[str, str]
    axes: dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class Plan:
    """Sizes to read at (two, all different), to check at, and to look for empty rows at; and the limits they imply."""

    read_at: tuple[Sizes, ...]
    check_at: tuple[Sizes, ...]
    empty_at: tuple[Sizes, ...]
    fixed: Sizes
    equal: tuple[tuple[str, str], ...]
    ordered: tuple[tuple[str, str], ...]
    step: int
    longest: int = 0  # lengths were read up to this one only, since the spec does not run at longer ones; 0: any


# (lengths, heads, step, batch): how freely each may vary, tried in this order.
_MODES = (
    ("free", "free", 1, "free"),
    ("free", "shared", 1, "free"),
    ("more keys", "free", 1, "free"),
    ("more keys", "shared", 1, "free"),
    ("equal", "free", 1, "free"),
    ("equal", "shared", 1, "free"),
    ("free", "equal", 1, "free"),
    ("more keys", "equal", 1, "free"),
    ("equal", "equal", 1, "free"),
    ("free", "equal", 1, "one"),
    ("equal", "equal", 1, "one"),
    ("free", "free", 64, "free"),
    ("equal", "free", 64, "free"),
    ("equal", "equal", 64, "free"),
    ("free", "fixed", 1, "free"),
    ("equal", "fixed", 1, "free"),
    ("fixed", "free", 1, "free"),
    ("fixed", "equal", 1, "free"),
    ("fixed", "fixed", 1, "free"),
    ("all", "all", 1, "all"),
)

# Specs are traced at lengths beyond every number in them, and run just beyond each, so that a window, a chunk or a
# branch on the length has its effect: at a short length ``i // 1000 == j // 1000`` reads as "all keys". Tracing costs
# the same at any length, but for masks made element by element in Python; so a number larger than this is taken for
# something else (a fill).
_FARTHEST = 20_000
_NEAR = 2100  # running the spec costs the square of the length


def numbers_of(program: Program) -> list[int]:
    """The whole numbers above 16 of the spec's text and of its arguments: windows, chunks, lengths it branches on."""
    numbers = [n for n in program.arguments if type(n) is int]
    for node in ast.walk(ast.parse(program.source)):
        if isinstance(node, (ast.Constant, ast.BinOp)):
            numbers.append(_whole(node) or 0)
    return sorted({n for n in numbers if 16 < n <= _FARTHEST})


def _whole(node: ast.expr) -> int | None:
    """The value of a literal, or of a product, power or shift of literals; None when it is no whole number."""
    if isinstance(node, ast.Constant):
        return node.value if type(node.value) is int else None
    if not isinstance(node, ast.BinOp):
        return None
    left, right = _whole(node.left), _whole(node.right)
    if left is None or right is None or not 0 <= right <= _FARTHEST or abs(left) > _FARTHEST:
        return None
    if isinstance(node.op, ast.Mult):
        return left * right
    if isinstance(node.op, (ast.Pow, ast.LShift)) and right < 32:
        return left**right if isinstance(node.op, ast.Pow) else left << right
    return None


def plans(example: Sizes, template: HasAxes, numbers: list[int]) -> Iterator[Plan]:
    """Plans for a spec whose example has these sizes, most general first. `numbers` are those the spec mentions."""
    reach = reach_of(template)
    batches = "b" in template.axes[template.roles["q"]]
    for lengths, heads, step, by_batch in _MODES:
        batch = "one" if by_batch == "free" and not batches else by_batch
        if lengths == "equal" and example["Sq"] != example["Sk"]:
            continue
        if lengths == "more keys" and example["Sq"] > example["Sk"]:
            continue
        if heads == "shared" and example["Hkv"] != 1:
            continue
        if heads == "equal" and example["H"] != example["Hkv"]:
            continue
        if batch == "one" and example["B"] != 1:
            continue
        yield _plan(example, (lengths, heads, batch), step, reach, numbers)


def reach_of(t: HasMask) -> int:
    """The largest integer in score and mask (a window, a prefix): empty rows and cut windows show beyond it only."""
    numbers = [
        abs(e.value)
        for part in (t.score, t.mask)
        if part is not None
        for e in walk(part)
        if isinstance(e, Const) and type(e.value) is int
    ]
    return min(max(numbers, default=0), 4096)


def _plan(example: Sizes, modes: tuple[str, str, str], step: int, reach: int, numbers: list[int]) -> Plan:
    lengths, heads, by_batch = modes

    def sizes(batch: int, hkv: int, groups: int, sq: int, sk: int) -> Sizes:
        made = dict(example)
        if by_batch == "free":
            made["B"] = batch
        if heads == "free":
            made["H"], made["Hkv"] = hkv * groups, hkv
        elif heads == "shared":
            made["H"] = hkv * groups
        elif heads == "equal":
            made["H"] = made["Hkv"] = hkv + 4
        if lengths != "fixed" and lengths != "all":
            up = [-(-n // step) * step for n in (sq, sk)]
            up = sorted(up) if lengths == "more keys" else up
            made["Sq"], made["Sk"] = up[0], up[0] if lengths == "equal" else up[1]
        return made

    far = 2 * max([300, *numbers]) + 100
    base_q, base_k = max(example["Sq"], far) + 5, max(example["Sk"], far) + 16
    read_at = (
        sizes(3, 2, 2, base_q, base_k),
        sizes(2, 5, 3, base_q + max(19, step), base_k + max(11, 3 * step)),
    )
    near = max(24, min(reach + 9, 300), step)
    check_at = (sizes(2, 1, 2, near, near + 7 + step), sizes(1, example["H"] + 1, 1, near + 13, max(near - 5, 3)))
    if lengths not in ("fixed", "all"):
        # Just beyond each number; and just below it, where a branch is not taken but smaller windows have an effect.
        below = [n - 1 for smaller, n in pairwise(numbers) if n - 1 > smaller + 1]
        check_at += tuple(sizes(1, 1, 1, n, n) for n in sorted({*below, *(n + 1 for n in numbers)}) if n <= _NEAR)
    beyond = min(max([reach, *numbers]), 4096) + 40
    empty_at = (*check_at, sizes(1, 1, 1, beyond, 1), sizes(1, 1, 1, 1, beyond))
    fixed: Sizes = {}
    if lengths == "all":
        fixed = {n: example[n] for n in ("B", "H", "Hkv", "Sq", "Sk")}
    if lengths == "fixed":
        fixed.update({n: example[n] for n in ("Sq", "Sk")})
    if by_batch == "one":
        fixed["B"] = 1
    if heads == "shared":
        fixed["Hkv"] = 1
    if heads == "fixed":
        fixed.update({n: example[n] for n in ("H", "Hkv")})
    equal = ((("Sq", "Sk"),) if lengths == "equal" else ()) + ((("H", "Hkv"),) if heads == "equal" else ())
    ordered = (("Sq", "Sk"),) if lengths == "more keys" else ()
    return Plan(read_at, check_at, empty_at, fixed, equal, ordered, step)
