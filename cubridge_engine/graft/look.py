"""Looking: the probed kernel run on several problems, and the first places that every score passes exactly once."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ..compile import Contract
from ..diagnostics import Diagnostic, Severity, Span, make
from ..simulate import Module, load
from ..simulate.calling import prepare_call
from ..watch import Problem
from ..watch.function import band, mask_rows
from ..watch.problem import default_heads, meets, problem_of, raw_scores
from .build import Builder
from .fit import Matched, Observation, match, units_of
from .model import Array, Place, Refused, Site
from .probe import Probe, Seen, roles_of, run_probes, with_probes
from .text import Text

_LONG = 256  # keys of which a kernel may want whole multiples
SIZE_ROLES = ("B", "H", "Hkv", "Sq", "Sk")


@dataclass(frozen=True, slots=True)
class Base:
    """What the kernel is known to compute before it is changed: its scale on `Problem.scale`, its mask."""

    mask: str  # a name of ``watch.function.mask_rows``
    causal: bool  # the flag that it is called with


@dataclass(frozen=True, slots=True)
class _Looked:
    place: Place
    matched: Matched
    sizes: Mapping[str, str]
    named: Mapping[int, tuple[str, ...]]


def problems_for(contract: Contract, causal: bool) -> list[Problem]:
    """Two problems of whole tiles that tell batch, heads, rows and keys apart, and the first tile from the last."""
    br, bc, one = contract.br, contract.bc, contract.instances[0]
    groups = ((4, 2), (2, 1)) if contract.gqa else ((2, 2), (3, 3))
    wide, most = max(bc, _LONG), max(br, bc)
    lengths = (
        ((2 * br, 3 * bc), (3 * br, 4 * bc)), ((3 * most,) * 2, (4 * most,) * 2),
        ((2 * br, 2 * wide), (3 * br, 3 * wide)), ((1, 2 * wide), (1, 3 * wide)),
    )  # fmt: skip
    for batches, pair in itertools.product(((2, 3), (1, 1)), lengths):  # a contract may ask for one batch, or one row
        found: list[Problem] = []
        for batch, (h, hkv), (sq, sk) in zip(batches, groups, pair, strict=True):
            sizes = {"B": batch, "H": h, "Hkv": hkv, "Sq": sq, "Sk": sk, "D": one.head_dim, "Dv": one.value_dim}
            if meets(contract, sizes):
                found.append(problem_of(sizes, one.dtype, causal=causal, seed=31 + batch))
        if len(found) == 2:
            return found
    why = f"no two small problems are what its contract requires: {' and '.join(contract.requires)}"
    raise Refused(make("CB430", None, why=why))


@dataclass(frozen=True, slots=True)
class Runs:
    """Probes, the problems that the probed kernel was run on, and what each run showed of each probe."""

    probes: tuple[Probe, ...]
    problems: tuple[Problem, ...]
    seen: tuple[tuple[Seen, ...], ...]


def observe(builder: Builder, places: Sequence[Place], texts: Mapping[Path, Text], base: Base) -> Runs:
    """Probe the places, compile, run. Raises Refused."""
    contract = builder.contract
    told = told_sizes(contract)
    probes = [Probe(p, (*p.integers, *(t for t in told.values() if in_scope(t, p)))) for p in places]
    module, kernel, roles = _probed(builder, probes, texts)
    problems = problems_for(contract, base.causal)
    seen = tuple(tuple(_run(builder, module, kernel, roles, probes, problem)) for problem in problems)
    return Runs(tuple(probes), tuple(problems), seen)


def look(builder: Builder, places: Sequence[Place], texts: Mapping[Path, Text], base: Base) -> tuple[Site, ...]:
    """The sites among `places`, in the order of the text. Raises Refused."""
    return sites_of(observe(builder, places, texts, base), places, builder.contract, texts, base)


def sites_of(
    runs: Runs, places: Sequence[Place], contract: Contract, texts: Mapping[Path, Text], base: Base
) -> tuple[Site, ...]:
    """The sites among `places`, which were all looked at. Raises Refused."""
    looked = [
        found
        for n, probe in enumerate(runs.probes)
        if probe.place in places
        and (found := _looked(probe, [run[n] for run in runs.seen], contract, runs.problems, base)) is not None
    ]
    return _chosen(looked, runs.problems, base, texts)


def told_sizes(contract: Contract) -> dict[str, str]:
    """Sizes that the kernel's own parameters hold, as C++."""
    out: dict[str, str] = {}
    for parameter in contract.parameters:
        for leaf in parameter.leaves:
            if leaf.role in SIZE_ROLES:
                out[leaf.role] = leaf.name if leaf is parameter else f"{parameter.name}.{leaf.name}"
    return out


