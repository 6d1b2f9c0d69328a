"""The part of the grid that follows from the spec: cases without which a wrong adaptation could pass.

A fixed grid has accepted wrong kernels: a window whose tile range was never tested with lo > 0, a softcap after the
mask at a cap no input reached, a row max floored at zero. So each condition below is a row, tested on the mask itself,
and a length that meets it is looked for; what no length meets is reported, not forgotten.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..ir.evaluate import UnboundName, evaluate
from ..ir.expr import Call, Const, Expr, Read, free_vars, reads, rebuild, walk
from ..ir.nodes import Kernel
from ..spec.attention import Attention
from .far import LONG_SCORES, far_cases, far_lengths, lengths_beyond, reaches
from .fitting import fitted as fitted
from .fitting import outside
from .grid import Case, Heads, Length, base_cases
from .inputs import Tile
from .weights import SPREAD, operand_reach_of, reach_of, weight_scale

Array = NDArray[Any]

HEAD_CANDIDATES = ((6, 3), (8, 4), (4, 2), (8, 2), (9, 3), (3, 3), (2, 2), (2, 1), (4, 1), (1, 1))
FEW_CANDIDATES = ((2, 2), (2, 1), (3, 3), (4, 2), (4, 1), (8, 2), (8, 1), (1, 1))

# Square, then more keys, then more queries; the first length that meets a condition is taken.
LENGTHS: tuple[tuple[Length, Length], ...] = (
    *((Length(t, e), Length(t, e)) for t, e in ((2, 9), (3, 17), (4, 9), (5, 33), (7, 1), (9, 5))),
    *((Length(1, 9), Length(t, e)) for t, e in ((2, 5), (3, 5), (5, 7), (9, 3))),
    *((Length(t, e), Length(1, 9)) for t, e in ((2, 35), (4, 3))),
    *((Length(t, e), Length(t, e)) for t, e in ((13, 5), (17, 3), (33, 1))),
)
MAX_ELEMENTS = 2200 * 2200  # of one head's scores: the reference is computed in float64 on the CPU


@dataclass(frozen=True, slots=True)
class TileFacts:
    """What a mask does to the tiles of one problem. `live` [H, Sq, tiles]: the row has a key there; `lo`, `hi` [H, Q
    tiles].
    """

    live: Array
    lo: Array
    hi: Array
    br: int

    @property
    def tiles(self) -> int:
        """Number of KV tiles."""
        return self.live.shape[2]

    def rows_of(self, bound: Array) -> Array:
        """`bound` [H, Q tiles] repeated for each row: [H, Sq]."""
        return np.repeat(bound, self.br, axis=1)[:, : self.live.shape[1]]


@dataclass(frozen=True, slots=True)
class Condition:
    """Something that must happen somewhere on the grid of a masked spec."""

    name: str
    why: str
    met: Callable[[TileFacts], bool]


def _row_dead_in(facts: TileFacts, tile_of_row: Array) -> bool:
    """A row that has a key, but none in the tile `tile_of_row` names, while its Q tile visits that tile."""
    picked = np.take_along_axis(facts.live, np.clip(tile_of_row, 0, facts.tiles - 1)[:, :, None], axis=2)[:, :, 0]
    return bool((facts.live.any(axis=2) & ~picked).any())


def _visited(facts: TileFacts) -> Array:
    return facts.hi > facts.lo


CONDITIONS: tuple[Condition, ...] = (
    Condition(
        "range-starts-odd",
        "a Q tile whose KV range starts at an odd tile: the other stage of a two-stage ring",
        lambda f: bool((_visited(f) & (f.lo % 2 == 1)).any()),
    ),
    Condition(
        "range-starts-even",
        "a Q tile whose KV range starts at an even tile above 0",
        lambda f: bool((_visited(f) & (f.lo > 0) & (f.lo % 2 == 0)).any()),
    ),
    Condition(
        "range-ends-early",
        "a Q tile whose KV range ends before the last tile",
        lambda f: bool((_visited(f) & (f.hi < f.tiles)).any()),
    ),
    Condition(
        "row-dead-in-first-tile",
        "a row without a key in the first tile its Q tile visits: m stays -inf there",
        lambda f: _row_dead_in(f, f.rows_of(f.lo)),
    ),
    Condition(
        "row-dead-in-last-tile",
        "a row without a key in the last tile its Q tile visits",
        lambda f: _row_dead_in(f, f.rows_of(f.hi - 1)),
    ),
    Condition(
        "row-dead",
        "a row without any key beside rows that have some",
        lambda f: bool((~f.live.any(axis=2) & f.rows_of(_visited(f))).any()),
    ),
    Condition("tile-empty", "a Q tile that visits no KV tile at all", lambda f: bool((~_visited(f)).any())),
)


# What the integers that a mask reads along the sequence may be, whatever the example's are: a twist and its reason.
NUMBERS = {
    "numbers_shuffled": "ids or bounds of the mask in no order: a document in several pieces",
    "numbers_equal": "all ids or bounds of a sequence equal",
    "numbers_different": "no two ids or bounds of a sequence equal",
    "numbers_by_tile": "ids or bounds of the mask that change at the edge of a KV tile, and one key beside it",
    "numbers_anywhere": "bounds of the mask anywhere in the sequence, in each batch elsewhere",
}


@dataclass(frozen=True, slots=True)
class Grid:
    """The cases, and for each derived condition the case that meets it or why none does."""

    cases: tuple[Case, ...]
    covered: dict[str, str]
    not_covered: dict[str, str]


def choose_heads(attention: Attention) -> Heads | None:
    """Head counts the spec's head map and its fixed sizes allow; None when none of the candidates fits."""
    fixed = (attention.specialised.get("H"), attention.specialised.get("Hkv"))
    own = ((fixed[0], fixed[1]),) if fixed[0] and fixed[1] else ()

    grouped = next((p for p in (*HEAD_CANDIDATES, *own) if _fits(attention, p)), None)
    few = next((p for p in (*FEW_CANDIDATES, *own) if _fits(attention, p)), None)
    return Heads(few, grouped) if few and grouped else None


