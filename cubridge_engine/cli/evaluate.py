"""`cubridge eval [SUITE] [--model NAME]`: what rules do alone, and what a model adds, as a table."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..diagnostics import make
from ..jobs import Worker
from ..propose import codes as codes
from ..propose.client import Client
from ..propose.loop import Cancelled
from ..propose.measure import Row, Table, measure, pass_at
from ..propose.suite_tasks import BadSuite, tasks_of
from .arguments import BadArgument
from .job import display
from .model import NO_KEYS, endpoint, limits, work
from .output import print_diagnostics
from .render import columns, console

SHOWN = ("parsed", "allowed", "read", "ir", "compiled", "simulated")


def run(args: argparse.Namespace) -> int:
    """0 when it ran, whatever it found; 2 usage."""
    try:
        if args.k < 1 or args.samples < args.k:
            what = f"pass@{args.k} needs {args.k} samples or more"
            raise BadArgument(make("CB042", what=what, way_out="Raise --samples, or lower --k."))
        allowed, asked = limits(args), endpoint(args) if args.model else None
        with tempfile.TemporaryDirectory(prefix="cubridge-eval-") as folder:
            tasks = tasks_of(args.suite, Path(folder))
            with Worker(env=NO_KEYS) as worker, display() as show:
                rows = measure(
                    tasks,
                    lambda task, params, seconds: work(worker, args, show, task, params, min(seconds, args.time_limit)),
                    (lambda: Client(asked, request_s=allowed.seconds)) if asked is not None else None,
                    allowed,
                    args.samples,
                    {"use_gpu": not args.no_gpu, "use_simulator": not args.no_simulator},
                    show,
                )
    except BadArgument as bad:
        print_diagnostics([bad.diagnostic])
        return 2
    except BadSuite as bad:
        way_out = "Write [[task]] with name, kernel and spec, or take the suite 'default'."
        print_diagnostics([make("CB042", what=str(bad), way_out=way_out)])
        return 2
    except Cancelled:
        raise KeyboardInterrupt from None
    table = Table(args.suite, args.model or "", asked.host if asked is not None else "", args.k, tuple(rows))
    if args.format == "json":
        print(json.dumps(table.json(), indent=2))
    else:
        show_table(table)
    return 0


def show_table(table: Table) -> None:
    """One line a task: rules, then shares of samples by stage, tokens and seconds of a sample."""
    out = console()
    named = f"{table.model} at {table.host}" if table.model else "no model"
    out.print(f"{table.suite}: {len(table.rows)} tasks, {named}", markup=False)
    head = ["task", "rules", "stopped by"]
    if table.model:
        head += [*(f"{stage}@{table.k}" for stage in SHOWN), f"pass@{table.k}", "rounds", "tokens", "seconds"]
    lines = [head, *([*_by_rules(row), *(_by_model(row, table.k) if table.model else [])] for row in table.rows)]
    for line in columns(lines, right=tuple(range(3, len(head)))):
        out.print(line, markup=False)
    facts = table.json()
    out.print(f"\nrules alone: {facts['rules_alone']} of {len(table.rows)} tasks", markup=False)
    if table.model:
        out.print(f"with the model: {facts['with_model']} of {len(table.rows)} tasks", markup=False)


def _by_rules(row: Row) -> list[str]:
    return [row.task, row.rules, row.code or "-"]


def _by_model(row: Row, k: int) -> list[str]:
    if not row.samples:
        return ["-"] * (len(SHOWN) + 4)
    n = len(row.samples)
    shares = [pass_at(n, row.reached(stage), k) for stage in SHOWN] + [pass_at(n, row.solved(), k)]
    return [
        *("-" if share is None else f"{share:.2f}" for share in shares),
        _mean([s.rounds for s in row.samples]),
        _mean([s.tokens for s in row.samples]),
        _mean([s.seconds for s in row.samples]),
    ]


def _mean(values: Sequence[Any]) -> str:
    return f"{sum(values) / len(values):.1f}" if values else "-"
