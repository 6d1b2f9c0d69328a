"""Reading a recording: how the kernel makes scores and goes through the keys, then what every register holds.

The first pass looks for exact values among the rows of a CTA; the second, among the rows that a lane was seen to hold,
with room for the rounding of weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from .free import by_tile, filled, references
from .groups import cta_groups, row_groups
from .inputs import match_inputs
from .labels import REDUCTIONS, Code
from .lookup import Finder, Groups
from .match import Match, Matcher
from .model import Array, Meaning, Problem, Variant
from .observed import Observed, observations
from .problem import problem_of
from .record import Recorded
from .tables import Table, score_makers, score_tables, tables, weight_tables, with_scores

_WIDTHS = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256)
_TILE_WIDTHS = (4, 8, 16, 32, 64)
_DEALT = (1, 2, 4, 8, 16)  # keys of a tile of a part
_PARTS = (2, 4, 8, 16, 32)
_LOOSE = ("O unnormalised", "O rescaled", "tile PV", "O", "l", "m", "P")
_SLACK = 6.0
LEAST_ROWS = 4  # executions that must agree on a way of going through the keys


@dataclass(frozen=True, slots=True)
class Roles:
    """What a recording says under a meaning: `matches` of all passes, and the variant, None where P was not found."""

    variant: Variant | None
    meaning: Meaning
    matches: tuple[Match, ...]


def null_meaning(meaning: Meaning, seed: int = 99) -> Meaning:
    """Unrelated numbers of the same sizes under the same mask."""
    rng = np.random.default_rng(seed)

    def noise(x: Array) -> Array:
        return rng.standard_normal(x.shape) * x.std()

    raw = noise(meaning.raw)
    scores = raw * meaning.scale if meaning.scale is not None else noise(meaning.scores)
    return replace(meaning, raw=raw, scores=scores, v=rng.standard_normal(meaning.v.shape))


def null_references(free: Array, seed: int = 98) -> Array:
    """Unrelated references, one for each row."""
    noise = np.random.default_rng(seed).standard_normal(free.shape[:-1])[..., None]
    return np.where(np.isfinite(free), np.nanmean(free) + np.nanstd(free) * noise, np.nan)


def read_roles(recorded: Recorded, code: Code, problem: Problem, meaning: Meaning, bc: int = 0) -> Roles:
    """Roles of all observed registers. `bc` is the width of a KV tile where the contract says it: tried first."""
    observed = observations(recorded, code.kernel.flow.code, problem.dtype)
    matcher = Matcher(observed)
    shape = meaning.scores.shape[:3]
    groups = cta_groups(recorded, shape)
    null = null_meaning(meaning)
    inputs = match_inputs(observed, problem, problem_of(problem.sizes, problem.dtype, seed=77))
    meaning = _with_maker(matcher, code, problem, meaning, null, groups)
    variant = (
        _variant(matcher, code, meaning, null, groups, bc) if meaning.weights == "softmax" else Variant(1, False, "")
    )
    free: Array | None = None
    if variant is None:
        # A CTA that goes from item to item reads many rows: scores tell which of them a lane holds.
        found = matcher.match(score_tables(meaning), groups, score_tables(null))
        held = row_groups(found, len(recorded.sample), (shape[0], shape[1], shape[2]))
        if held is not None and meaning.weights == "softmax":
            groups = held
            variant = _variant(matcher, code, meaning, null, groups, bc)
            if variant is None:
                variant, free = _free(matcher, code, meaning, groups, bc)
        if variant is None:
            return Roles(None, meaning, (*inputs, *found))
    made = tables(meaning, variant, _half(problem), free)
    other = tables(null, variant, _half(problem), None if free is None else null_references(free))
    first = matcher.match(made, groups, other)
    second = _second(matcher, recorded, first, made, other, shape)
    taken = {(m.observed.site, m.observed.result, m.observed.half) for m in inputs}
    rest = [m for m in (*first, *second) if (m.observed.site, m.observed.result, m.observed.half) not in taken]
    return Roles(variant, meaning, (*inputs, *rest))


def _free(matcher: Matcher, code: Code, meaning: Meaning, rows: Groups, bc: int) -> tuple[Variant | None, Array | None]:
    """A reference of each row and tile that is no maximum, where one was seen; the tiles as the contract has them."""
    powers = _sites(matcher.observed, code, frozenset({"ex2"}), keep=True)
    if not bc or not powers or meaning.sink is not None:
        return None, None
    found = references(matcher.observed, code, meaning, rows, powers)
    tiles = None if found is None else by_tile(found, bc)
    if tiles is None:
        return None, None
    # A reference is only ever raised: its tiles say which way they were gone through, where it was raised at all.
    steps = np.diff(tiles, axis=-1)
    falls, rises = int((steps < -1e-4).sum()), int((steps > 1e-4).sum())
    variant = Variant(bc, falls > rises, "free")
    return variant, filled(tiles, variant.descending)


def _half(problem: Problem) -> str:
    return problem.dtype


def _second(
    matcher: Matcher, recorded: Recorded, first: Sequence[Match], made: Sequence[Table], other: Sequence[Table],
    shape: tuple[int, ...],
) -> list[Match]:  # fmt: skip
    """Matches of what the first pass left, by the rows that lanes hold."""
    rows = row_groups(first, len(recorded.sample), (shape[0], shape[1], shape[2]))
    if rows is None:
        return []
    done = {m.observed.site for m in first}
    left = {o.site for o in matcher.observed} - done
    loose = [t for t in made if t.role in _LOOSE]
    return matcher.match(loose, rows, [t for t in other if t.role in _LOOSE], slack=_SLACK, sites=left)


def _sites(observed: Sequence[Observed], code: Code, names: frozenset[str], keep: bool) -> set[int]:
    return {o.site for o in observed if (code.ins(o.site).parts[0] in names) is keep}


def _with_maker(
    matcher: Matcher, code: Code, problem: Problem, meaning: Meaning, null: Meaning, groups: Groups
) -> Meaning:
    """The meaning with scores as the kernel makes them: the way that most registers agree with."""
    sites = _sites(matcher.observed, code, REDUCTIONS, keep=False)
    best, most = meaning, 0
    for name in score_makers(problem.dtype):
        made = with_scores(meaning, problem, name)
        count = sum(m.matches for m in matcher.match(score_tables(made), groups, score_tables(null), sites=sites))
        if count > 1.1 * most:
            best, most = made, count
        if name == "" and count:
            break
    return best


def variants(keys: int, bc: int, sink: bool = False) -> list[Variant]:
    """Ways of going through the keys, that of the contract first; with a sink, each with the sink at either end."""
    if sink:
        return [replace(v, sink=at) for v in variants(keys, bc) for at in ("first", "last")]
    widths = [w for w in dict.fromkeys((bc, *_WIDTHS, keys)) if 0 < w <= keys]
    made = [Variant(w, d, "online") for w in widths for d in (False, True) if w < keys or not d]
    made += [Variant(w, False, "per tile") for w in _TILE_WIDTHS if w < keys]
    return [*made, Variant(keys, False, "two passes"), Variant(keys, False, "none")]


def dealt(keys: int) -> list[Variant]:
    """Ways in which warps or groups of threads keep a softmax each, of tiles dealt to them in turn."""
    return [Variant(w, False, "online", parts=n) for n in _PARTS for w in _DEALT if n * w < keys]


def _variant(matcher: Matcher, code: Code, meaning: Meaning, null: Meaning, groups: Groups, bc: int) -> Variant | None:
    """The way whose P most executions agree with; None where P was not found."""
    keys = meaning.scores.shape[-1]
    observed = matcher.observed
    powers = _sites(observed, code, frozenset({"ex2"}), keep=True)
    # expf scales what ex2 gives; what has no ex2 at all makes powers in its own way. Of many products only some are
    # looked at: those of an ex2 first.
    rest = _sites(observed, code, frozenset({"mul", "fma", "cvt"}), keep=True)
    near = rest & _users(code, powers)
    ways = variants(keys, bc, meaning.sink is not None)
    for sites in (powers, near, rest):
        found = _best_variant(matcher, meaning, null, groups, bc, ways, sites) if sites else None
        if found is not None:
            return found
    if meaning.sink is None:
        for sites in (powers, near):
            found = _best_variant(matcher, meaning, null, groups, 0, dealt(keys), sites) if sites else None
            if found is not None:
                return found
    return None


def _users(code: Code, sites: set[int]) -> set[int]:
    """Instructions that read what one of `sites` makes."""
    made = {code.ins(site).args[0] for site in sites}
    return {n for n, ins in enumerate(code.kernel.flow.code) if made & set(ins.args[1:])}


def _best_variant(
    matcher: Matcher, meaning: Meaning, null: Meaning, groups: Groups, bc: int, ways: Sequence[Variant],
    sites: set[int],
) -> Variant | None:  # fmt: skip
    rows = matcher.some(sites)
    best: tuple[int, Variant] | None = None
    for variant in ways:
        finder = Finder(weight_tables(meaning, variant), groups)
        agreeing = len(matcher.agreeing(finder, rows)[0])
        if agreeing > 1.05 * (best[0] if best is not None else 0) and agreeing >= LEAST_ROWS:
            other = [weight_tables(null, variant)]
            found = matcher.match([weight_tables(meaning, variant)], groups, other, sites=sites)
            # What makes weights makes them every time; a part of the times is another order of keys.
            if any(m.distinct >= 8 and m.share >= 0.8 for m in found):
                best = agreeing, variant
        if variant.bc == bc and variant.descending and best is not None and best[0] > 0.5 * len(rows):
            break
    return best[1] if best is not None else None