def far_heads(attention: Attention, heads: Heads) -> list[tuple[int, int]]:
    """Head counts for long cases: one head is enough, unless the mask depends on it."""
    by_head = attention.mask is not None and bool({"h", "hk"} & free_vars(attention.mask))
    return [heads.few] if by_head or not _fits(attention, (1, 1)) else [(1, 1)]


def _fits(attention: Attention, pair: tuple[int, int]) -> bool:
    """True when the spec takes these numbers of heads and KV heads, and reads every KV head."""
    h, hkv = pair
    fixed = (attention.specialised.get("H"), attention.specialised.get("Hkv"))
    if (
        not attention.allows({"H": h, "Hkv": hkv})
        or any(want is not None and want != have for want, have in zip(fixed, pair, strict=True))
        or h % hkv
    ):
        return False
    try:
        mapped = evaluate(attention.head_map, {"h": np.arange(h), "H": h, "Hkv": hkv})
    except UnboundName:
        return False
    return sorted(set(np.broadcast_to(np.asarray(mapped), (h,)).tolist())) == list(range(hkv))


def without_reads(expr: Expr) -> Expr:
    """`expr` with every operand element taken as 0.5, and as on a key that is attended to where an operand decides
    between the score and a fill: enough to see how it depends on s.
    """
    if isinstance(expr, Call) and expr.op == "where" and reads(expr.args[0]):
        scored = [branch for branch in expr.args[1:] if "s" in free_vars(branch)]
        if len(scored) == 1:
            return without_reads(scored[0])
    return Const(0.5) if isinstance(expr, Read) else rebuild(expr, without_reads)


_POINT = {"i": 3, "j": 2, "b": 0, "h": 1, "hk": 0, "B": 1, "H": 2, "Hkv": 2, "Sq": 8, "Sk": 8}


def score_at(attention: Attention, raw: Array, d: int | None = None) -> Array:
    """The score expression at raw products `raw`, for row 3, key 2 and operands 0.5, in float64."""
    env = {**_POINT, "s": raw, "D": d or attention.specialised.get("D", 64)}
    return np.broadcast_to(np.asarray(evaluate(without_reads(attention.score), env), dtype=np.float64), raw.shape)


def natural_scale(attention: Attention, d: int | None = None) -> float:
    """Natural score units per raw product: slope of the score at s = 0, or the scale inside a weight that is no
    softmax. 1.0 where it is zero or not finite.
    """
    if attention.normaliser != "softmax":
        inside = weight_scale(attention, d or attention.specialised.get("D", 64))
        if inside is not None:
            return inside
    step = 1e-3
    low, high = score_at(attention, np.array([-step, step]), d)
    slope = float(high - low) / (2 * step)
    return slope if math.isfinite(slope) and slope else 1.0