def in_scope(text: str, place: Place) -> bool:
    """True where the function around a place has the variable among its parameters."""
    head = place.body[: place.body.find("{")]
    return re.search(rf"\b{text.partition('.')[0]}\b\s*[,)]", head) is not None


def _probed(
    builder: Builder, probes: Sequence[Probe], texts: Mapping[Path, Text]
) -> tuple[Module, str, dict[int, tuple[int, int]]]:
    """The kernel with the probes that compile: what looks like floats by its text may be something else."""
    kept = list(range(len(probes)))
    while True:
        changed, lines = _with_probes(probes, kept, texts)
        built = builder.compile(changed)
        failed = [d for d in built.compiled.diagnostics if d.severity is Severity.ERROR]
        if built.compiled.ptx is not None and not failed:
            break
        wrong = {(built.original(d.span.path), d.span.line + 1 + k) for d in failed if d.span for k in (0, -1)}
        bad = {n for n in kept if (probes[n].place.path, lines[n]) in wrong}
        kept = [n for n in kept if n not in bad]
        if not bad or not kept:
            why = failed[0].message if failed else "the compiler gave no PTX"
            raise Refused(make("CB432", None, why=f"what may hold them could not be looked at: {why}"))
    module = load(built.compiled.ptx)
    kernel = built.compiled.lowered[builder.contract.instances[0].expression]
    return module, kernel, roles_of(module, kernel, probes, lines, built)


def _with_probes(
    probes: Sequence[Probe], kept: Sequence[int], texts: Mapping[Path, Text]
) -> tuple[dict[Path, bytes], list[int]]:
    """The files with some of the probes, and for each probe the line of its numbers; 0 for one that was left out."""
    changed: dict[Path, bytes] = {}
    lines = [0] * len(probes)
    for path in {probes[n].place.path for n in kept}:
        own = [n for n in kept if probes[n].place.path == path]
        changed[path], at = with_probes(texts[path].data, [probes[n] for n in own])
        for n, line in zip(own, at, strict=True):
            lines[n] = line
    return changed, lines


def _run(
    builder: Builder, module: Module, kernel: str, roles: Mapping[int, tuple[int, int]], probes: Sequence[Probe],
    problem: Problem,
) -> list[Seen]:  # fmt: skip
    contract = builder.contract
    tensors = {"q": problem.q, "k": problem.k, "v": problem.v}
    values = {"scale": problem.scale, "causal": int(problem.causal)}
    call = prepare_call(contract, contract.instances[0], problem.sizes, tensors, values)
    if call.diagnostics:
        raise Refused(make("CB430", None, why=call.diagnostics[0].message), *call.diagnostics[:1])
    return run_probes(module, kernel, call, roles, probes)


def attended(problem: Problem, base: Base) -> Array:
    """The scores that the kernel must compute, ``[Sq, Sk]``."""
    row = next(r for r in mask_rows(problem.Sq, problem.Sk + 1) if r.name == base.mask)
    high = problem.Sk - problem.Sq if base.mask == "causal bottom-right" else row.high
    return band(problem.Sq, problem.Sk, row.low, high)


def _looked(
    probe: Probe, runs: Sequence[Seen], contract: Contract, problems: Sequence[Problem], base: Base
) -> _Looked | None:
    ran = [n for n, run in enumerate(runs) if run.values]  # a loop may have no trip on one of the problems
    if not ran:
        return None
    place = probe.place
    seen: list[Observation] = []
    numbers: list[dict[str, Array]] = []
    for run, problem in ((runs[n], problems[n]) for n in ran):
        one, held = observation(probe, run, contract, problem, base)
        numbers.append(held)
        seen.append(one)
    found = match(seen, units_of(problems[0].scale))
    if found is None:
        return None
    named = named_constants(place, numbers)
    passed = None
    if found.passed is not None:
        all_passed = dict(zip(ran, found.passed, strict=True))
        passed = tuple(all_passed.get(n, np.zeros((p.B, p.H, p.Sq, p.Sk), np.int32)) for n, p in enumerate(problems))
    sizes = spelled_sizes(numbers, [problems[n] for n in ran], contract)
    return _Looked(place, replace(found, passed=passed), sizes, named)


def observation(
    probe: Probe, run: Seen, contract: Contract, problem: Problem, base: Base
) -> tuple[Observation, dict[str, Array]]:
    """What one run showed of a probe, against the scores of its problem; and the numbers in scope."""
    lanes, values, loops, held = run.joined()
    shape = contract.launch(problem.sizes, problem.dtype)
    threads, blocks = _coordinates(lanes, shape.grid, shape.block)
    bits = {**threads, **{f"{{{n}}}": column for n, column in enumerate(loops.T)}}
    numbers = dict(zip(probe.numbers, held.T, strict=True))
    own = {n: c for n, c in numbers.items() if n in probe.place.integers}
    raw = raw_scores(problem, default_heads(problem))
    return Observation(values, bits, {**own, **blocks}, raw, attended(problem, base)), numbers


