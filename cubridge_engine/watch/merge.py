"""What was watched, put into what was read: steps of attention with provenance ``observed``.

A step that reading found stays as it was read; what watching adds is whether it was seen there. A step that reading did
not find stands as observed, with its lines. No operation is made up: a program is executable by reading alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..diagnostics import Span
from ..ir.nodes import For, If, Kernel, Op, Opaque
from ..lift import Coverage, Landmark, Lifted, Seen
from ..lift.coverage import LANDMARKS, WEIGHT_LANDMARKS
from .model import Problem, Site, Watched

# Landmark -> the roles that show it, that which is complete first; and what belongs to the step but completes nothing.
STEPS: dict[str, tuple[str, ...]] = {
    "qk": ("S",),
    "row_max": ("m", "tile max"),
    "exp": ("P",),
    "row_sum": ("l", "tile sum"),
    "rescale": ("O rescaled",),
    "pv": ("O unnormalised", "tile PV"),
    "normalise": ("O",),
    "store": ("O",),
}
# Steps that are no landmark, with their words.
MORE: dict[str, tuple[str, tuple[str, ...]]] = {
    "score": ("the function of a score", ("score",)),
    "mask": ("the mask", ("masked S", "masked score")),
    "correction": ("the correction exp(m_old - m)", ("correction",)),
    "lse": ("the log-sum-exp", ("LSE",)),
}
_UNITS = {"raw": "raw", "scaled": "scaled", "log2": "times log2(e)"}
_STORES = ("st", "red", "cp")
_FEW = 2  # roles that a line of one step may hold: weights and the mask, a correction and its maximum
_MAXIMA = ("max", "redux", "shfl")
_LOADS = ("ld", "ldu", "ldmatrix")


def merged(lifted: Lifted, watched: Watched) -> Lifted:
    """`lifted` with the steps that were seen. What reading did not find counts as observed; the program is the same but
    for the words on what was not understood.
    """
    found = tuple(steps_of(watched))
    if not found:
        return lifted
    coverage = _covered(lifted.coverage, found, watched)
    reads = {mark.name: mark for mark in lifted.coverage.landmarks if mark.found}
    seen = tuple(replace(one, read=_relation(one, reads, found)) for one in found)
    return replace(lifted, coverage=coverage, kernel=_annotated(lifted.kernel, seen), seen=seen)


def problem_words(p: Problem) -> str:
    """``B = 1, H = 2, Sq = 128, Sk = 192, D = 64, float16``."""
    sizes = ", ".join(f"{name} = {value}" for name, value in p.sizes.items() if name != "Dv" or p.Dv != p.D)
    return f"{sizes}, {p.dtype}" + (", a causal switch on" if p.causal else "")


def steps_of(watched: Watched) -> Iterator[Seen]:
    """The steps that were seen, in the order of attention. Where none of a step's labels is certain, it is likely."""
    if watched.function is None or watched.problem is None:
        return
    where = problem_words(watched.problem)
    shared = _roles_by_line(watched)
    rows = [(name, LANDMARKS[name], roles) for name, roles in STEPS.items()]
    for name, words, roles in [*rows, *((name, *row) for name, row in MORE.items())]:
        sites = _sites(watched, name, roles)
        placed = [site for site in sites if site.span is not None]
        best = _primary(placed)
        if best is None or best.span is None:
            continue
        lines = tuple(dict.fromkeys(s for site in placed for s in (site.span, *site.chain) if s is not None))
        span = _line_of(best, shared)
        also = tuple(s for s in lines if s != span)
        yield Seen(name, words, span, holds(best), best.confidence, where, also)


def _roles_by_line(watched: Watched) -> dict[tuple[str, int], set[str]]:
    found: dict[tuple[str, int], set[str]] = {}
    for site in watched.sites:
        for frame in site.chain:
            found.setdefault((frame.path, frame.line), set()).add(site.role.removeprefix("masked "))
    return found


def _line_of(site: Site, roles: dict[tuple[str, int], set[str]]) -> Span:
    """The line to show: the outermost in the file of the site that is about this step, and not about all of them. An
    edit may need the one that no other role shares; a reader looks for the step in the loop.
    """
    assert site.span is not None
    own = [frame for frame in reversed(site.chain) if frame.path == site.span.path]
    return next((frame for frame in own if len(roles[frame.path, frame.line]) <= _FEW), site.span)


