"""What the engine makes of one foreign kernel, stage by stage, as a row of the table."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from cubridge_engine.bind import Binding, BindOptions, bind
from cubridge_engine.check import Finding, check
from cubridge_engine.check.watching import Watchable, watch_findings
from cubridge_engine.compile import Contract
from cubridge_engine.compile.alone import AloneOptions, compiled_alone
from cubridge_engine.diagnostics import Diagnostic, Severity
from cubridge_engine.lift import lift
from cubridge_engine.simulate import Schedule, load
from cubridge_engine.simulate.calling import prepare_call
from cubridge_engine.source import parse, with_includes
from cubridge_engine.watch import Watched, watch
from cubridge_engine.watch.problem import choose_instance, choose_problem
from tests.simulate.foreign.wheels import CUTLASS, unpacked

from .corpus import Foreign
from .key import Score, scored
from .packages import cache

T = TypeVar("T")
BIND_SECONDS = 40.0
SCHEDULES = (Schedule("late", "forward"), Schedule("early", "reverse"))


@dataclass
class Outcome:
    """`row` as the table has it; `found`, `watched` and `score` for a reader of the run."""

    row: dict[str, str] = field(default_factory=dict[str, str])
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    found: list[Finding] = field(default_factory=list[Finding])
    watched: Watched | None = None
    score: Score | None = None


@dataclass
class _Ready:
    """A kernel that can be launched."""

    contract: Contract
    ptx: str
    entry: str


def outcome_of(
    foreign: Foreign, *, binding: bool = True, checking: bool = True, tell: Callable[[Outcome], None] = lambda _: None
) -> Outcome:
    """All stages of one kernel, in order; a stage that cannot be reached says why. `tell` is called after each, so that
    what a run that is stopped has found is kept. Raises Missing.
    """
    path = foreign.path()
    _install_cutlass()
    found = Outcome({"family": foreign.family})
    bound = None
    if foreign.contract is None:
        found.row["compiled"] = _timed(found, "compile alone", lambda: _alone(foreign, path))
        found.row["reading"] = _timed(found, "read", lambda: _reading(foreign, path, None, found))
        tell(found)
    if binding or foreign.contract is None:
        bound = _timed(found, "bind", lambda: _bound(foreign, path))
        found.row["bound"] = _bound_text(bound)
        tell(found)
    ready = _timed(found, "compile", lambda: _ready(foreign, path, bound, found))
    if foreign.contract is not None or ready is not None:
        found.found.clear()
        found.row["reading"] = _timed(found, "read", lambda: _reading(foreign, path, ready, found))
    tell(found)
    if ready is None:
        return found
    found.watched = _timed(found, "watch", lambda: _watched(foreign, path, ready))
    _tell_watched(foreign, found)
    tell(found)
    if checking and found.watched.ran:
        found.row["watching"] = _timed(found, "check", lambda: _watching(foreign, path, ready, found))
        tell(found)
    return found


def _install_cutlass() -> None:
    """As if pip had installed nvidia-cutlass. Raises Missing."""
    os.environ.setdefault("CUTLASS_HOME", str(unpacked(CUTLASS, cache())))


def _alone(foreign: Foreign, path: Path) -> str:
    """Whether the file compiles at all; its templates may be left without an instance."""
    options = AloneOptions(
        arch=foreign.arch, include_dirs=foreign.include_dirs(), defines=tuple(foreign.table.get("define", ()))
    )
    alone = compiled_alone(path, None, options)
    return alone.compiler.split(" ")[0] if alone.ptx is not None else _why(alone.diagnostics)


def _cpu() -> float:
    """Seconds of this process and of the compilers that it started."""
    return sum(os.times()[:4])


def _timed(found: Outcome, stage: str, work: Callable[[], T]) -> T:
    started = _cpu()
    try:
        return work()
    finally:
        found.seconds[stage] = round(_cpu() - started, 1)


def _bound(foreign: Foreign, path: Path) -> Binding:
    options = BindOptions(
        kernel=foreign.kernel, record=True, ignore_contract=True, arch=foreign.arch, seconds=BIND_SECONDS,
        include_dirs=foreign.include_dirs(), defines=tuple(foreign.table.get("define", ())),
    )  # fmt: skip
    return bind(path, None, options)


def _bound_text(bound: Binding) -> str:
    if bound.contract is None:
        reasons = [d.message for d in bound.diagnostics if d.severity >= Severity.WARNING]
        open_ = [q.key for q in bound.questions]
        return f"no: {'asks for ' + ', '.join(open_) if open_ else (reasons or ['nothing was found'])[0]}"[:160]
    doubts = [d.code for d in bound.diagnostics if d.code in ("CB626", "CB632")]
    return f"{bound.way}{', not confirmed ' + doubts[0] if doubts else ''}"


def _ready(foreign: Foreign, path: Path, bound: Binding | None, found: Outcome) -> _Ready | None:
    contract = foreign.contract_at(path) if foreign.contract is not None else bound.contract if bound else None
    instances = contract.instances if contract is not None else ()
    expression = choose_instance(contract).expression if contract is not None and instances else ""
    options = AloneOptions(
        arch=foreign.arch, expressions=(expression,) if "<" in expression else (),
        include_dirs=foreign.include_dirs(), defines=tuple(foreign.table.get("define", ())),
    )  # fmt: skip
    alone = compiled_alone(path, None, options)
    if alone.ptx is None and bound is not None and bound.compiled is not None:
        alone = bound.compiled
    if foreign.contract is not None or alone.ptx is not None:
        found.row["compiled"] = alone.compiler.split(" ")[0] if alone.ptx is not None else _why(alone.diagnostics)
    if contract is None or alone.ptx is None:
        return None
    plain = expression.partition("<")[0].split("::")[-1] or contract.name.split("::")[-1]
    entry = alone.lowered.get(expression) or next((n for n in alone.kernels if plain in n), "")
    if not entry:
        found.row["compiled"] += ", the kernel is not in it"
        return None
    return _Ready(contract, alone.ptx, entry)


def _why(diagnostics: Sequence[Diagnostic]) -> str:
    errors = [d for d in diagnostics if d.severity >= Severity.ERROR]
    return f"no: {errors[0].code} {errors[0].message}"[:160] if errors else "no"


def _reading(foreign: Foreign, path: Path, ready: _Ready | None, found: Outcome) -> str:
    source = with_includes(parse(str(path), path.read_bytes()), search=[str(d) for d in foreign.include_dirs()])
    names = [k.name for k in source.kernels()]
    chosen = foreign.kernel.split("::")[-1] or (ready.contract.name.split("::")[-1] if ready is not None else "")
    lifted = lift(source, kernel=chosen if chosen in names else None, budget_s=20.0)
    report = check(source, lifted, ready.contract if ready is not None else None)
    return _codes(foreign, found, report.findings)


def _codes(foreign: Foreign, found: Outcome, findings: Sequence[Finding]) -> str:
    found.found += findings
    errors = [f.code for f in findings if f.severity is Severity.ERROR]
    # A finding that was looked into by hand and is true counts, and is told apart.
    told = [f"{code} (true)" if code in foreign.table.get("true_findings", {}) else code for code in errors]
    return ", ".join(told) or "-"


def _watched(foreign: Foreign, path: Path, ready: _Ready) -> Watched:
    contract = ready.contract
    instance = choose_instance(contract)
    problem = choose_problem(contract, instance)
    if problem is None:
        return Watched(foreign.name, str(path), foreign.arch, None, False, None)
    module = load(ready.ptx, {str(path): path.read_text("utf-8", "replace")})
    tensors = {"q": problem.q, "k": problem.k, "v": problem.v}
    values = {"scale": problem.scale, "causal": int(problem.causal)}
    call = prepare_call(contract, instance, problem.sizes, tensors, values)
    return watch(module, ready.entry, call, problem, path=str(path), arch=foreign.arch, bc=contract.bc)


def _tell_watched(foreign: Foreign, found: Outcome) -> None:
    watched = found.watched
    assert watched is not None
    if not watched.ran:
        why = [d.message for d in (*watched.diagnostics, *watched.findings)]
        found.row["simulated"] = f"no: {(why or ['no small problem is what the contract requires'])[0]}"[:160]
        return
    found.row["simulated"] = "yes"
    found.row["function"] = watched.function.name if watched.function is not None else "-"
    found.row["labels"] = " ".join(dict.fromkeys(site.role.replace(" ", "_") for site in watched.sites)) or "-"
    if foreign.key:
        found.score = scored(watched, foreign.key, foreign.table.get("home", ()))
        found.row["key"] = found.score.text


def _watching(foreign: Foreign, path: Path, ready: _Ready, found: Outcome) -> str:
    instance = choose_instance(ready.contract)
    subject = Watchable(str(path), path.read_bytes(), ready.contract, instance, ready.ptx, ready.entry)
    return _codes(foreign, found, watch_findings(subject, schedules=SCHEDULES).findings)