def named_constants(place: Place, numbers: Sequence[Mapping[str, Array]]) -> dict[int, tuple[str, ...]]:
    """The constants of the text at a place, by the value that each was seen to have."""
    named: dict[int, tuple[str, ...]] = {}
    for name in place.constants & set(numbers[0]):
        value = _fixed([run[name] for run in numbers])
        if value is not None:
            named[value] = (*named.get(value, ()), name)
    return {value: tuple(sorted(names)) for value, names in named.items()}


def _fixed(columns: Sequence[Array]) -> int | None:
    first = int(columns[0][0])
    return first if all((c == first).all() for c in columns) else None


def _coordinates(
    lanes: Array, grid: tuple[int, int, int], block: tuple[int, int, int]
) -> tuple[dict[str, Array], dict[str, Array]]:
    """threadIdx and blockIdx of each lane, axes of a block that have one index left out."""
    cta, thread = np.divmod(lanes, int(np.prod(block)))
    out: list[dict[str, Array]] = []
    for name, number, extents, least in (("threadIdx", thread, block, 2), ("blockIdx", cta, grid, 1)):
        steps = (1, extents[0], extents[0] * extents[1])
        parts = zip("xyz", steps, extents, strict=True)
        out.append({f"{name}.{a}": number // s % n for a, s, n in parts if n >= least})
    return out[0], out[1]


def spelled_sizes(
    numbers: Sequence[Mapping[str, Array]], problems: Sequence[Problem], contract: Contract
) -> dict[str, str]:
    """How each size is spelled: as the contract's parameter, where it was seen to hold it."""
    out: dict[str, str] = {}
    for role, text in told_sizes(contract).items():
        if text in numbers[0] and all(
            (run[text] == problem.sizes[role]).all() for run, problem in zip(numbers, problems, strict=True)
        ):
            out[role] = text
    if "Sq == Sk" in contract.requires:
        out |= {a: out[b] for a, b in (("Sq", "Sk"), ("Sk", "Sq")) if a not in out and b in out}
    return out


def _chosen(
    looked: Sequence[_Looked], problems: Sequence[Problem], base: Base, texts: Mapping[Path, Text]
) -> tuple[Site, ...]:
    """The first places that together see every needed score, each at one of them, in as many lanes as any other.
    Raises Refused where there are none.
    """
    totals = [np.zeros((p.B, p.H, p.Sq, p.Sk), np.int32) for p in problems]
    chosen: list[_Looked] = []
    for one in looked:
        passed = one.matched.passed
        if passed is None or any(((t > 0) & (p > 0)).any() for t, p in zip(totals, passed, strict=True)):
            continue
        if len({int(n) for p in passed for n in np.unique(p[p > 0])}) != 1:
            continue
        totals = [t + (p > 0) for t, p in zip(totals, passed, strict=True)]
        chosen.append(one)
    missed = sum(int(((t == 0) & attended(p, base)).sum()) for t, p in zip(totals, problems, strict=True))
    if not chosen or missed:
        raise Refused(_why(looked, missed, sum(t.size for t in totals), texts))
    return tuple(
        Site(
            one.place, one.matched.units, {n: a for n, a in one.matched.indices.items() if a is not None},
            one.sizes, one.named, sum(int((p > 0).sum()) for p in one.matched.passed or ()),
        )
        for one in chosen
    )  # fmt: skip


def _why(looked: Sequence[_Looked], missed: int, total: int, texts: Mapping[Path, Text]) -> Diagnostic:
    words = {"b": "batch", "h": "head", "i": "row", "j": "key"}
    for one in looked:
        lacking = [axis for axis, index in one.matched.indices.items() if index is None]
        if lacking:
            return make("CB433", span_of(one.place, texts), what=words[lacking[0]])
    if missed == total or not looked:
        return make("CB432", None, why="no variable was seen to hold them")
    return make("CB432", None, why=f"{missed} of {total} scores passed none of the places that hold some")


def span_of(place: Place, texts: Mapping[Path, Text]) -> Span:
    """The statement of a place."""
    text = texts[place.path]
    start = text.line_start(place.line)
    width = len(text.data[start:].split(b"\n", 1)[0].rstrip())
    return Span(str(place.path), start, start + width, place.line, 0, place.line, width)