def holds(site: Site) -> str:
    """``S (raw)``."""
    notes = [_UNITS[site.units]] if site.units in _UNITS else []
    notes += [f"rounded to {site.rounded}"] if site.rounded else []
    return site.role + (f" ({', '.join(notes)})" if notes else "")


def _sites(watched: Watched, name: str, roles: tuple[str, ...]) -> list[Site]:
    """Sites of the first role that has some; a store is the step ``store`` and no other."""
    for role in roles:
        found = [s for s in watched.of(role) if _stores(s) == (name == "store") or name == "lse"]
        if found:
            return found
    return []


def _stores(site: Site) -> bool:
    return all(op.split(".")[0] in _STORES for op in site.opcodes)


def _primary(sites: list[Site]) -> Site | None:
    """The site to point at: of the surest that compute, and do not just load it again, the one of the most registers;
    of several alike the first. A maximum is where maxima are taken, not where it is used.
    """
    if not sites:
        return None
    certain = [s for s in sites if s.confidence == "certain"] or sites
    made = [s for s in certain if any(op.split(".")[0] not in _LOADS for op in s.opcodes)] or certain
    if made[0].role in ("m", "tile max"):
        made = [s for s in made if any(op.split(".")[0] in _MAXIMA for op in s.opcodes)] or made
    return max(made, key=lambda s: (len(s.labels), -s.labels[0].site))


def _covered(coverage: Coverage, found: tuple[Seen, ...], watched: Watched) -> Coverage:
    """The landmarks, those that were only seen with their place. Where reading found no attention at all, they are
    those of a softmax, or of a function of single scores.
    """
    by_name = {one.name: one for one in found}
    softmax = watched.function is None or watched.function.weights == "softmax"
    blank = [Landmark(name, words, None) for name, words in (LANDMARKS if softmax else WEIGHT_LANDMARKS).items()]
    marks = coverage.landmarks if any(m.found for m in coverage.landmarks) else tuple(blank)
    made: list[Landmark] = []
    for mark in marks:
        one = by_name.get(mark.name)
        if mark.found or one is None:
            made.append(mark)
        else:
            made.append(Landmark(mark.name, mark.words, one.span, provenance="observed"))
    return replace(coverage, landmarks=tuple(made))


def _relation(one: Seen, reads: dict[str, Landmark], found: tuple[Seen, ...]) -> str:
    """How a step that was seen stands to the same step as read. A conflict is an exchange: it is seen where reading has
    another step, and that one where reading has this. Lines alone decide nothing: a step spans several.
    """
    mark = reads.get(one.name)
    if mark is None or mark.span is None:
        return ""
    if _on(one, mark.span):
        return "agrees"
    for other in found:
        there = reads.get(other.name)
        if there is None or there.span is None or other.name == one.name or one.confidence != "certain":
            continue
        exchanged = _on(one, there.span) and _on(other, mark.span) and not _on(other, there.span)
        if exchanged and other.confidence == "certain":
            return "conflicts"
    return "beside"


def _on(one: Seen, span: Span) -> bool:
    return any(s.path == span.path and span.line <= s.line <= span.end_line for s in (one.span, *one.also))


@dataclass(frozen=True, slots=True)
class _Inside:
    """Steps by the lines of an opaque region."""

    seen: tuple[Seen, ...]

    def at(self, span: Span | None) -> str:
        here = [s for s in self.seen if span is not None and s.span.path == span.path and _within(s.span, span)]
        return ", ".join(dict.fromkeys(s.holds for s in here))


def _within(inner: Span, outer: Span) -> bool:
    return outer.line <= inner.line <= outer.end_line


def _annotated(kernel: Kernel | None, seen: tuple[Seen, ...]) -> Kernel | None:
    """The program with what was seen in the regions that were not understood."""
    return None if kernel is None else replace(kernel, body=_ops(kernel.body, _Inside(seen)))


def _ops(ops: tuple[Op, ...], inside: _Inside) -> tuple[Op, ...]:
    return tuple(_op(op, inside) for op in ops)


def _op(op: Op, inside: _Inside) -> Op:
    if isinstance(op, For):
        return replace(op, body=_ops(op.body, inside))
    if isinstance(op, If):
        return replace(op, body=_ops(op.body, inside), orelse=_ops(op.orelse, inside))
    said = inside.at(op.origin.span) if isinstance(op, Opaque) else ""
    if not said or not isinstance(op, Opaque):
        return op
    return replace(op, why=f"{op.why}; run, it holds {said}", origin=replace(op.origin, provenance="observed"))
