"""What becomes of specs that nobody here wrote: the funnel over the corpus of tests/corpus.

``python -m bench.corpus`` runs every form and writes bench/results/corpus.json; ``--recorded`` only sums up the golden
table. Seconds are processor time of reading one spec, package import left out where it came with an earlier form.
"""

from __future__ import annotations

import argparse
import statistics
from collections import Counter, defaultdict
from typing import Any

from tests.corpus.forms import all_forms
from tests.corpus.outcome import Outcome, run
from tests.corpus.table import read_table, verdict

from .recording import record

ADAPTED = ("ir", "compiled", "simulated")


def funnel(outcomes: dict[str, Outcome]) -> dict[str, Any]:
    """Counts from all forms down to those that were adapted."""
    forms = {form.name: form for form in all_forms()}
    verdicts = Counter(verdict(o, forms[name].fused) for name, o in outcomes.items() if name in forms)
    read = [o for o in outcomes.values() if o.state == "read"]
    return {
        "forms": len(outcomes),
        "exported": sum(o.exported for o in outcomes.values()),
        "read": len(read),
        "rechecked": sum(not o.message.startswith("not rechecked") for o in read),
        "adapted at level ir": sum(o.level in ADAPTED for o in read),
        "adapted at level simulated": sum(o.level == "simulated" for o in read),
        "refused rightly": verdicts["refused rightly"],
        "refused wrongly": verdicts["refused wrongly"],
        "wrong": verdicts["WRONG"],
    }


def reasons(outcomes: dict[str, Outcome]) -> dict[str, dict[str, Any]]:
    """Refusals by verdict and code, most frequent first: how many, one message, which forms."""
    forms = {form.name: form for form in all_forms()}
    groups: dict[str, dict[str, list[Outcome]]] = defaultdict(lambda: defaultdict(list))
    for name, outcome in outcomes.items():
        if outcome.state == "refused":
            groups[verdict(outcome, forms[name].fused)][outcome.code].append(outcome)
        elif outcome.adapt_code:
            groups["read, not adapted"][outcome.adapt_code].append(outcome)
    return {
        kind: {
            code: {
                "forms": len(same),
                "for example": same[0].adapt_message or same[0].message,
                "names": [o.name for o in same],
            }
            for code, same in sorted(codes.items(), key=lambda item: -len(item[1]))
        }
        for kind, codes in groups.items()
    }


def families(outcomes: dict[str, Outcome]) -> dict[str, str]:
    """Read of all forms that one kernel could compute, by family."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for form in all_forms():
        outcome = outcomes.get(form.name)
        if outcome is not None and form.fused:
            counts[form.family][0] += outcome.state == "read"
            counts[form.family][1] += 1
    return {family: f"{done} of {total}" for family, (done, total) in sorted(counts.items())}


def report(outcomes: dict[str, Outcome]) -> dict[str, Any]:
    """The whole record."""
    seconds = [o.seconds for o in outcomes.values() if o.seconds]
    slowest = max(outcomes.values(), key=lambda o: o.seconds)
    return {
        "what": "specs of real packages (pinned in tests/corpus/packages.py) and of ours, read and adapted",
        "funnel": funnel(outcomes),
        "read of those that one kernel can compute": families(outcomes),
        "processor seconds per spec": {
            "median": round(statistics.median(seconds), 2),
            "worst": slowest.seconds,
            "worst form": slowest.name,
        },
        "reasons": reasons(outcomes),
    }


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recorded", action="store_true", help="sum up the golden table, run nothing")
    parser.add_argument("--level", default="ir", choices=["ir", "simulated"], help="adapt up to this level")
    args = parser.parse_args()
    outcomes = read_table() if args.recorded else {o.name: o for o in run(all_forms(), args.level)}
    outcomes = {name: o for name, o in outcomes.items() if o.state != "skipped"}
    made = report(outcomes)
    for name, count in made["funnel"].items():
        print(f"{count:5} {name}")
    print(record("corpus", made))
    return 1 if made["funnel"]["wrong"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
