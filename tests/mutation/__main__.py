"""``python -m tests.mutation [kernel ...] [--rule TEXT] [--record]``: score per rule, the survivors with their lines.

``--record`` keeps the scores of the kernels that ran in bench/results/mutation.json.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

from cubridge_engine import simulate

from .explained import EXPLAINED
from .mutants import Mutant, mutants
from .subject import SUBJECTS, Foreign, Subject, try_mutant
from .witness import evidence


def source_line(module: simulate.Module, line: int) -> tuple[int, str]:
    """The line of the source behind a PTX line: number and text of the outermost call."""
    for function in module.program.functions.values():
        for ins in function.code:
            if ins.line == line and ins.loc is not None:
                place = ins.loc.chain()[-1]
                text = Path(place.path).read_text().split("\n")[place.line - 1].strip()
                return place.line, text
    return 0, ""


def explanation(name: str, mutant: Mutant, text: str) -> str:
    """Why a survivor is no gap, or ''."""
    for rule, part, why in EXPLAINED.get(name, ()):
        if rule == mutant.rule and (part in text or part in mutant.before):
            return why
    return ""


def run(subject: Subject | Foreign, rule: str) -> dict[str, Any]:
    """Print the score of one kernel; the score as data, with its survivors, and `unexplained`, how many are a gap."""
    ptx = subject.ptx()
    base = simulate.load(ptx)
    clean = try_mutant(subject, ptx)
    if clean.found:
        print(f"{subject.name}: the unchanged kernel is not clean: {clean}")
        return {"unexplained": 1, "baseline": str(clean)}
    started = time.perf_counter()
    total: Counter[str] = Counter()
    by_checker: Counter[str] = Counter()
    found: Counter[str] = Counter()
    survivors: list[tuple[Mutant, int, str, str, str]] = []
    for mutant in mutants(ptx):
        if rule not in mutant.rule or mutant.rule in subject.left_out:
            continue
        verdict = try_mutant(subject, mutant.text)
        total[mutant.rule] += 1
        found[mutant.rule] += verdict.found
        by_checker[mutant.rule] += bool(verdict.codes)
        if not verdict.found:
            number, text = source_line(base, mutant.line)
            why = explanation(subject.name, mutant, text)
            survivors.append((mutant, number, text, evidence(subject, ptx, mutant), why))
    print(
        f"{subject.name}: {sum(found.values())} of {sum(total.values())} found, {time.perf_counter() - started:.0f} s"
    )
    for name, count in total.items():
        print(f"  {name:26} {found[name]:4} of {count:4}   by a checker {by_checker[name]}")
    for mutant, number, text, shown, why in survivors:
        print(f"  survived: {mutant.rule}, PTX line {mutant.line}: {mutant.before}")
        print(f"            line {number}: {text}\n            {shown}\n            {why or 'NOT EXPLAINED'}")
    return {
        "found": sum(found.values()),
        "mutants": sum(total.values()),
        "seconds": round(time.perf_counter() - started),
        "rules": {r: {"mutants": n, "found": found[r], "by_checker": by_checker[r]} for r, n in total.items()},
        "survivors": [
            {
                "rule": m.rule,
                "ptx": m.before.strip(),
                "line": number,
                "source": text,
                "shown": shown,
                "why": why or "NOT EXPLAINED",
            }
            for m, number, text, shown, why in survivors
        ],
        "unexplained": sum(not why for *_, why in survivors),
    }


def main() -> int:
    """Returns 1 when a survivor is not explained."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("kernel", nargs="*", choices=[[], *SUBJECTS], help="default: all")
    parser.add_argument("--rule", default="", help="only rules that contain this text")
    parser.add_argument("--record", action="store_true", help="keep the scores in bench/results/mutation.json")
    arguments = parser.parse_args()
    scores = {name: run(SUBJECTS[name], arguments.rule) for name in arguments.kernel or list(SUBJECTS)}
    if arguments.record:
        from bench.recording import ROOT, record, surroundings

        kept = ROOT / "bench/results/mutation.json"
        last = json.loads(kept.read_text()) if kept.exists() else {"kernels": {}}
        # Scores that are kept say which commit they are of.
        before = {name: {"commit": last["measured_on"]["commit"], **score} for name, score in last["kernels"].items()}
        commit = surroundings()["commit"]
        scores = {name: {"commit": commit, **score} for name, score in scores.items()}
        record("mutation", {"only_rules_with": arguments.rule, "kernels": {**before, **scores}})
    return int(any(score["unexplained"] for score in scores.values()))


if __name__ == "__main__":
    raise SystemExit(main())
