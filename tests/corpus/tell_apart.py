"""Which near misses of a spec pass for it: a kernel is adapted to each, then verified (level ir) against the spec."""

from __future__ import annotations

import os

from tests.examples.adapted import Adapted, NotAdapted

from .near_misses import NearMiss, difference, near_misses

# The IR level compares in float64: what differs by less than this in O is one function for it, and for us.
SAME = 1e-9
# All near misses, or one of each kind so that the suite stays short.
EVERY = os.environ.get("CUBRIDGE_NEAR_MISSES") == "all"


def told_apart(done: Adapted, miss: NearMiss) -> str:
    """How the near miss was told apart: 'refused CBnnn' or 'rejected'; '' when it passed."""
    try:
        other = done.adapted_to(miss.attention)
    except NotAdapted as why:
        return f"refused {str(why)[:5]}"
    outcome, found = other.check(other.text)
    return "" if outcome.passed and not found else "rejected"


def chosen(misses: list[NearMiss]) -> list[NearMiss]:
    """All of them, or the last of each kind: the first ones are the deepest of the first part."""
    return misses if EVERY else list({miss.kind: miss for miss in misses}.values())


def survivors(done: Adapted) -> tuple[list[str], int]:
    """The near misses that passed (there must be none), and how many were executed and rejected."""
    passed, rejected = [], 0
    for miss in chosen(near_misses(done.attention)):
        if difference(done.attention, miss.attention) <= SAME:
            continue
        how = told_apart(done, miss)
        rejected += how == "rejected"
        if not how:
            passed.append(miss.name)
    return passed, rejected
