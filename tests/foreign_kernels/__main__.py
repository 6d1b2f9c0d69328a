"""``python -m tests.foreign_kernels [name ...] [--record] [--no-bind] [--no-check] [--sites] [--held-out]``.

What the engine makes of attention kernels that nobody here wrote. ``--record`` writes the rows of those that ran into
table.json; without it nothing is kept. ``--sites`` prints every label with its line. ``--held-out`` runs those too.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from tests.simulate.foreign.wheels import Missing

from .corpus import kernels
from .key import _lines
from .outcome import Outcome, outcome_of
from .table import false_alarms, record, recorded, summary


def _show(name: str, found: Outcome, sites: bool) -> None:
    print(f"== {name}: {found.row}; seconds {found.seconds}", flush=True)
    for one in found.found:
        if one.severity.name in ("ERROR", "WARNING"):
            where = f"{Path(one.span.path).name}:{one.span.line + 1}" if one.span else "-"
            print(f"   {one.severity.name} {one.code} at {where}: {one.diagnostic.message[:300]}")
    if found.score is not None:
        for text in (*(f"wrong {w}" for w in found.score.wrong), *(f"missed {m}" for m in found.score.missed)):
            print(f"   {text}")
    if found.watched is not None:
        for d in found.watched.diagnostics:
            print(f"   {d.code} {d.message[:200]}")
    if sites and found.watched is not None:
        for site in found.watched.sites:
            if site.span is not None:
                text = (_lines(site.span.path) or [""] * (site.span.line + 1))[site.span.line]
                print(f"   {site.role:14} {Path(site.span.path).name}:{site.span.line + 1}: {text[:100]}")


def _keep(name: str, found: Outcome, bound: bool) -> None:
    """Record a row; without binding, what an earlier run said of that stands."""
    old = recorded().get(name, {})
    kept = {"bound": old["bound"]} if not bound and "bound" in old else {}
    seconds = " ".join(f"{stage} {spent}" for stage, spent in found.seconds.items())
    record({**recorded(), name: {**found.row, **kept, "seconds": seconds}})


def main() -> int:
    """Returns 1 when a kernel has a finding of level error that is not known to be true."""
    parser = argparse.ArgumentParser(prog="python -m tests.foreign_kernels", description=__doc__)
    parser.add_argument("name", nargs="*", choices=[[], *kernels()])
    for flag in ("record", "no-bind", "no-check", "sites", "held-out"):
        parser.add_argument(f"--{flag}", action="store_true")
    arguments = parser.parse_args()
    wanted = arguments.name or [n for n, one in kernels().items() if arguments.held_out or not one.held_out]
    rows: dict[str, dict[str, str]] = {}
    alarms = 0
    started = time.process_time()
    for name in wanted:
        try:
            found = outcome_of(
                kernels()[name], binding=not arguments.no_bind, checking=not arguments.no_check,
                tell=lambda found, name=name: _keep(name, found, not arguments.no_bind) if arguments.record else None,
            )  # fmt: skip
        except Missing as reason:
            print(f"== {name}: {reason}")
            continue
        alarms += bool(false_alarms(found.row))
        rows[name] = found.row
        _show(name, found, arguments.sites)
    print(summary(rows))
    print(f"{len(rows)} kernels, {alarms} with a false alarm; {time.process_time() - started:.0f} s of CPU")
    return int(alarms > 0)


if __name__ == "__main__":
    raise SystemExit(main())
