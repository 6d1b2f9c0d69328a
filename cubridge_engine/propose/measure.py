"""How good a model is at what the rules cannot do: every task of a suite several times, pass@k at each stage."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from .client import Source
from .config import Limits
from .loop import Progress, Run, Session, needs_model
from .replies import STAGES
from .suite_tasks import Task


@dataclass(frozen=True, slots=True)
class Sample:
    """One independent try at a task: the furthest stage of any attempt; `level` of the result, '' without one."""

    stage: str
    level: str
    rounds: int
    attempts: int
    tokens: int
    seconds: float
    why: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """One task. `rules`: the level that rules alone reach, `code` what stopped them; `samples` are empty where they
    were enough, or no model was named.
    """

    task: str
    rules: str
    code: str
    rules_seconds: float
    samples: tuple[Sample, ...] = ()

    def reached(self, stage: str) -> int:
        """How many samples came as far as `stage`."""
        return sum(STAGES.index(s.stage) >= STAGES.index(stage) for s in self.samples)

    def solved(self) -> int:
        """How many samples gave a result that may be applied."""
        return sum(bool(s.level) for s in self.samples)


@dataclass(frozen=True, slots=True)
class Table:
    """What a suite gave. `k` is that of pass@k."""

    suite: str
    model: str
    host: str
    k: int
    rows: tuple[Row, ...] = field(default_factory=tuple)

    def json(self) -> dict[str, Any]:
        """Rows with their samples, and the shares of the whole."""
        rows: list[dict[str, Any]] = []
        for row in self.rows:
            passed = {stage: pass_at(len(row.samples), row.reached(stage), self.k) for stage in STAGES}
            solved = pass_at(len(row.samples), row.solved(), self.k)
            rows.append({**asdict(row), "pass_at_k": {**passed, "applicable": solved}})
        return {
            "suite": self.suite,
            "model": self.model,
            "host": self.host,
            "k": self.k,
            "tasks": rows,
            "rules_alone": sum(not row.code for row in self.rows),
            "with_model": sum(not row.code or row.solved() > 0 for row in self.rows),
        }


def pass_at(n: int, c: int, k: int) -> float | None:
    """The chance that one of `k` tries passes, from `c` of `n` that did (unbiased); None for fewer than `k` tries."""
    if n < k or n == 0:
        return None
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def measure(
    tasks: Sequence[Task],
    run: Run,
    source: Callable[[], Source] | None,
    limits: Limits,
    samples: int,
    options: Mapping[str, Any],
    progress: Progress = lambda *_: None,
) -> list[Row]:
    """Every task by rules, then `samples` times with a model where the rules end. Raises loop.Cancelled."""
    rows: list[Row] = []
    for number, task in enumerate(tasks):
        progress("task", number / max(len(tasks), 1), task.name)
        params = {**options, "kernel": task.kernel, "spec": task.spec, "entry": task.entry}
        start = time.monotonic()
        outcome = run("adapt", params, limits.seconds)
        seconds = round(time.monotonic() - start, 2)
        if outcome.value is None:
            code = outcome.diagnostics[0].code if outcome.diagnostics else "CB805"
            rows.append(Row(task.name, "none", code, seconds))
            continue
        result = outcome.value
        code = next((d["code"] for d in result["diagnostics"] if d["severity"] == "error"), "")
        wanted = needs_model(result) and source is not None
        tries = (
            tuple(_sample(params, result, run, source(), limits, progress) for _ in range(samples))
            if wanted and source is not None
            else ()
        )
        rows.append(Row(task.name, result["level"], code if needs_model(result) else "", seconds, tries))
    return rows


def _sample(
    params: Mapping[str, Any], refused: Mapping[str, Any], run: Run, source: Source, limits: Limits, progress: Progress
) -> Sample:
    session = Session(run, source, limits, progress=progress)
    start = time.monotonic()
    result = session.adapt(params, refused)
    accepted = result.get("proposed") is not None
    far = max((STAGES.index(one.stage) for one in session.tried), default=0)
    return Sample(
        stage=STAGES[far],
        level=result["level"] if accepted else "",
        rounds=session.spent.rounds,
        attempts=session.spent.attempts,
        tokens=session.spent.tokens,
        seconds=round(time.monotonic() - start, 2),
        why="" if accepted else next(f"{d['code']}: {d['message']}" for d in result["diagnostics"])[:300],
    )
