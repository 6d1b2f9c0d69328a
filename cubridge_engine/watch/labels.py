"""From matches to sites: roles, units, source lines, the map from lanes to elements, and how sure each is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..diagnostics import Span
from ..simulate.findings import Sources
from ..simulate.kernel import Kernel
from ..simulate.model import Instruction
from .layout import Held, exact_by_visit, fit, joined
from .match import Match
from .model import AXES, ROLES, Confidence, Label, LaneMap, Site, Units
from .record import Recorded

EXACT = 0.98
# A reduction over lanes or steps holds one of the values that went into it: it is those only where they stay in place.
REDUCTIONS = frozenset({"max", "min", "shfl", "redux"})
_MAPPED = frozenset(
    {"S", "masked S", "score", "masked score", "P", "O", "O rescaled", "O unnormalised", "tile PV", "Q", "K", "V"}
)
_MASKED = -1e3
_MANY = 24  # different numbers, where the map has an offset for every trip of every CTA


@dataclass(frozen=True, slots=True)
class Code:
    """The kernel's instructions with their places in the source."""

    kernel: Kernel
    sources: Sources

    def chain(self, site: int) -> tuple[Span, ...]:
        """Where an instruction is from, the innermost inlined call first."""
        loc = self.ins(site).loc
        return tuple(self.sources.span(place) for place in loc.chain()) if loc is not None else ()

    def ins(self, site: int) -> Instruction:
        """An instruction."""
        return self.kernel.flow.code[site]

    def home(self) -> str:
        """The kernel's own file, as spans name it."""
        chain = next((i.loc.chain() for i in self.kernel.flow.code if i.loc), None)
        return self.sources.span(chain[-1]).path if chain else ""


def places_of(match: Match, recorded: Recorded, register: int) -> Held:
    """The elements that a match shows, for fitting."""
    execution, lane, index = match.places()
    along = np.stack(np.unravel_index(index, match.table.values.shape), 1)
    trip = match.observed.trips[execution, lane]
    sample = recorded.sample
    return Held(sample.thread[lane], sample.coords[lane], trip, np.full(len(lane), register), along)


def refined_role(match: Match) -> str:
    """``masked S`` for scores some lanes of which hold minus infinity, or as good as; ``masked score`` for those behind
    a cap or a bias.
    """
    if match.role not in ("S", "score"):
        return match.role
    values, active = match.observed.values[match.executions], match.observed.active[match.executions]
    return f"masked {match.role}" if bool((active & (values < _MASKED)).any()) else match.role


def _is_first_step(match: Match, code: Code) -> bool:
    """A sum holds its first term after its first step: that is no place where such terms are made."""
    name = code.ins(match.observed.site).parts[0]
    if match.role == "tile PV":  # an accumulator, after the first tile
        return match.share < 0.9 and name in ("mma", "wgmma", "wmma")
    return match.role == "P" and name in ("add", "fma")


@dataclass(frozen=True, slots=True)
class _Named:
    match: Match
    role: str
    chain: tuple[Span, ...]


def sites_of(matches: Sequence[Match], recorded: Recorded, code: Code) -> tuple[Site, ...]:
    """Matches of one role at one place together, with the map of their lanes; what does not fit a map is left out."""
    groups: dict[tuple[object, ...], list[_Named]] = {}
    for match in matches:
        if _is_first_step(match, code):
            continue
        chain = code.chain(match.observed.site)
        name = code.ins(match.observed.site).parts[0]
        key = (match.role, match.table.units, match.table.rounded, tuple((s.path, s.line) for s in chain), name)
        groups.setdefault(key, []).append(_Named(match, match.role, chain))
    for key, named in groups.items():
        # What masks in some registers, masks: the others had nothing to mask.
        roles = {refined_role(n.match) for n in named}
        role = next((r for r in roles if r.startswith("masked ")), named[0].role)
        groups[key] = [replace(n, role=role) for n in named]
    made = [_site(named, recorded, code) for named in _majority(groups)]
    return tuple(sorted((s for s in made if s is not None), key=lambda s: s.labels[0].site))


# Of one instruction's registers some may fit the first value alone of what all of them hold.
_KIN = {"tile PV": "O", "O unnormalised": "O", "O rescaled": "O", "tile max": "m", "tile sum": "l"}


