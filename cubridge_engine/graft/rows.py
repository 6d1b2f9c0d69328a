"""Where a row is done: places behind the loop over keys, and what holds maximum and sum of each row there."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ..compile import Contract
from ..diagnostics import make
from ..watch import Problem, Watched
from .fit import Matched, Observation, index_values, match, units_of
from .look import Base, Runs, named_constants, observation, spelled_sizes
from .model import Array, Fragment, Place, Refused, RowSite
from .operands import structs_of
from .places import fragment_of, integers_at, words_of
from .probe import Probe, Seen
from .text import Block, Text

_IN_LOOP = frozenset({"S", "masked S", "score", "masked score", "P"})
_BEHIND = frozenset({"l", "1/l", "O", "LSE"})
_STATE = _BEHIND | {"m", "reference", "tile max", "tile sum", "correction"}
_CLOSE = 2e-3  # of a sum: its weights may have been rounded to halves
_AXES = "bhi"


def find_rows(watched: Watched, texts: Mapping[Path, Text]) -> list[Place]:
    """Places behind the loops over keys, one for each variable that may hold a number of a row there."""
    found: dict[tuple[Path, int, str], Place] = {}
    for path, text in texts.items():
        lines = _lines(watched, path)
        for function, ends in _loop_ends(text, lines).items():
            names = _names(text, function, lines)
            for block in ends:
                for place in _at(path, text, function, block, names, texts):
                    found.setdefault((path, place.at, place.fragment.element), place)
    return list(found.values())


def _lines(watched: Watched, path: Path) -> dict[int, set[str]]:
    """The roles of each line of a file."""
    lines: dict[int, set[str]] = {}
    for site in watched.sites:
        for frame in site.chain:
            if Path(frame.path) == path:
                lines.setdefault(frame.line, set()).add(site.role)
    return lines


def _loop_ends(text: Text, lines: Mapping[int, set[str]]) -> dict[Block, list[Block]]:
    """By function the loops that hold scores and behind which, in the same function, a row is finished."""
    loops: dict[Block, list[Block]] = {}
    finished: dict[Block, int] = {}
    for line, roles in lines.items():
        start, _ = text.statement(line)
        function = text.function_around(start)
        if function is None:
            continue
        if roles & _BEHIND:
            finished[function] = max(finished.get(function, 0), start)
        if roles & _IN_LOOP:
            inside = (b for b in text.blocks_around(start) if b.start > function.start)
            loops.setdefault(function, []).extend(b for b in inside if re.match(r"\s*(for|while)\b", b.header))
    ends = {
        f: sorted({b for b in found if b.end <= finished.get(f, 0)}, key=lambda b: b.end) for f, found in loops.items()
    }
    return {f: found for f, found in ends.items() if found}


def _names(text: Text, function: Block, lines: Mapping[int, set[str]]) -> list[str]:
    """The names on the lines of a function that make or use a number of a row."""
    names: dict[str, None] = {}
    for line, roles in lines.items():
        start, end = text.statement(line)
        if roles & _STATE and function.start < start < function.end:
            names |= dict.fromkeys(words_of(text.code[start:end].partition("{")[0]))
    return list(names)


def _at(
    path: Path, text: Text, function: Block, loop: Block, names: Sequence[str], texts: Mapping[Path, Text]
) -> Iterator[Place]:
    at = loop.end
    integers = dict(integers_at(text, at))
    constants = frozenset(n for n, fixed in integers.items() if fixed)
    body = text.code[function.header_start : function.end]
    for name in names:
        if name in integers or re.search(rf"\bconst\s[^;,()]*\b{name}\b\s*[=;{{]", text.code[function.start : at]):
            continue
        members = list(_members(name, text, function, at, texts))
        plain = None if members else fragment_of(name, text, function.start, at)
        if plain is not None and plain.element.startswith(f"{name}(") and not _indexed(name, body):
            plain = None
        for fragment in members or ([plain] if plain is not None else []):
            yield Place(
                path, at, text.line_of(loop.header_start), fragment, tuple(integers), constants, body,
                text.indent(loop.header_start),
            )  # fmt: skip


def _indexed(name: str, body: str) -> bool:
    """Whether a function takes elements of a variable, as of a tensor; a declaration looks alike, but for its type."""
    return re.search(rf"(?:[-=(),;{{}}+*/!\[]|\breturn\b)\s*{name}\s*\(", body) is not None


def _members(name: str, text: Text, function: Block, at: int, texts: Mapping[Path, Text]) -> Iterator[Fragment]:
    """The floats that a variable of a struct or class holds, as far as they may be named from outside."""
    for block in text.blocks_around(at):
        own = text.own_text(block, at)
        declared = re.search(
            rf"(?:^|[;{{}}])\s*(?:[A-Za-z_]\w*::)*([A-Za-z_]\w*)\s*(?:<[^;]*>)?\s+{name}\s*(?=[;({{=]|$)", own
        )
        if declared is not None and declared[1] not in ("auto", "float", "return"):
            for where in (text, *texts.values()):
                for struct in structs_of(where):
                    if re.search(rf"\b(struct|class)\s+{declared[1]}\b", struct.header):
                        yield from members_of(name, struct, where)
                        return
        if block == function:
            return


def members_of(name: str, struct: Block, text: Text) -> Iterator[Fragment]:
    """The members of a struct that may hold floats, as those of the variable `name`: floats, arrays, tensors."""
    public = re.search(r"\bclass\b", struct.header) is None
    own = text.own_text(struct, struct.end - 1)
    for piece in re.split(r"[;}]|(?<!:):(?!:)", own):
        word = piece.strip()
        if word in ("public", "private", "protected"):
            public = word == "public"
            continue
        found = re.match(r"(?:mutable\s+)?(float|[A-Z]\w*(?:\s*<.*>)?)\s+(?=[A-Za-z_])(.+)$", word, re.S)
        if not public or found is None or "(" in word:
            continue
        for piece_of in found[2].split(","):
            declared = re.match(r"\s*([A-Za-z_]\w*)\s*((?:\[\]\s*)*)(?:=.*|\{)?$", piece_of, re.S)
            is_float = found[1] == "float"
            if declared is not None and (is_float or re.search(rf"\b{declared[1]}\s*\(", text.code[struct.start :])):
                yield _member(f"{name}.{declared[1]}", declared[2].count("["), is_float)


def _member(name: str, dims: int, is_float: bool) -> Fragment:
    if not is_float:
        return Fragment(name, f"{name}({{0}})", (f"size({name})",))
    element = name + "".join(f"[{{{n}}}]" for n in range(dims))
    inner = [name + "[0]" * n for n in range(dims + 1)]
    extents = tuple(f"int(sizeof({a}) / sizeof({b}))" for a, b in itertools.pairwise(inner))
    return Fragment(name, element, extents)


@dataclass(frozen=True, slots=True)
class _Maxima:
    """A place that holds the maxima. By problem: the row (flat) of each value that passed, the sums that belong to
    the rows, and the numbers in scope. `lanes` hold each maximum.
    """

    matched: Matched
    lanes: int
    rows: tuple[Array, ...]
    sums: tuple[Array, ...]
    numbers: tuple[Mapping[str, Array], ...]


def row_site(runs: Runs, rows: Sequence[Place], contract: Contract, base: Base) -> RowSite:
    """The last of the places in the text at which maximum and sum of every row were seen. Raises Refused."""
    if not rows:
        raise Refused(make("CB438", None, why="no loop was found that makes scores and behind which a row is finished"))
    found = False
    probes = sorted((p.place.at, n) for n, p in enumerate(runs.probes) if p.place in rows)
    for at, n in reversed(probes):
        probe = runs.probes[n]
        maxima = _maxima(probe, [run[n] for run in runs.seen], contract, runs.problems, base)
        if maxima is None:
            continue
        found = True
        for other in (o for a, o in probes if a == at and o != n and runs.probes[o].place.path == probe.place.path):
            lanes = {
                _lanes(run[n], run[other], r, s, maxima.lanes)
                for run, r, s in zip(runs.seen, maxima.rows, maxima.sums, strict=True)
            }
            if len(lanes) == 1 and None not in lanes:
                return _site(probe, runs.probes[other].place.fragment, lanes.pop() or 1, maxima, runs, contract)
    what = "sum" if found else "maximum"
    raise Refused(make("CB438", None, why=f"no variable there was seen to hold the {what} of each row"))


def _site(
    probe: Probe, total: Fragment, lanes: int, maxima: _Maxima, runs: Runs, contract: Contract
) -> RowSite:  # fmt: skip
    indices = {axis: index for axis, index in maxima.matched.indices.items() if index is not None and axis in _AXES}
    sizes = spelled_sizes(maxima.numbers, runs.problems, contract)
    named = named_constants(probe.place, maxima.numbers)
    return RowSite(probe.place, total, maxima.matched.units, lanes, indices, sizes, named)


def _maxima(
    probe: Probe, runs: Sequence[Seen], contract: Contract, problems: Sequence[Problem], base: Base
) -> _Maxima | None:
    """The maxima of all rows, each on as many lanes as any other, and nothing else."""
    if not all(run.values for run in runs):
        return None
    seen: list[Observation] = []
    sums: list[Array] = []
    numbers: list[Mapping[str, Array]] = []
    for run, problem in zip(runs, problems, strict=True):
        one, held = observation(probe, run, contract, problem, base)
        scores = np.where(one.attended, one.raw, -np.inf)
        top = scores.max(-1, keepdims=True)
        sums.append(np.exp((scores - top) * problem.scale).sum(-1).ravel())
        seen.append(replace(one, raw=top, attended=np.ones((problem.Sq, 1), bool)))
        numbers.append(held)
    matched = match(seen, units_of(problems[0].scale))
    counts = (
        {int(n) for passed in (matched.passed or ()) for n in np.unique(passed)} if matched is not None else set[int]()
    )
    if matched is None or len(counts) != 1 or 0 in counts:
        return None
    return _Maxima(matched, counts.pop(), tuple(_rows(one, matched) for one in seen), tuple(sums), tuple(numbers))


def _rows(one: Observation, matched: Matched) -> Array:
    columns = {**one.integers, **one.bits}
    found = [matched.indices[axis] for axis in _AXES]
    at = tuple(index_values(index, columns, len(one.values)) for index in found if index is not None)
    return np.ravel_multi_index(at, one.raw.shape[:3])


def _lanes(maximum: Seen, total: Seen, rows: Array, sums: Array, lanes: int) -> int | None:
    """1 where each element holds the sum of its row, `lanes` where those of a row hold shares of it; None where what
    passed is something else, or beside other elements than the maximum.
    """
    if not total.values:
        return None
    mine, theirs = _ordered(maximum), _ordered(total)
    if mine[1].shape != theirs[1].shape or (mine[1] != theirs[1]).any():
        return None
    values, row = total.joined()[1][theirs[0]], rows[mine[0]]
    if (np.abs(values - sums[row]) <= _CLOSE * sums[row]).all():
        return 1
    together = np.bincount(row, values, len(sums))
    return lanes if (np.abs(together - sums) <= _CLOSE * sums).all() else None


def _ordered(seen: Seen) -> tuple[Array, Array]:
    """The order by lane and loop variables, each element's visits as they came; and these keys in that order."""
    lanes, _, loops, _ = seen.joined()
    keys = np.column_stack([lanes, loops]) if loops.size else lanes[:, None]
    order = np.lexsort(keys.T[::-1])
    return order, keys[order]
