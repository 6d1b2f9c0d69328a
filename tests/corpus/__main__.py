"""``python -m tests.corpus``: run forms and print what becomes of each; ``--record`` writes the golden table."""

from __future__ import annotations

import argparse
import sys

from .forms import all_forms
from .outcome import Outcome, run
from .table import read_table, write_table


def _line(outcome: Outcome) -> str:
    told = outcome.means if outcome.state == "read" else f"{outcome.code} {outcome.message}  <- {outcome.line}"
    level = f" [{outcome.level} {outcome.adapt_code} {outcome.adapt_message[:60]}]" if outcome.level else ""
    return f"{outcome.name:32} {outcome.state:8} {outcome.seconds:6.2f}{level} {told}"


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", help="parts of names, or packages")
    parser.add_argument("--level", default="ir", choices=["read", "ir", "simulated"], help="adapt up to this level")
    parser.add_argument("--record", action="store_true", help="write what came out into the table")
    parser.add_argument("--jobs", type=int, default=1, help="forms side by side")
    args = parser.parse_args()
    forms = [f for f in all_forms() if not args.only or any(o in f.name or o == f.package for o in args.only)]
    level = "" if args.level == "read" else args.level
    for outcome in run(forms, level, args.jobs):
        print(_line(outcome), flush=True)
        if args.record and outcome.state != "skipped":
            write_table({**read_table(), outcome.name: outcome})
    return 0


if __name__ == "__main__":
    sys.exit(main())
