"""What each line of a kernel costs, from the counts of one simulated launch: the report's rows."""

from __future__ import annotations

from collections.abc import Sequence

from ..results import CostResult, LineCost
from ..simulate import LineCost as Counted
from ..simulate import Module, Run
from .grid import Case

MAX_TEXT = 100


def largest(cases: Sequence[Case]) -> str:
    """The name of the case with the most scores among those that run under every schedule ('' where there is none)."""
    usual = [c for c in cases if not c.long and c.B * c.Sq * c.Sk]
    return max(usual, key=lambda c: c.B * c.H * c.Sq * c.Sk).name if usual else ""


def cost_of(module: Module, kernel: str, run: Run, case: Case, schedule: str, text: bytes) -> CostResult:
    """Counts of `run`, a launch of `kernel` on `case`; `text` is the file that its line information speaks of."""
    costs = module.line_costs(kernel, run)
    total = sum(cost.slots for cost in costs.values())
    source = text.split(b"\n")
    rows = {n: _line(n - 1, cost, total, source) for n, cost in sorted(costs.items()) if 0 < n <= len(source)}
    deep = module.line_costs(kernel, run, calls=True)
    calling = [n for n in sorted(deep) if 0 < n <= len(source) and (n not in costs or deep[n].slots > costs[n].slots)]
    classes: dict[str, int] = {}
    for cost in costs.values():
        for name, count in cost.classes.items():
            classes[name] = classes.get(name, 0) + count
    return CostResult(
        case=case.name,
        sizes=case.sizes,
        schedule=schedule,
        ctas=run.ctas,
        warps=run.warps,
        instructions=total,
        active=round(1 - run.counts.idle_share, 4),
        classes=dict(sorted(classes.items())),
        bytes=dict(sorted(run.counts.bytes.items())),
        lines=tuple(rows.values()),
        calls=tuple(_line(n - 1, deep[n], total, source) for n in calling),
    )


def _line(number: int, cost: Counted, total: int, source: Sequence[bytes]) -> LineCost:
    text = " ".join(source[number].decode("utf-8", "replace").split())
    return LineCost(
        line=number,
        text=text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…",
        instructions=cost.slots,
        share=round(cost.slots / max(total, 1), 4),
        passes=round(cost.passes, 2),
        active=round(cost.active, 4),
        classes=dict(sorted(cost.classes.items())),
        global_read=cost.moves["global read"],
        global_write=cost.moves["global write"],
        shared_read=cost.moves["shared read"],
        shared_write=cost.moves["shared write"],
        wavefronts=cost.bank.actual,
        ideal_wavefronts=cost.bank.ideal,
        bank_ways=round(cost.worst_ways, 2) if cost.bank.ideal else None,
    )
