"""The one edit that makes a kernel right: candidates are executed in the place of what they replace, and what gives the
right numbers on the problem that was wrong is compiled as it would be written and watched on the whole grid.

So the line that is named is one at which a change is enough, which was seen, and the change can be offered.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..compile import Contract, Instance, compile_contract
from ..diagnostics import Severity, Span
from ..simulate import Schedule
from ..simulate.calling import output
from ..source import SourceFile, parse
from ..spec.attention import Attention
from ..verify.targets import archs_of
from .candidates import MOST, NUMBERS, Code
from .candidates_places import PLACES
from .fixes import apply_fix
from .launched import STUCK, Launched
from .model import Fix
from .numbers import wrong_numbers
from .variants import SWITCH, Candidate, with_variants
from .watch_cases import WatchCase, inputs_of, meant, watch_cases

SECONDS = 10.0  # of this process's work for the candidates of one kernel
MOST_RIGHT = 2  # edits that are watched on the whole grid
_TRIES = 6  # compilations, each without the lines that the one before complained about
_RICH = ("rising-max", "short-query", "decode")
# Words of a known fault -> the families of edits that are tried first.
_HINTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("scale", ("scale", "unit")),
    ("log2", ("unit", "lse", "scale")),
    ("LSE", ("lse",)),
    ("rescale", ("correction", "state")),
    ("correction", ("correction", "state", "unit")),
    ("shuffle", ("lane",)),
    ("transposed", ("step",)),
    ("outside every", ("stride", "mask", "index")),
    ("masked", ("mask", "start")),
    ("mask", ("mask",)),
    ("left out", ("range", "mask")),
    ("KV head", ("head",)),
)
_OF_SEVERAL_TILES = ("correction", "state", "stage")
_ORDER = (
    "unit", "lse", "correction", "state", "maximum", "mask", "stage", "start", "head", "range", "lane", "stride",
    "scale", "empty", "index", "step",
)  # fmt: skip
Watch = Callable[[bytes], bool]  # a text -> whether it is right on the whole grid


@dataclass(frozen=True, slots=True)
class Failing:
    """The launch that a kernel is not right in, and what it should compute there."""

    contract: Contract
    instance: Instance
    meaning: Attention
    case: WatchCase
    schedule: Schedule


@dataclass(frozen=True, slots=True)
class Repair:
    """An edit after which the kernel is right on every problem. `span` is the line that shows the fault, `others` where
    this edit changes something, and any other of which the same is true.
    """

    fix: Fix
    span: Span
    why: str
    others: tuple[Span, ...] = ()


@dataclass(slots=True)
class _Variants:
    """A kernel with its candidates compiled in."""

    launched: Launched
    candidates: list[Candidate]
    _inputs: dict[WatchCase, Any] = field(default_factory=dict[WatchCase, Any])

    def right(self, number: int, case: WatchCase, failing: Failing, steps: int = STUCK) -> bool:
        """Whether variant `number` gives the right numbers on a case, and nothing is said against it."""
        kernel = self.launched.module.kernel(self.launched.entry)
        code = number.to_bytes(4, "little")
        kernel.module_variables[:] = [replace(v, init=code) if v.name == SWITCH else v for v in kernel.module_variables]
        if case not in self._inputs:
            self._inputs[case] = inputs_of(case, failing.instance.dtype, self.launched.scale)
        tensors = self._inputs[case]
        call = self.launched.call(case, tensors)
        if call.diagnostics or 0 in call.grid:
            return not call.diagnostics
        run = self.launched.run(call, failing.schedule, checked=False, steps=steps)
        if "O" not in run.outputs or any(f.severity is Severity.ERROR for f in run.findings):
            return False
        lse = output(call, run, "lse") if "LSE" in run.outputs else None
        return (
            wrong_numbers(
                failing.contract,
                failing.instance,
                failing.meaning,
                case,
                tensors,
                output(call, run, "o"),
                lse,
                failing.schedule,
            )
            is None
        )


def repair(
    failing: Failing,
    launched: Launched,
    watch: Watch,
    hint: str = "",
    cancelled: Callable[[], None] = lambda: None,
    *,
    only_hinted: bool = False,
) -> Repair | None:
    """The edit that makes the kernel of `failing` right; None where none of those that are tried does.

    `watch` decides about a text; `hint` says what is wrong in words, as far as that is known, and `only_hinted` that
    nothing else is tried. `cancelled` is called now and then, and may raise.
    """
    source = parse(launched.path, launched.data)
    several = failing.case.case.Sk > failing.contract.bc  # smaller problems, of one tile, were right
    first = [*_families(hint), *(_OF_SEVERAL_TILES if several else ())]
    candidates = candidates_of(source, failing.contract, first)
    if only_hinted:
        candidates = [c for c in candidates if c.family in _families(hint)]
    variants = _compiled(source, candidates, failing, launched) if candidates else None
    if variants is None or variants.right(0, failing.case, failing):
        return None
    right = list(_tried(variants, failing, cancelled))
    kept = [c for c in right if watch(apply_fix(launched.data, Fix(c.title, c.edits)))]
    if not kept:
        return None
    first = kept[0]
    span = first.at or _changed(first)
    others = {_changed(c).line: _changed(c) for c in kept}
    return Repair(
        Fix(first.title, first.edits), span, first.why, tuple(s for line, s in others.items() if line != span.line)
    )


def _changed(candidate: Candidate) -> Span:
    return min((e.span for e in candidate.edits), key=lambda s: s.start)


def _families(hint: str) -> list[str]:
    return list(dict.fromkeys(family for words, families in _HINTS if words in hint for family in families))


def candidates_of(source: SourceFile, contract: Contract, first: Sequence[str] = ()) -> list[Candidate]:
    """What is tried, the families `first` before the others."""
    found: list[Candidate] = []
    functions = [f for fs in source.functions().values() for f in fs if f.is_kernel or "__device__" in f.qualifiers]
    for function in functions:
        code = Code(source, function, contract)
        for table in (*NUMBERS, *PLACES):
            found += table(code)
    unique: dict[tuple[Any, ...], Candidate] = {}
    for candidate in found:
        if candidate.places:
            unique.setdefault(candidate.places, candidate)
    return _in_turn(list(unique.values()), first)[:MOST]


def _in_turn(found: Sequence[Candidate], first: Sequence[str]) -> list[Candidate]:
    """Those of the families `first`; then of the others one of each after the other: none is left to the end."""
    turns: Counter[str] = Counter()
    keys: dict[int, tuple[int, int, int]] = {}
    for n, candidate in enumerate(found):
        family = candidate.family
        turns[family] += 1
        order = _ORDER.index(family)
        keys[n] = (list(first).index(family), 0, n) if family in first else (len(first), turns[family], order)
    return [found[n] for n in sorted(keys, key=lambda n: keys[n])]


def _compiled(
    source: SourceFile, candidates: Sequence[Candidate], failing: Failing, launched: Launched
) -> _Variants | None:
    """The text with its candidates, less those on lines that the compiler does not take them on."""
    kept = list(candidates)
    arch = archs_of((), failing.contract, launched.data)[0]
    for _ in range(_TRIES):
        text = with_variants(source, kept)
        made = compile_contract(
            failing.contract, text, arch=arch, instances=(failing.instance,), path=launched.path, want=("ptx",)
        )
        entry = made.lowered.get(failing.instance.expression)
        if made.ptx is not None and entry is not None:
            built = replace_module(launched, text, made.ptx, entry)
            return None if built.unreadable else _Variants(built, kept)
        lines = {d.span.line for d in made.diagnostics if d.span is not None}
        fewer = [c for c in kept if not ({e.span.line for e in c.edits} & lines)]
        if not fewer or len(fewer) == len(kept):
            return None
        kept = fewer
    return None


def replace_module(launched: Launched, data: bytes, ptx: str, entry: str) -> Launched:
    """The same kernel from another text."""
    return Launched(launched.path, data, launched.contract, launched.instance, ptx, entry)


def _tried(variants: _Variants, failing: Failing, cancelled: Callable[[], None]) -> Iterator[Candidate]:
    """The candidates that are right where the kernel was wrong, and on a problem of several tiles."""
    started = time.process_time()
    cases = watch_cases(failing.contract, failing.instance, (failing.case.flag,))
    cases = tuple(c for c in cases if meant(c, failing.meaning))
    rich = [c for name in _RICH for c in cases if c.case.name.removeprefix("like ") == name][:2]
    found = 0
    for number, candidate in enumerate(variants.candidates, 1):
        cancelled()
        if time.process_time() - started > SECONDS or found >= MOST_RIGHT:
            return
        if not variants.right(number, failing.case, failing):
            continue
        if all(variants.right(number, case, failing, 4 * STUCK) for case in rich):  # guards keep loops from unrolling
            found += 1
            yield candidate
