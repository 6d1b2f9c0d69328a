"""The table of rules. A row says what a finding is about; `READING` are the functions that look for them, each once."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..model import Finding, Rule
from ..subject import Subject
from . import races, rows_numbers, rows_orchestration, rows_watching

RULES: tuple[Rule, ...] = (*rows_orchestration.ROWS, *rows_numbers.ROWS, *rows_watching.ROWS)
BY_CODE: dict[str, Rule] = {rule.code: rule for rule in RULES}
# Those of tiles come first: where two see the same fault, they know the tile's name. Races come last.
_RUNS = dict.fromkeys(rule.run for rule in RULES if rule.run is not None)
_RUNS[races.races] = _RUNS.pop(races.races)
READING: tuple[Callable[[Subject], Iterable[Finding]], ...] = tuple(_RUNS)
