"""Cases that reach the whole numbers of a mask: a window of 4096 keys is not tested by 200 of them.

For each constant of the mask, the mask with that constant changed by one must differ from the spec's mask somewhere on
the grid. Where no case so far does, lengths just beyond the constant are tried, the cheapest first.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from ..ir.evaluate import evaluate
from ..ir.expr import Const, Expr, reads, walk
from ..spec.attention import Attention
from .fitting import obeying
from .grid import Case
from .power import mutations

MAX_SCORES = 4700 * 4700  # of one head: the reference is computed in float64 on the CPU
MOST_KEYS = 20_000  # of a case with one query
LONG_SCORES = 1200 * 1200  # more than that is run once, not under every schedule and type


def differs(attention: Attention, changed: Expr, case: Case) -> bool:
    """True when the mask `changed` and the spec's own treat some (h, i, j) of `case` differently."""
    assert attention.mask is not None
    return any(bool((a != b).any()) for a, b in zip(_rows(attention.mask, case), _rows(changed, case), strict=True))


def _rows(mask: Expr, case: Case) -> Iterable[NDArray[np.bool_]]:
    """The mask in bands of query rows, so that a long case needs little memory."""
    h = np.arange(case.H).reshape(-1, 1, 1)
    env = {**case.sizes, "b": 0, "h": h, "hk": h // max(case.H // case.Hkv, 1)}
    env["j"] = np.arange(case.Sk).reshape(1, 1, -1)
    for start in range(0, case.Sq, 256):
        i = np.arange(start, min(start + 256, case.Sq)).reshape(1, -1, 1)
        value = np.asarray(evaluate(mask, {**env, "i": i}), dtype=bool)
        yield np.broadcast_to(value, (case.H, i.size, case.Sk))


def lengths_beyond(reach: int, rows: int, keys: int) -> tuple[tuple[int, int], ...]:
    """(queries, keys) that reach beyond a number: by keys alone, by queries alone, by both."""
    return (rows, reach + keys), (reach + rows, keys), (reach + rows, reach + keys)


def reaches(mask: Expr) -> list[int]:
    """Whole numbers that lengths should reach: those of the mask, and sums and products of two of them."""
    found = {
        abs(int(e.value))
        for e in walk(mask)
        if isinstance(e, Const) and not isinstance(e.value, bool) and float(e.value).is_integer()
    }
    return sorted({*found, *(a + b for a, b in itertools.combinations(found, 2)), *(2 * a for a in found)})


def far_cases(
    attention: Attention, br: int, bc: int, d: int, heads: Iterable[tuple[int, int]], known: list[Case]
) -> tuple[list[Case], dict[str, str]]:
    """Cases to add, and for each constant that none reaches (``mask: 4096``) the reason.

    `heads` are head counts to use, the smallest first; a mask that reads tensors is left to its data.
    """
    mask = attention.mask
    if mask is None or reads(mask):
        return [], {}
    counts = next(iter(heads))
    added: list[Case] = []
    missing: dict[str, str] = {}
    for mutation in (m for m in mutations(attention) if m.part == "mask"):
        changed = mutation.attention.mask
        assert changed is not None
        if any(differs(attention, changed, case) for case in (*known, *added) if case.Sq and case.Sk):
            continue
        found = _first(attention, mask, changed, br, bc, d, counts, len(added))
        if found is None:
            missing[f"mask: {mutation.old}"] = (
                f"no length that can be run here tells {mutation.old} from {mutation.new}"
            )
        else:
            added.append(found)
    return added, missing


def far_lengths(attention: Attention, bc: int, d: int, heads: tuple[int, int]) -> list[Case]:
    """Cases of one query against caches filled just beyond each large number of the mask: a window that ends at a
    length then starts behind the first tile.
    """
    assert attention.mask is not None
    cases: list[Case] = []
    for reach in (r for r in reaches(attention.mask) if 2 * bc < r <= MOST_KEYS):
        name, keys = f"far-lengths-{len(cases)}", reach + 2 * bc + 5
        why = f"one query against caches that are filled up to {reach} keys and a few more"
        seed, long = 400 + len(cases), bool(cases)
        cases.append(Case(name, why, 4, *heads, 1, keys, d, ("lengths_far",), seed=seed, long=long))
    return cases


def same_everywhere(attention: Attention, changed: Attention, br: int, bc: int, d: int, heads: tuple[int, int]) -> bool:
    """True when both masks are equal element by element at all lengths beyond every number of either mask.

    False where a length is too long to look at, and for masks that read tensors: nothing is proved there.
    """
    mask, other = attention.mask, changed.mask
    if mask is None or other is None or reads(mask) or reads(other):
        return False
    looked = 0
    for reach in sorted({*reaches(mask), *reaches(other)}):
        for rows, keys in lengths_beyond(reach, br + 9, bc + 9):
            case = _case(attention, rows, keys, d, heads, 0)
            if case is None:
                continue
            if case.Sq * case.Sk > MAX_SCORES:
                return False
            if attention.allows(case.sizes):
                looked += 1
                if differs(attention, other, case):
                    return False
    return looked > 0


def _first(
    attention: Attention, mask: Expr, changed: Expr, br: int, bc: int, d: int, heads: tuple[int, int], n: int
) -> Case | None:
    """The cheapest case on which the two masks differ."""
    lengths = [
        pair
        for reach in reaches(mask)
        for pair in lengths_beyond(reach, br + 9, bc + 9)
        if pair[0] * pair[1] <= MAX_SCORES
    ]
    for rows, keys in sorted(lengths, key=lambda pair: pair[0] * pair[1]):
        case = _case(attention, rows, keys, d, heads, n)
        if case is None or case.Sq * case.Sk > MAX_SCORES:
            continue
        if attention.allows(case.sizes) and differs(attention, changed, case):
            return case
    return None


def _case(attention: Attention, rows: int, keys: int, d: int, heads: tuple[int, int], n: int) -> Case | None:
    """A case of these lengths, made equal where the spec wants them so, and as the kernel's contract demands; None
    where it demands what they cannot be.
    """
    both = max(rows, keys)
    equal = any({a, b} == {"Sq", "Sk"} for a, b in attention.equal_sizes)
    rows, keys = (both, both) if equal else (rows, keys)
    keys = both if ("Sq", "Sk") in attention.ordered_sizes else keys
    why = "lengths beyond a constant of the mask, which no shorter case reaches"
    long = rows * keys > LONG_SCORES
    return obeying(Case(f"beyond-{n}", why, 1, *heads, rows, keys, d, seed=300 + n, long=long), attention)
