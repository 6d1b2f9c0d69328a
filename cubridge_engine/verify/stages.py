"""The stages of a job: what runs now (progress) and what became of each (the record in the result)."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from ..results import Stage, State

# progress(stage, fraction of the whole job, message)
Progress = Callable[[str, float, str], None]

# Share of a warm `adapt` that each stage takes, measured on the bundled kernel: what the fraction is made from.
WEIGHTS: dict[str, float] = {
    "parse": 0.01,
    "lift": 0.06,
    "spec": 0.2,
    "transfer": 0.03,
    "lower": 0.02,
    "read back": 0.06,
    "ir": 0.4,
    "compile": 0.2,
    "simulate": 0.8,
    "gpu": 0.02,
}


class Outcome:
    """Set by the body of a stage when it does not simply pass."""

    def __init__(self) -> None:
        self.state: State = "passed"
        self.why = ""

    def fail(self, why: str) -> None:
        """The stage found something that must not be."""
        self.state, self.why = "failed", why

    def skip(self, why: str) -> None:
        """The stage could not run."""
        self.state, self.why = "skipped", why


class Stages:
    """Runs stages in order and keeps their record. `names` are those of this job, for the progress fraction."""

    def __init__(self, names: tuple[str, ...], progress: Progress) -> None:
        self.names = names
        self.progress = progress
        self.done: list[Stage] = []
        self._total = sum(WEIGHTS.get(name, 0.01) for name in names) or 1.0

    def _before(self, name: str) -> float:
        known = self.names[: self.names.index(name)] if name in self.names else self.names
        return sum(WEIGHTS.get(n, 0.01) for n in known) / self._total

    def tick(self, name: str, done: float, total: int, message: str) -> None:
        """Progress inside a stage: `done` of `total` parts."""
        share = WEIGHTS.get(name, 0.01) / self._total
        self.progress(name, min(self._before(name) + share * done / max(total, 1), 1.0), message)

    @contextmanager
    def run(self, name: str) -> Generator[Outcome]:
        """One stage: times it and records what the body says of it."""
        outcome = Outcome()
        self.tick(name, 0, 1, "")
        start = time.perf_counter()
        yield outcome
        seconds = time.perf_counter() - start
        self.done.append(Stage(name=name, state=outcome.state, seconds=round(seconds, 4), why=outcome.why))

    def note(self, name: str, state: State, why: str) -> None:
        """Record a stage that did not run."""
        self.done.append(Stage(name=name, state=state, seconds=0.0, why=why))

    def state(self, name: str) -> bool | None:
        """True passed, False failed, None did not run."""
        found = next((s.state for s in self.done if s.name == name), None)
        return {"passed": True, "failed": False}.get(found or "")
