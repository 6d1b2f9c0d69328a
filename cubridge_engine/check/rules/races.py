"""Accesses to shared memory by different threads with no barrier between them, from the accesses as they were met.

Loops are gone through twice, so that the end of one trip meets the beginning of the next. Two accesses are compared
where their addresses are known for each thread, and differ by numbers alone: pipeline slots are for `pipeline`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...diagnostics import Related, Span
from ...lift.observed import Access, Either, Meeting, Repeat, Step
from .. import repairs
from ..model import Finding
from ..subject import Subject, finding

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
_Key = tuple[str, int, int]  # code, and where both accesses are
_NOBODY = 1 << 30
_GRAIN = 2  # bytes: no shared buffer of attention holds anything smaller
_MOST_BYTES = 1 << 22
# Template arguments and the number of threads were both assumed: where one is the other, threads that never meet seem
# to.
_GUESSED = frozenset({"CB124", "CB125"})


@dataclass(slots=True)
class _Users:
    """Who did something with each grain since the last barrier: the lowest and highest thread; the latest thread and
    access.
    """

    low: Ints
    high: Ints
    latest: Ints
    number: Ints

    @classmethod
    def none(cls, grains: int) -> _Users:
        """Nobody yet."""
        empty = cls(*(np.zeros(grains, dtype=np.int64) for _ in range(4)))
        empty.forget()
        return empty

    def forget(self) -> None:
        """After a barrier."""
        self.low.fill(_NOBODY)
        self.high.fill(-1)

    def forget_among(self, threads: Bools) -> None:
        """After a barrier of these threads (by linear id): what none but them did."""
        known = self.high >= 0
        mine = known & threads[np.where(known, self.low, 0)] & threads[np.where(known, self.high, 0)]
        self.low[mine] = _NOBODY
        self.high[mine] = -1

    def add(self, where: Ints, who: Ints, number: int) -> None:
        """Threads `who` do it now, in access `number`."""
        np.minimum.at(self.low, where, who)
        np.maximum.at(self.high, where, who)
        self.latest[where] = who
        self.number[where] = number


@dataclass(slots=True)
class _Past:
    """The writers and readers of shared memory from byte `base` on."""

    base: int
    writers: _Users
    readers: _Users


@dataclass(slots=True)
class _Walk:
    subject: Subject
    pasts: dict[Any, _Past] = field(default_factory=dict[Any, _Past])
    bounds: dict[Any, tuple[int, int]] = field(default_factory=dict[Any, "tuple[int, int]"])
    accesses: list[Access] = field(default_factory=list[Access])
    found: dict[_Key, tuple[int, int]] = field(default_factory=dict)  # -> numbers of the accesses
    trip: int = 0
    synced: int = 0  # accesses before the last barrier of a warp
    parts: set[bytes] = field(default_factory=set[bytes])  # threads of the barriers for some, since the last for all
    narrow: list[tuple[int, Meeting]] = field(default_factory=list["tuple[int, Meeting]"])  # those, and accesses before

    def key(self, access: Access) -> Any:
        """Addresses with equal keys can be compared; those that symbols move, only within one trip."""
        return (access.slot, 0 if access.slot == 0 else self.trip)

    def go(self, steps: tuple[Step, ...]) -> None:
        for step in steps:
            if isinstance(step, Repeat):
                for _ in range(2):
                    self.trip += 1
                    self.go(step.body)
                self.trip += 1
            elif isinstance(step, Either):
                self.go(step.then)
                if not step.then or not _ends_apart(step):
                    self.go(step.orelse)
            elif isinstance(step, Meeting):
                self.meeting(step)
                self.synced = len(self.accesses)
            elif isinstance(step, Access) and _usable(step):
                self.access(step)

    def meeting(self, step: Meeting) -> None:
        """Threads that meet see what they did before."""
        if step.scope == "warp":
            return
        parts = self.threads_of(step)
        if parts is not None:
            self.narrow.append((len(self.accesses), step))
        users = [users for past in self.pasts.values() for users in (past.writers, past.readers)]
        for one in users:
            if parts is None:
                one.forget()
            else:
                for part in parts:
                    one.forget_among(part)

    def threads_of(self, step: Meeting) -> list[Bools] | None:
        """By linear id, the threads of each part that meets; None where all do, or where order may pass from part to
        part: then nobody is said to be out of step.
        """
        ids = self.subject.observed.threads
        parts = None
        if step.scope == "part" and step.parts is not None:
            parts = [np.zeros(int(ids.max()) + 1, dtype=bool) for _ in step.parts]
            for made, part in zip(parts, step.parts, strict=True):
                made[ids[part]] = True
            before = [np.frombuffer(known, dtype=bool) for known in self.parts]
            if any((a & b).any() and (a != b).any() for a in parts for b in before):
                parts = None
        self.parts = set() if parts is None else self.parts | {part.tobytes() for part in parts}
        return parts

    def access(self, access: Access) -> None:
        assert access.address is not None
        assert access.active is not None
        threads = self.subject.observed.threads[access.active]
        start = access.address[access.active]
        if not threads.size:
            return
        key = self.key(access)
        low, high = self.bounds[access.slot]
        past = self.pasts.get(key)
        if past is None:
            grains = (high - low) // _GRAIN + 1
            past = self.pasts[key] = _Past(low, _Users.none(grains), _Users.none(grains))
        count = max(1, access.size // _GRAIN)
        where = ((start - past.base) // _GRAIN)[:, None] + np.arange(count)[None, :]
        who = np.broadcast_to(threads[:, None], where.shape).reshape(-1)
        where = where.reshape(-1)
        self.accesses.append(access)
        number = len(self.accesses) - 1
        self.meet(
            "CB851" if access.write else "CB852", access, past.readers if access.write else past.writers, where, who
        )
        (past.writers if access.write else past.readers).add(where, who, number)

    def meet(self, code: str, access: Access, others: _Users, where: Ints, who: Ints) -> None:
        """An access after those of `others`."""
        low, high = others.low[where], others.high[where]
        bad = (high >= 0) & ((low != who) | (high != who))
        if not bad.any():
            return
        across = bad & ((low // 32 != who // 32) | (high // 32 != who // 32))
        if not across.any():  # a warp orders its own reads before its writes; the latest write may need a __syncwarp
            bad = bad & (others.latest[where] != who) & (others.number[where] >= self.synced)
            if code != "CB852" or not bad.any():
                return
        at = int(np.flatnonzero(across if across.any() else bad)[0])
        if not across.any():
            code = "CB845"
        number = int(others.number[where[at]])
        partner, pair = self.accesses[number], (number, len(self.accesses) - 1)
        self.found.setdefault((code, access.place.site[0], partner.place.site[0]), pair)


def _ends_apart(step: Either) -> bool:
    """True when the two ways cannot be told to be for different threads: then only the first one is gone."""
    return bool(step.then) and bool(step.orelse)


def _usable(access: Access) -> bool:
    return (
        access.space == "shared"
        and access.address is not None
        and access.active is not None
        and not (isinstance(access.slot, tuple) and access.slot[:1] == ("varies",))
        and access.how != "matrix"
    )


def races(subject: Subject) -> Iterator[Finding]:
    """CB851, CB852 and CB845 of plain accesses."""
    yield from subject.races


def found_races(subject: Subject) -> Iterator[Finding]:
    """The same, looked for."""
    seen = subject.observed
    if not seen.whole or {d.code for d in subject.lifted.diagnostics} >= _GUESSED:
        return
    walk = _Walk(subject)
    for access in _all_shared(seen.steps):
        assert access.address is not None
        low, high = int(access.address.min()), int(access.address.max()) + access.size
        before = walk.bounds.get(access.slot, (low, high))
        walk.bounds[access.slot] = min(before[0], low), max(before[1], high)
    if any(high - low > _MOST_BYTES for low, high in walk.bounds.values()):
        return
    walk.go(seen.steps)
    for code, pairs in _by_barrier(walk.found):
        latest = max(a for a, _ in pairs)  # of what comes before the barrier that is missing
        ordered = sorted(pairs, key=lambda pair: pair[1])
        first, last = latest, ordered[0][1]
        narrow = [step for at, step in walk.narrow if first < at <= last]
        met = [(walk.accesses[a], walk.accesses[b]) for a, b in ordered]
        yield _finding(subject, code, walk.accesses[latest], met, narrow)


def _by_barrier(found: Mapping[_Key, tuple[int, int]]) -> Iterator[tuple[str, list[tuple[int, int]]]]:
    """Pairs of accesses that one barrier would part are one finding: it would lie behind all of their first accesses
    and before all of the second. What a barrier of a warp would part goes with what needs one of the block.
    """
    groups: list[tuple[str, list[tuple[int, int]]]] = []
    wide_first = sorted(found.items(), key=lambda item: (item[0][0] == "CB845", item[1][1]))
    for (code, *_), pair in wide_first:
        for _, pairs in groups:
            if max(a for a, _ in [*pairs, pair]) < min(b for _, b in [*pairs, pair]):
                pairs.append(pair)
                break
        else:
            groups.append((code, [pair]))
    yield from groups


def _all_shared(steps: tuple[Step, ...]) -> Iterator[Access]:
    for step in steps:
        if isinstance(step, Repeat):
            yield from _all_shared(step.body)
        elif isinstance(step, Either):
            yield from _all_shared(step.then)
            yield from _all_shared(step.orelse)
        elif isinstance(step, Access) and _usable(step):
            yield step


def _finding(
    subject: Subject, code: str, first: Access, pairs: Sequence[tuple[Access, Access]], narrow: Sequence[Meeting]
) -> Finding:
    second = pairs[0][1]
    words = "it was read here" if code == "CB851" else "it was written here"
    span, before = subject.span(second.place), subject.span(first.place)
    more = dict.fromkeys(subject.span(b.place) for _, b in pairs[1:])
    related = (
        Related(before, words),
        *(Related(s, "and here") for s in more if s.line not in (span.line, before.line)),
        *(Related(s, "a barrier for a part of the threads alone") for s in {subject.span(n.place): 0 for n in narrow}),
        *subject.inside(second.place, "in the function called there"),
    )
    call = "__syncwarp" if code == "CB845" else "__syncthreads"
    fixes = [repairs.barrier_between(subject, subject.span(a.place), subject.span(b.place), call) for a, b in pairs]
    fix = max((f for f in fixes if f is not None), key=lambda f: f.edits[0].span.start, default=None)
    kind = "warp" if code == "CB845" else "barrier"
    return finding(code, span, kind, related=related, fix=fix, what=_what(subject, before, span))


def _what(subject: Subject, first: Span, second: Span) -> str:
    """The shared memory that two statements touch: the one array that both index, if it is one."""
    names = [set(re.findall(r"\b([A-Za-z_]\w*)\s*\[", subject.text(span))) for span in (first, second)]
    both = sorted(names[0] & names[1])
    return both[0] if len(both) == 1 else "shared memory"
