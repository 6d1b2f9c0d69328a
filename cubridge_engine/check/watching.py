"""Findings by watching: the kernel's PTX is executed on a grid of problems under every schedule, and its numbers are
compared with what it is expected, or promised, to compute. One finding per cause, with the smallest problem that shows
it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..compile import Contract, Instance, compile_contract
from ..diagnostics import Diagnostic, Related, Severity, Span
from ..simulate import SCHEDULES, Schedule
from ..simulate.calling import output
from ..spec.attention import Attention
from ..verify.ir_level import sizes_text
from ..verify.static_checks import static_checks_of
from ..verify.targets import archs_of
from .expect import promised
from .launched import Launched
from .mending import Mender
from .model import Finding, Kind
from .numbers import Wrong, wrong_numbers
from .subject import Subject
from .trials import Failing
from .watch_cases import WatchCase, inputs_of, meant, watch_cases
from .wrong_line import located, wrong_program

Progress = Callable[[float, str], None]  # share done, what runs. May raise: the job is cancelled then

LINES = ("-lineinfo",)
LONGEST = 1 << 20  # keys of the sequences at which addresses are looked at
LAST = 0.95  # of the progress: what follows the launches
ENOUGH = 6  # launches with findings after which the rest would tell nothing new
_KINDS: dict[str, Kind] = {
    **dict.fromkeys(("CB516", "CB517", "CB530", "CB529", "CB525", "CB543", "CB545"), "pipeline"),
    **dict.fromkeys(("CB519", "CB520", "CB527", "CB539", "CB540", "CB542", "CB532"), "barrier"),
    **dict.fromkeys(
        ("CB513", "CB514", "CB515", "CB518", "CB522", "CB523", "CB524", "CB526", "CB531", "CB534"), "memory"
    ),
    "CB521": "warp",
    "CB536": "overflow",
}
# A consequence of the others where it stands beside them: what is read too early is not written, and so on.
_CONSEQUENCES = ("CB518", "CB523")
_UNWRITTEN = "CB518"
_ONE_COPY = ("CB517",)
_POSSIBLE = ("CB536", "CB537")  # shown by no launch: at other sizes, or for other arguments than those passed here
_RACES = ("CB516", "CB527")  # of two accesses, between warps or between lanes of one
_BARRIER = ("CB519", "CB520")  # behind a barrier that some threads do not reach, nothing is as it should be


@dataclass(frozen=True, slots=True)
class Watchable:
    """A kernel ready to be launched: its text, how it is called, its PTX and the name there.

    `read`: the kernel as it was read, where it was.
    """

    path: str
    data: bytes
    contract: Contract
    instance: Instance
    ptx: str
    entry: str
    read: Subject | None = None


@dataclass(frozen=True, slots=True)
class WatchReport:
    """What watching showed. `notes`: what could not be watched, and why."""

    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    launches: int = 0
    cases: tuple[str, ...] = ()
    seconds: float = 0.0


def watchable(
    path: str, data: bytes, contract: Contract, *, arch: str = "", head_dim: int | None = None
) -> tuple[Watchable | None, tuple[Diagnostic, ...]]:
    """Compile the first instance of the contract (of `head_dim`). None, with the compiler's diagnostics, where it does
    not compile.
    """
    instance = next((i for i in contract.instances if head_dim in (None, i.head_dim)), contract.instances[0])
    target = arch or archs_of((), contract, data)[0]
    compiled = compile_contract(
        contract, data, arch=target, instances=(instance,), path=path, want=("ptx",), options=LINES
    )
    if compiled.ptx is None or instance.expression not in compiled.lowered:
        return None, compiled.diagnostics
    return Watchable(path, data, contract, instance, compiled.ptx, compiled.lowered[instance.expression]), ()


def watch_findings(
    subject: Watchable,
    expected: Attention | None = None,
    progress: Progress = lambda share, text: None,
    schedules: Sequence[Schedule] = SCHEDULES,
) -> WatchReport:
    """Execute the kernel on the grid. `expected` takes the place of what the contract promises."""
    started = time.perf_counter()
    watch = _Watch(subject, expected)
    if watch.launched.unreadable:
        return WatchReport((), watch.launched.unreadable)
    todo = [(case, schedule) for case in watch.cases for schedule in watch.schedules(schedules)]
    launches = 0
    for number, (case, schedule) in enumerate(todo):
        where = f"case '{case.name}', schedule {schedule.async_} {schedule.order}"
        progress(LAST * number / len(todo), where)
        launches += watch.go(
            case, schedule, where, lambda share, n=number, w=where: progress(LAST * (n + share) / len(todo), w)
        )
        if watch.shown >= ENOUGH:
            break
    watch.look()
    found = watch.findings(lambda: progress(LAST, "which change makes it right"))
    names = tuple(dict.fromkeys(case.name for case in watch.cases))
    return WatchReport(found, tuple(watch.notes), launches, names, time.perf_counter() - started)


def one_per_cause(found: Sequence[Diagnostic]) -> list[Diagnostic]:
    """Findings of the simulator without those that follow from others: all but the first behind a barrier that is not
    reached by all, and but the first of races that one barrier may order.
    """
    for code in _BARRIER:
        first = next((d for d in found if d.code == code), None)
        if first is not None:
            return [first]
    kept: list[Diagnostic] = []
    seen: list[Diagnostic] = []
    for item in found:
        if item.code in _RACES:
            known = any(_one_barrier(item, other) for other in seen)
            seen.append(item)
            if known:
                continue
        kept.append(item)
    return kept


def _one_barrier(a: Diagnostic, b: Diagnostic) -> bool:
    """True for two races that one barrier may order: with a line in common, both from a line down to a later one with a
    place between, or both from a line up to an earlier one (through the end of a loop).
    """
    mine, other = _ends(a), _ends(b)
    if mine is None or other is None:
        return a.span == b.span
    if set(mine) & set(other):
        return True
    if (mine[0] < mine[1]) != (other[0] < other[1]):
        return False
    return mine[0] > mine[1] or max(mine[0], other[0]) < min(mine[1], other[1])


def _ends(race: Diagnostic) -> tuple[int, int] | None:
    """The lines of the first and of the second access."""
    first = next((r.span.line for r in race.related if r.message.startswith("the other access")), None)
    return None if first is None or race.span is None else (first, race.span.line)


def _dropped(unwritten: Diagnostic) -> Diagnostic:
    """A read of what nobody wrote that reaches no output: worth knowing, no fault."""
    text = f"{unwritten.message}; what is read there reaches no output: the numbers are right"
    return replace(unwritten, severity=Severity.NOTE, message=text)


@dataclass(slots=True)
class _Watch:
    """The launches of one kernel, and what they showed."""

    subject: Watchable
    expected: Attention | None
    launched: Launched = field(init=False)
    meanings: dict[int, Attention] = field(init=False)
    cases: tuple[WatchCase, ...] = field(init=False)
    notes: list[str] = field(default_factory=list[str])
    shown: int = 0
    _found: dict[tuple[object, ...], Diagnostic] = field(default_factory=dict[tuple[object, ...], Diagnostic])
    _possible: dict[tuple[str, int | None], Diagnostic] = field(default_factory=dict[Any, Diagnostic])
    _wrong: Wrong | None = None
    _failing: Failing | None = None
    _harmless: bool = True  # wherever something unwritten was read, the numbers were compared and are right

    def __post_init__(self) -> None:
        s = self.subject
        self.launched = Launched(s.path, s.data, s.contract, s.instance, s.ptx, s.entry)
        if self.expected is not None:
            self.meanings = {self._flag(self.expected): self.expected}
        else:
            self.meanings = dict(promised(s.contract, s.instance.head_dim, s.instance.value_dim))
        cases = watch_cases(s.contract, s.instance, tuple(self.meanings))
        self.cases = tuple(case for case in cases if meant(case, self.meanings[case.flag]))
        if len(self.cases) < len(cases):
            self.notes.append("groups of query heads that share a KV head were left out: the expectation has no gqa")

    def _flag(self, expected: Attention) -> int:
        """The value of a causal flag under which the kernel should be what is expected."""
        has_flag = any(p.role == "flag:causal" for p in self.subject.contract.leaves)
        return int(has_flag and expected.mask is not None)

    def schedules(self, wanted: Sequence[Schedule]) -> tuple[Schedule, ...]:
        """Without anything asynchronous, early and late are one and the same execution."""
        waits = self.launched.asynchronous
        return tuple(s for s in wanted if waits or s.async_ == "late")

    def go(self, case: WatchCase, schedule: Schedule, where: str, inside: Callable[[float], None]) -> int:
        """Launch a case; the number of launches that this was."""
        s = self.subject
        tensors = inputs_of(case, s.instance.dtype, self.launched.scale)
        call = self.launched.call(case, tensors)
        if call.diagnostics:
            self.notes += [d.message for d in call.diagnostics if d.message not in self.notes]
            return 0
        if 0 in call.grid:
            return 0
        run = self.launched.run(call, schedule, inside)
        errors = [f for f in run.findings if f.severity >= Severity.WARNING]
        for item in errors:
            self._add(item, f"{where} ({sizes_text(case.case)})")
        complete = "O" in run.outputs and not run.cancelled and all(f.code == _UNWRITTEN for f in errors)
        meaning = self.meanings.get(case.flag)
        wrong = None
        if complete and self._wrong is None and meaning is not None:
            lse = output(call, run, "lse") if "LSE" in run.outputs else None
            got = output(call, run, "o")
            wrong = wrong_numbers(s.contract, s.instance, meaning, case, tensors, got, lse, schedule)
        if errors:
            self._harmless &= complete and meaning is not None and wrong is None
        else:
            self._wrong = self._wrong or wrong
        if errors and self._failing is None and meaning is not None:
            self._failing = Failing(s.contract, s.instance, meaning, case, schedule)
        told = bool(errors) and not (self._harmless and all(f.code == _UNWRITTEN for f in errors))
        self.shown += told or self._wrong is not None
        return 1

    def look(self) -> None:
        """What no launch here can show: sizes at which an address wraps, alignment that nobody promised."""
        s = self.subject
        for item in static_checks_of(s.contract, s.instance, self.launched.module, s.entry, longest=LONGEST):
            if item.code in _POSSIBLE:
                said = replace(item, span=self.launched.own(item.span), severity=Severity.WARNING)
                self._possible.setdefault((item.code, said.span.line if said.span else None), said)

    def _add(self, item: Diagnostic, where: str) -> None:
        """Keep a finding, at the line of the kernel's own body; the lines inside the functions called there are
        related.
        """
        own = self.launched.own
        related = tuple(replace(r, span=own(r.span) or r.span) for r in item.related)
        others = tuple(r for r in related if r.message.startswith("the other access"))
        span, inner = self._body(item.data.get("ptx_line"))
        other, _ = self._body(item.data.get("other_ptx_line"))
        if other is not None:
            others = tuple(replace(r, span=other) for r in others)
        span = span or own(item.span)
        # A missing wait shows at every read of what one copy brings.
        ends = (other,) if item.code in _ONE_COPY and other is not None else (span, other)
        key = (item.code, frozenset((s.path, s.line) for s in ends if s is not None))
        said = replace(item, span=span, related=(*others, *inner), message=f"{item.message}; first in {where}")
        self._found.setdefault(key, said)

    def _body(self, ptx_line: object) -> tuple[Span | None, tuple[Related, ...]]:
        """The place of the instruction on a line of the PTX."""
        site = next((n for n, ins in enumerate(self.launched.code) if ins.line == ptx_line), -1)
        return self.launched.place(site)

    def _reason(self) -> Finding | None:
        """The step of the program that is wrong, where all that was seen is a consequence: something that is read or
        returned was not written.
        """
        for flag, meaning in self.meanings.items():
            found = wrong_program(self.launched, meaning, flag, self.subject.read)
            if found is not None:
                return found
        return None

    def right(self, data: bytes) -> bool:
        """Whether another text of the kernel is right: every problem, with the data of its copies late and early."""
        s = self.subject
        arch = archs_of((), s.contract, s.data)[0]
        made = compile_contract(s.contract, data, arch=arch, instances=(s.instance,), path=s.path, want=("ptx",))
        entry = made.lowered.get(s.instance.expression)
        if made.ptx is None or entry is None:
            return False
        other = _Watch(replace(s, data=data, ptx=made.ptx, entry=entry, read=None), self.expected)
        if other.launched.unreadable:
            return False
        ways = other.schedules((SCHEDULES[0], SCHEDULES[-1]))
        for case, schedule in ((c, w) for c in other.cases for w in ways):
            other.go(case, schedule, "", lambda share: None)
            if other.shown:
                return False
        return True

    def findings(self, check_in: Callable[[], None] = lambda: None) -> tuple[Finding, ...]:
        """Those of the simulator, each cause once; wrong numbers only where nothing else explains them."""
        mender = Mender(self.launched, self.subject.read, self.right, check_in)
        kept = one_per_cause(list(self._found.values()))
        causes = [d for d in kept if d.code not in _CONSEQUENCES and d.severity is Severity.ERROR]
        if self._harmless and self._wrong is None:
            # What nobody wrote is NaN in the simulator: where the numbers are right, it went nowhere.
            kept = [_dropped(d) if d.code == _UNWRITTEN else d for d in kept]
        elif kept and not causes:
            step = self._reason()
            if step is not None:
                return (step,)
        kept = [d for d in kept if d.code not in _CONSEQUENCES or not causes]
        found = [Finding(d, _KINDS.get(d.code, "memory"), method="watching") for d in kept]
        if len(found) == 1 and found[0].severity is Severity.ERROR:  # of several, none goes with one change
            found = [mender.access(found[0], self._failing)]
        if self._wrong is not None and not causes:
            w = self._wrong
            failing = Failing(w.contract, w.instance, w.meaning, w.case, w.schedule)
            found.append(mender.wrong_numbers(located(w, self.subject.read, self.launched), failing, len(self.cases)))
        found += [Finding(d, _KINDS.get(d.code, "memory"), "likely", "watching") for d in self._possible.values()]
        return tuple(found)