def tile_for(attention: Attention, kernel: Kernel) -> Tile:
    """What twists of inputs need to know of a spec on a kernel."""
    scale = natural_scale(attention, kernel.D)
    if attention.normaliser == "softmax":
        return Tile(kernel.Br, kernel.Bc, scale)
    reach = reach_of(lambda raw: score_at(attention, raw, kernel.D), scale)
    operands = operand_reach_of(attention.score, SPREAD / abs(scale), {**_POINT, "D": kernel.D})
    return Tile(kernel.Br, kernel.Bc, scale, reach, operands)


def saturating_scale(attention: Attention, d: int) -> float | None:
    """A factor for q at which typical scores leave the linear part of the score expression; None if it is linear as far
    as 1e5.
    """
    slope = natural_scale(attention, d)
    base = float(score_at(attention, np.array([0.0]), d)[0])
    for factor in (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0):
        raw = 2.0 * math.sqrt(d) * factor
        values = score_at(attention, np.array([raw, -raw]), d) - base
        linear = slope * np.array([raw, -raw])
        if (np.abs(values - linear) > 0.5 * np.abs(linear)).any():
            return factor
    return None


def numbers_of_mask(attention: Attention) -> frozenset[str]:
    """Integer operands that the mask reads along the sequence. Empty where one of them also selects elements of another
    tensor: other numbers than the example's might then lie outside of it.
    """
    parts = [e for e in (attention.score, attention.mask, attention.sink) if e is not None]
    selects = {name for part in parts for e in walk(part) if isinstance(e, Read) for x in e.index for name in reads(x)}
    along = {t.name for t in attention.operands if t.dtype.startswith("int") and {"Sq", "Sk"} & set(t.axes)}
    used = along & (reads(attention.mask) if attention.mask is not None else frozenset())
    return frozenset() if along & selects else frozenset(used)


def lengths_of_mask(attention: Attention) -> frozenset[str]:
    """Integer operands of one number for each batch that the mask reads: how many keys of a cache are filled."""
    used = frozenset[str]() if attention.mask is None else reads(attention.mask)
    return frozenset(t.name for t in attention.operands if t.axes == ("B",) and t.dtype.startswith("int")) & used


def tile_facts(attention: Attention, case: Case, br: int, bc: int) -> TileFacts | None:
    """Live tiles of a mask that depends on indices only; None when it reads tensors, or when there is nothing to look
    at.
    """
    if attention.mask is None or reads(attention.mask) or not case.Sq or not case.Sk:
        return None
    h = np.arange(case.H).reshape(-1, 1, 1)
    env = {
        **case.sizes,
        "b": 0,
        "h": h,
        "hk": h // max(case.H // case.Hkv, 1),
        "i": np.arange(case.Sq).reshape(1, -1, 1),
        "j": np.arange(case.Sk).reshape(1, 1, -1),
    }
    keep = np.broadcast_to(np.asarray(evaluate(attention.mask, env), dtype=bool), (case.H, case.Sq, case.Sk))
    live = np.logical_or.reduceat(keep, np.arange(0, case.Sk, bc), axis=2)
    tile_live = np.logical_or.reduceat(live, np.arange(0, case.Sq, br), axis=1)
    any_live = tile_live.any(axis=2)
    lo = np.where(any_live, tile_live.argmax(axis=2), 0)
    hi = np.where(any_live, tile_live.shape[2] - tile_live[:, :, ::-1].argmax(axis=2), 0)
    return TileFacts(live, lo, hi, br)


def grid_for(attention: Attention, kernel: Kernel, heads: Heads) -> Grid:
    """The whole grid of design 5 for this spec on this kernel's tiles: the fixed cases and those derived from the
    spec.
    """
    br, bc, d = kernel.Br, kernel.Bc, kernel.D
    covered: dict[str, str] = {}
    missing: dict[str, str] = {}
    cases: list[Case] = []
    seen: set[tuple[object, ...]] = set()
    for case in base_cases(br, bc, d, heads):
        moved = fitted(case, attention)
        if moved is None:
            missing[case.name] = outside(attention)
            continue
        key = (*moved.sizes.items(), moved.twists, moved.layout)
        if key not in seen:
            seen.add(key)
            cases.append(moved)
    far, unreached = far_cases(attention, br, bc, d, far_heads(attention, heads), cases)
    cases += far
    _mask_cases(attention, br, bc, d, heads.few, cases, covered, missing)
    _input_cases(attention, br, bc, d, heads, cases, covered, missing)
    covered |= {case.name: case.name for case in far}
    missing |= unreached
    return Grid(tuple(cases), covered, missing)


