"""The report's row for one case that compiled code has run, in the simulator or on a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from ..results import CaseResult
from .ir_level import counterexample, number
from .measure import Measure
from .prepare import Prepared


def executed_case(
    prepared: Prepared,
    level: Literal["simulated", "gpu"],
    dtype: str,
    schedule: str,
    measures: Sequence[Measure],
    clean: bool,
    arch: str = "",
) -> CaseResult:
    """`measures` are those of O and, where there is one, of LSE; `clean`: nothing but numbers could be wrong. `arch`:
    whose PTX was executed, in the simulator.
    """
    case = prepared.case
    failed = next((m for m in measures if not m.passed), None)
    return CaseResult(
        name=case.name,
        why=case.why,
        level=level,
        sizes=case.sizes,
        dtype=dtype,
        layout=case.layout,
        schedule=schedule,
        arch=arch,
        seed=case.seed,
        worst_o=number(measures[0].worst),
        worst_lse=number(measures[1].worst) if len(measures) > 1 else None,
        tolerance=measures[0].tolerance,
        passed=failed is None and clean,
        kept_rows=measures[0].kept_rows,
        reference="formula" if prepared.by_formula else "spec",
        counterexample=counterexample(failed.counterexample) if failed and failed.counterexample else None,
    )
