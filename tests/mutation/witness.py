"""Does a mutant comparison ever differ from the original? The kernel is run with both, and stops itself where they do.

A survivor whose comparison never differed is the same program in these launches. Where its operands come from the
thread's number and constants alone, it is the same program in every launch: all threads of a block have run.
"""

from __future__ import annotations

import re

from cubridge_engine.simulate import SCHEDULES

from .mutants import WEAKEN, Mutant
from .subject import Foreign, Subject

TRAP = "CB528"
_COMPARISON = re.compile(r"^\s*(setp)\.(\w+)(\S*)\s+(%p\d+),\s*(.*);\s*$")
_REGISTER = re.compile(r"%[a-z]+\d+\b")
_RESULT = re.compile(r"^\s*(?:@!?%p\d+\s+)?[a-z][\w.:]*\s+(%[a-z]+\d+),\s*(.*);\s*$")


def with_witness(ptx: str, line: int) -> str | None:
    """The kernel with a trap where the comparison at `line` (1-based) and its mutant differ; None for another form."""
    lines = ptx.split("\n")
    found = _COMPARISON.match(lines[line - 1])
    if found is None or found[2] not in WEAKEN:
        return None
    _, operator, types, result, operands = found.groups()
    both = f"setp.{WEAKEN[operator]}{types} %differs, {operands};\nxor.pred %differs, %differs, {result};"
    lines[line - 1] += f"\n{both}\n@%differs trap;"
    start = next(i for i, text in enumerate(lines) if ".entry" in text)
    body = next(i for i in range(start, len(lines)) if lines[i].strip() == "{")
    lines[body] += "\n.reg .pred %differs;"
    return "\n".join(lines)


def from_threads_alone(ptx: str, line: int) -> bool:
    """True when every value that can reach the operands is made of %tid and constants."""
    made: dict[str, list[str]] = {}
    for text in ptx.split("\n"):
        found = _RESULT.match(text)
        if found is not None and not text.strip().startswith(("st.", "bar.", "red.")):
            made.setdefault(found[1], []).append(found[2] if "ld." not in text else "[memory]")
    compared = _COMPARISON.match(ptx.split("\n")[line - 1])
    todo = _REGISTER.findall(compared[5]) if compared else ["%unknown0"]
    seen: set[str] = set()
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            for source in made.get(name, ["[memory]"]):
                if "[" in source or re.search(r"%(?!tid\.)[a-z_]+\.?[xyz]?\b(?<!\d)", _REGISTER.sub("", source)):
                    return False
                todo += _REGISTER.findall(source)
    return True


def evidence(subject: Subject | Foreign, ptx: str, mutant: Mutant) -> str:
    """What running the original and a surviving comparison side by side shows; '' for other rules."""
    text = with_witness(ptx, mutant.line) if mutant.rule == "comparison" else None
    if text is None:
        return ""
    launches = 0
    for verdict in subject.verdicts(text, SCHEDULES):
        launches += 1
        if TRAP in verdict.codes:
            return "differs from the original, to no effect"
    if from_threads_alone(ptx, mutant.line):
        return "the same in every thread, and made of %tid and constants alone: equivalent in every launch"
    return f"never differs from the original in {launches} launches"