def _lengths(attention: Attention, br: int, bc: int) -> list[tuple[int, int]]:
    """Lengths (queries, keys) to look at: the fixed ones, then those a few tiles beyond each number of the mask."""
    assert attention.mask is not None
    fixed = [(sq.rows(br), sk.rows(bc)) for sq, sk in LENGTHS]
    beyond = [pair for reach in reaches(attention.mask) for pair in lengths_beyond(reach, 4 * br + 9, 4 * bc + 9)]
    return [*fixed, *sorted(beyond, key=lambda pair: pair[0] * pair[1])]


def _mask_cases(
    attention: Attention,
    br: int,
    bc: int,
    d: int,
    few: tuple[int, int],
    cases: list[Case],
    covered: dict[str, str],
    missing: dict[str, str],
) -> None:
    """Add a case for each condition on tiles that the cases so far do not meet."""
    if attention.mask is None or reads(attention.mask):
        return
    known = [(case.name, facts) for case in cases if (facts := tile_facts(attention, case, br, bc)) is not None]
    for condition in CONDITIONS:
        found = next((name for name, facts in known if condition.met(facts)), None)
        for rows, keys in _lengths(attention, br, bc) if found is None else ():
            if rows * keys > MAX_ELEMENTS:
                continue
            # One head is enough for a long sequence, unless the mask itself depends on the head.
            h, hkv = few
            long = rows * keys > LONG_SCORES
            wanted = Case(condition.name, condition.why, 1, h, hkv, rows, keys, d, seed=100 + len(cases), long=long)
            case = fitted(wanted, attention)
            facts = tile_facts(attention, case, br, bc) if case else None
            if case is not None and facts is not None and condition.met(facts):
                cases.append(case)
                known.append((case.name, facts))
                found = case.name
                break
        if found is not None:
            covered[condition.name] = found
        else:
            longest = max(keys for _, keys in _lengths(attention, br, bc))
            missing[condition.name] = f"no length up to {longest} keys has {condition.why}"


def _input_cases(
    attention: Attention,
    br: int,
    bc: int,
    d: int,
    heads: Heads,
    cases: list[Case],
    covered: dict[str, str],
    missing: dict[str, str],
) -> None:
    """Cases that need special values: saturated scores, shifted biases, masks given as data, large per-head
    parameters.
    """
    rows, keys = Length(1, 21).rows(br), Length(2, 13).rows(bc)

    def add(
        name: str,
        why: str,
        twists: tuple[str, ...],
        *,
        batch: int = 1,
        q_scale: float = 1.0,
        grouped: bool = False,
        size: tuple[int, int] = (rows, keys),
    ) -> None:
        h, hkv = heads.grouped if grouped else heads.few
        case = fitted(
            Case(name, why, batch, h, hkv, *size, d, twists, "contiguous", q_scale, seed=200 + len(cases)),
            attention,
        )
        if case is None:
            missing[name] = outside(attention)
        else:
            cases.append(case)
            covered[name] = name

    factor = saturating_scale(attention, d)
    slope = natural_scale(attention, d)
    linear = score_at(attention, np.array([0.0, 1.0, 64.0]), d)
    if factor is not None:
        add("saturated", "scores in the flat part of the score expression", (), q_scale=factor)
    elif not np.allclose(np.diff(linear), slope * np.array([1.0, 63.0]), rtol=1e-9):
        missing["saturated"] = "no input saturates the score expression"
    operands = attention.operands
    floats = [t for t in operands if t.dtype.startswith(("float", "bfloat"))]
    if any("Sq" in t.axes for t in floats):
        add(
            "bias-row-shift",
            "a constant added to whole rows of the bias: softmax must not move",
            ("operand_row_shift",),
        )
    if any("Sq" not in t.axes and "Sk" not in t.axes for t in floats):
        add("large-parameters", "per-head parameters far from zero", ("operands_high",), grouped=True)
    if attention.mask is not None and reads(attention.mask):
        add(
            "masked-by-data",
            "rows dead in the first tile, in the last one, and in all, through the mask tensor",
            ("dead_rows",),
            batch=6,
        )
    if lengths_of_mask(attention):
        for name, count, words in (("one-token", 1, "one query"), ("few-tokens", 4, "four queries")):
            why = f"{words} against caches that are filled up to the edge of a KV tile and one key beside it"
            add(name, why, ("lengths_by_tile",), batch=7, grouped=True, size=(count, Length(3, 5).rows(bc)))
        far = [fitted(case, attention) for case in far_lengths(attention, bc, d, far_heads(attention, heads)[0])]
        cases += [case for case in far if case is not None]
        covered |= {case.name: case.name for case in far if case is not None}
    if numbers_of_mask(attention):
        for name, why in NUMBERS.items():
            add(f"mask-{name.replace('_', '-')}", why, (name,), batch=3)
