"""Sentences about what was seen when the program was executed: ragged lengths, rows without keys, tiles for nothing."""

from __future__ import annotations

from collections.abc import Iterator

from ..transfer.sampling import integer_constants
from .known import Known
from .model import Function, Sentence
from .trial import EMPTY, WHOLE, Ran, has_own_sk


def trial_sentences(known: Known) -> Iterator[Sentence]:
    """Nothing where nothing was executed, or where it is not known what should come out."""
    if known.function is None or not known.behaviour.runs:
        return
    yield from tails(known)
    yield from _empty_rows(known)
    yield from _visited(known)
    yield from _far(known, known.function)


def tails(known: Known) -> Iterator[Sentence]:
    """Which lengths it takes: any, or multiples of its tiles, and why."""
    seen, k = known.behaviour, known.kernel
    own = has_own_sk(k)
    if seen.agrees("short", "ragged", "square") if own else seen.agrees("short", "square"):
        least = seen.of("short")[0].problem.sizes
        down = f"Sq = {least['Sq']} and Sk = {least['Sk']}" if own else f"S = {least['Sq']}"
        which = "Neither Sq nor Sk has to be a multiple" if own else "The length does not have to be a multiple"
        yield Sentence("tails", f"{which} of a tile, down to {down}.", "executed")
        return
    if not seen.agrees(*WHOLE):
        return
    for name, length, tile in (("sq", "Sq", k.Br), ("sk", "Sk", k.Bc)):
        if seen.of(name) and not seen.agrees(name):
            why = _why(seen.of(name))
            yield Sentence("tails", f"{length} has to be a multiple of {tile}: {why}.", "executed")
    if not own:
        why = _why(seen.of("square"))
        text = f"The length has to be a multiple of its tiles ({k.Br} queries, {k.Bc} keys): {why}."
        yield Sentence("tails", text, "executed")


def _why(runs: tuple[Ran, ...]) -> str:
    for run in runs:
        if run.findings:
            return run.findings[0].message
    wrong = next(r.first for r in runs if r.first is not None)
    return f"else at {wrong.place}, {wrong.found} instead of {wrong.expected}"


def _empty_rows(known: Known) -> Iterator[Sentence]:
    none = {(r.empty, r.empty_lse) for r in known.behaviour.of("none") if r.empty}
    masked = {(r.empty, r.empty_lse) for r in known.behaviour.of("short", "ragged", "square", "empty") if r.empty}
    spans = known.spans("weights")
    if none and masked and none != masked:
        text = f"A row whose keys are all masked gives {_gives(masked)}; with Sk = 0 it gives {_gives(none)}."
        yield Sentence("empty_rows", text, "executed", spans)
    elif none | masked:
        yield Sentence("empty_rows", f"A row without keys gives {_gives(none | masked)}.", "executed", spans)


def _gives(kinds: set[tuple[str, str]]) -> str:
    words = [EMPTY[o] + (f" (LSE {lse})" if lse else "") for o, lse in sorted(kinds)]
    return " or ".join(words)


def _visited(known: Known) -> Iterator[Sentence]:
    """Only where the mask empties whole tiles of a problem that was executed: which of them were visited."""
    runs = [r for r in known.behaviour.of("ragged", "square") if r.agrees]
    visited, live = sum(r.visited for r in runs), sum(r.live for r in runs)
    if live == sum(_tiles(r, known) for r in runs):
        return
    spans = known.spans("mask")
    seen = f"Of the {visited} KV tiles that it visited on the problems executed"
    if visited == live:
        yield Sentence("range", f"{seen}, none was masked as a whole.", "executed", spans)
    else:
        yield Sentence("range", f"{seen}, {visited - live} held no key that counts.", "executed", spans)


def _tiles(run: Ran, known: Known) -> int:
    """All KV tiles of all CTAs."""
    size, k = run.problem.sizes, known.kernel
    return size["B"] * size["H"] * -(-size["Sq"] // k.Br) * -(-size["Sk"] // k.Bc)


def _far(known: Known, f: Function) -> Iterator[Sentence]:
    """Distances in the mask that no executed problem reaches."""
    longest = max(max(r.problem.sizes["Sq"], r.problem.sizes["Sk"]) for r in known.behaviour.runs)
    far = [n for n in integer_constants((f.mask, f.score)) if n >= longest]
    if far:
        text = f"A distance of {far[0]} was read, not executed: the problems executed had up to {longest} rows."
        yield Sentence("unknown", text, "read", known.spans("mask"), lead=False)
