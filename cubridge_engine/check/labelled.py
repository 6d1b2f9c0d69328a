"""How far a kernel that gives wrong numbers is right: which instructions hold values of the expected attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..diagnostics import Span
from ..simulate import Schedule
from ..verify.steps_tables import tables_of
from ..watch.labels import Code, sites_of, with_spans
from ..watch.model import Meaning
from ..watch.problem import problem_of
from ..watch.record import Recorder, finish
from ..watch.roles import read_roles
from .launched import Launched
from .numbers import Wrong
from .watch_cases import WatchCase, watch_cases

Array = NDArray[Any]
CHAIN = ("S", "m", "P", "l")  # in the order of the steps; what the output is made of
WORDS = {"S": "S", "m": "the running maximum", "P": "P", "l": "the row sum"}
TELLING = ("short-query", "rising-max", "square")


@dataclass(frozen=True, slots=True)
class RightSteps:
    """Steps whose values were found, with a line of each, in order; `last` is the line of the last of them."""

    words: str
    missing: str
    last: Span


def right_steps(wrong: Wrong, launched: Launched) -> RightSteps | None:
    """The steps of a run that hold what they should; None where not even S does, or all do."""
    case = _case(wrong)
    if case is None:
        return None
    problem = problem_of(case.sizes, wrong.instance.dtype, launched.scale, bool(case.flag))
    tensors = {"q": problem.q, "k": problem.k, "v": problem.v}
    call = launched.call(case, tensors)
    if call.diagnostics or 0 in call.grid:
        return None
    recorder = Recorder(call)
    launched.run(call, Schedule("late", "forward"), observer=recorder)
    tables = tables_of(wrong.meaning, tensors, case.sizes)
    meaning = Meaning(
        raw=tables.s, scores=tables.score, mask=tables.keep, v=tables.v[:, tables.heads], scale=launched.scale
    )
    kernel = launched.module.kernel(launched.entry)
    code = Code(kernel, launched.module.collector(kernel).sources)
    recorded = finish(recorder)
    with np.errstate(all="ignore"):
        roles = read_roles(recorded, code, problem, meaning, wrong.contract.bc)
    sites = with_spans(sites_of(roles.matches, recorded, code), code.home())
    spans = {s.role: s.span for s in sites if s.confidence == "certain" and s.span is not None}
    held = [role for role in CHAIN if role in spans]
    missing = [role for role in CHAIN if role not in spans]
    if "S" not in held or not missing:
        return None
    words = ", ".join(f"{WORDS[role]} (line {spans[role].line + 1})" for role in held)
    last = launched.own(spans[held[-1]])
    return None if last is None else RightSteps(words, WORDS[missing[0]], last)


def _case(wrong: Wrong) -> WatchCase | None:
    cases = watch_cases(wrong.contract, wrong.instance, (wrong.case.flag,))
    named = {c.case.name.removeprefix("like "): c for c in cases}
    return next((named[name] for name in TELLING if name in named), None)