def _majority(groups: Mapping[tuple[object, ...], list[_Named]]) -> list[list[_Named]]:
    """The groups, but of kindred roles at one place only that which holds in the most executions."""
    best: dict[tuple[object, ...], list[_Named]] = {}
    for (role, *_, chain, name), named in groups.items():
        family = _KIN.get(str(role), role)
        place = (family, named[0].match.table.units, chain, name)
        if place not in best or _weight(named) > _weight(best[place]):
            best[place] = named
    return list(best.values())


def _weight(named: list[_Named]) -> tuple[float, int]:
    return max(n.match.share for n in named), len(named)


def _site(named: list[_Named], recorded: Recorded, code: Code) -> Site | None:
    role = named[0].role
    table = named[0].match.table
    axes = AXES[role]
    held = joined([places_of(n.match, recorded, i) for i, n in enumerate(named)])
    wanted = [a for a in axes if a != "t"]
    lane_map = fit(held, axes, wanted) if len(held.thread) >= 12 else None
    sure = _confidence(named, role, lane_map, code)
    if sure is None and lane_map is not None:
        nested = fit(held, axes, wanted, nested=True)
        sure = _confidence(named, role, nested, code) if nested.exact >= EXACT else None
        lane_map = nested if sure is not None else lane_map
    if sure is None and all(n.match.null <= 0.2 and n.match.distinct >= _MANY for n in named):
        sure = "likely" if exact_by_visit(held, axes, wanted) >= EXACT else None
        lane_map = None
    if sure is None:
        return None
    labels = tuple(_label(n, code, sure) for n in named)
    opcodes = tuple(dict.fromkeys(label.opcode for label in labels))
    shown = lane_map if lane_map is not None and (role in _MAPPED or lane_map.exact >= EXACT) else None
    return Site(role, table.units, table.rounded, None, named[0].chain, opcodes, labels, sure, shown)


def _confidence(named: list[_Named], role: str, lane_map: LaneMap | None, code: Code) -> Confidence | None:
    """None where the evidence is that of a coincidence."""
    reduces = any(code.ins(n.match.observed.site).parts[0] in REDUCTIONS for n in named)
    exact = lane_map.exact if lane_map is not None else 0.0
    if exact >= EXACT and all(n.match.null <= 0.2 for n in named):
        return "certain"
    if role not in _MAPPED:
        rows = min((a.exact for a in lane_map.axes if a.axis in ("b", "h", "i")), default=0.0) if lane_map else 0.0
        return "likely" if rows >= 0.9 else None
    if reduces or lane_map is None:
        return None
    if role in ("Q", "K", "V"):  # exact bits need no map: trips of nested loops are no number of one loop
        return "likely"
    return "likely" if exact >= 0.9 else None


def _label(named: _Named, code: Code, sure: Confidence) -> Label:
    match = named.match
    one, ins = match.observed, code.ins(match.observed.site)
    units: Units = match.table.units
    return Label(
        one.site, one.result, one.half, ins.op, named.role, units, match.table.rounded, None, named.chain,
        match.matches, match.of, match.distinct, match.null, match.share, sure, match.alternatives,
    )  # fmt: skip


def with_spans(sites: Iterable[Site], home: str) -> tuple[Site, ...]:
    """Each site with the line to edit: the outermost frame in the kernel's file that the fewest roles share."""
    sites = tuple(sites)
    roles: dict[tuple[str, int], set[str]] = {}
    for site in sites:
        for frame in site.chain:
            roles.setdefault((frame.path, frame.line), set()).add(site.role.removeprefix("masked "))
    return tuple(_spanned(site, roles, home) for site in sites)


def _spanned(site: Site, roles: Mapping[tuple[str, int], set[str]], home: str) -> Site:
    own = [frame for frame in reversed(site.chain) if frame.path == home]
    # The outermost of those that the fewest roles share.
    own.sort(key=lambda f: len(roles[f.path, f.line]))
    span = own[0] if own else site.chain[0] if site.chain else None
    return replace(site, span=span, labels=tuple(replace(label, span=span) for label in site.labels))


def in_order(sites: Iterable[Site]) -> tuple[Site, ...]:
    """By role in the order of attention, then by place in the code."""
    return tuple(sorted(sites, key=lambda s: (ROLES.index(s.role), s.labels[0].site)))
