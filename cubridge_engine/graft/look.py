"""Looking: the probed kernel run on several problems, and the first places that every score passes exactly once."""

from __future__ import annotations

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
    lengths = (((2 * br, 3 * bc), (3 * br, 4 * bc)), ((3 * max(br, bc),) * 2, (4 * max(br, bc),) * 2))
    for pair in lengths:
        found: list[Problem] = []
        for batch, (h, hkv), (sq, sk) in zip((2, 3), groups, pair, strict=True):
            sizes = {"B": batch, "H": h, "Hkv": hkv, "Sq": sq, "Sk": sk, "D": one.head_dim, "Dv": one.value_dim}
            if meets(contract, sizes):
                found.append(problem_of(sizes, one.dtype, causal=causal, seed=31 + batch))
        if len(found) == 2:
            return found
    raise Refused(make("CB131", None, requires=" and ".join(contract.requires)))


def look(builder: Builder, places: Sequence[Place], texts: Mapping[Path, Text], base: Base) -> tuple[Site, ...]:
    """The sites among `places`, in the order of the text. Raises Refused."""
    contract = builder.contract
    told = told_sizes(contract)
    probes = [Probe(p, (*p.integers, *(t for t in told.values() if in_scope(t, p)))) for p in places]
    module, kernel, roles = _probed(builder, probes, texts)
    problems = problems_for(contract, base.causal)
    seen = [_run(builder, module, kernel, roles, probes, problem) for problem in problems]
    looked = [
        found
        for n, probe in enumerate(probes)
        if (found := _looked(probe, [run[n] for run in seen], contract, problems, base)) is not None
    ]
    return _chosen(looked, problems, base, texts)


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
    changed: dict[Path, bytes] = {}
    lines = [0] * len(probes)
    for path in {p.place.path for p in probes}:
        own = [n for n, p in enumerate(probes) if p.place.path == path]
        changed[path], at = with_probes(texts[path].data, [probes[n] for n in own])
        for n, line in zip(own, at, strict=True):
            lines[n] = line
    built = builder.compile(changed)
    failed = [d for d in built.compiled.diagnostics if d.severity is Severity.ERROR]
    if built.compiled.ptx is None or failed:
        why = failed[0].message if failed else "the compiler gave no PTX"
        raise Refused(make("CB432", None, why=f"what may hold them could not be looked at: {why}"))
    module = load(built.compiled.ptx)
    kernel = built.compiled.lowered[builder.contract.instances[0].expression]
    return module, kernel, roles_of(module, kernel, probes, lines, built)


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
        lanes, values, loops, held = run.joined()
        shape = contract.launch(problem.sizes, problem.dtype)
        threads, blocks = _coordinates(lanes, shape.grid, shape.block)
        bits = {**threads, **{f"{{{n}}}": column for n, column in enumerate(loops.T)}}
        numbers.append(dict(zip(probe.numbers, held.T, strict=True)))
        own = {n: c for n, c in numbers[-1].items() if n in place.integers}
        raw = raw_scores(problem, default_heads(problem))
        seen.append(Observation(values, bits, {**own, **blocks}, raw, attended(problem, base)))
    found = match(seen, units_of(problems[0].scale))
    if found is None:
        return None
    fixed = {n: _fixed([run[n] for run in numbers]) for n in place.constants if n in numbers[0]}
    named: dict[int, tuple[str, ...]] = {}
    for name, value in fixed.items():
        if value is not None:
            named[value] = (*named.get(value, ()), name)
    passed = None
    if found.passed is not None:
        all_passed = dict(zip(ran, found.passed, strict=True))
        passed = tuple(all_passed.get(n, np.zeros((p.B, p.H, p.Sq, p.Sk), np.int32)) for n, p in enumerate(problems))
    sizes = _sizes(numbers, [problems[n] for n in ran], contract)
    return _Looked(place, replace(found, passed=passed), sizes, named)


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


def _sizes(numbers: Sequence[Mapping[str, Array]], problems: Sequence[Problem], contract: Contract) -> dict[str, str]:
    """How each size is spelled: as the contract's parameter, where it was seen to hold it."""
    out: dict[str, str] = {}
    for role, text in told_sizes(contract).items():
        if text in numbers[0] and all(
            (run[text] == problem.sizes[role]).all() for run, problem in zip(numbers, problems, strict=True)
        ):
            out[role] = text
    return out


def _chosen(
    looked: Sequence[_Looked], problems: Sequence[Problem], base: Base, texts: Mapping[Path, Text]
) -> tuple[Site, ...]:
    """The first places that together see every needed score exactly once. Raises Refused where there are none."""
    totals = [np.zeros((p.B, p.H, p.Sq, p.Sk), np.int32) for p in problems]
    chosen: list[_Looked] = []
    for one in looked:
        passed = one.matched.passed
        if passed is None or any((t + p > 1).any() for t, p in zip(totals, passed, strict=True)):
            continue
        totals = [t + p for t, p in zip(totals, passed, strict=True)]
        chosen.append(one)
    missed = sum(int(((t == 0) & attended(p, base)).sum()) for t, p in zip(totals, problems, strict=True))
    if not chosen or missed:
        raise Refused(_why(looked, missed, sum(t.size for t in totals), texts))
    return tuple(
        Site(
            one.place, one.matched.units, {n: a for n, a in one.matched.indices.items() if a is not None},
            one.sizes, one.named, sum(int(p.sum()) for p in one.matched.passed or ()),
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
