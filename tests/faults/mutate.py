"""Faults made by rule: one thing on one line of a CUDA text removed or weakened, as tests/mutation does with PTX."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

Change = Callable[[re.Match[str]], str]
WEAKEN = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}


def _more(match: re.Match[str]) -> str:
    return f"{match[1]}{int(match[2]) + 1}"


# Rule -> pattern and what stands in the place of one match.
RULES: dict[str, tuple[str, Change]] = {
    "remove barrier": (r"__syncthreads\(\);", lambda _: ";"),
    "remove warp barrier": (r"__syncwarp\(\);", lambda _: ";"),
    "weaker wait": (r"(wait_group(?:\.sync\.aligned)? |wait<|_wait<)(\d+)", _more),
    "weaken comparison": (r"(?<=\w) (<=?|>=?) (?=[\w(])", lambda m: f" {WEAKEN[m[1]]} "),
    "drop condition": (r"\bif \((?=.*[<>=].*\))(?!causal)", lambda _: "if (true || "),
    "shuffle distance": (r"(__shfl_xor_sync\([^;]*?, )([12])(?=\))", lambda m: f"{m[1]}{4 * int(m[2])}"),
    "start from 0": (r"(=\s*|\{|, )-(?:INFINITY|FLT_MAX|1e30f)\b", lambda m: f"{m[1]}0.f"),
    "no factor": (r"(\w[\w\[\]./ ]*?) \*= [a-z]\w*(?:\[[^;]*\])?;", lambda m: f"{m[1]} *= 1.f;"),
    "other stage": (r"= (?=\(?(?:tile|t)\b[^;]*(?:% STAGES|& 1);)", lambda _: "= 1 ^ "),
    "no transposition": (r"\.trans\b", lambda _: ""),
    "natural exponent": (r"\bexp2f\(", lambda _: "__expf("),
    "exponent of 2": (r"\b(?:__)?expf\(", lambda _: "exp2f("),
    "natural logarithm": (r"\blog2f\(", lambda _: "logf("),
    "logarithm of 2": (r"\blogf\(", lambda _: "log2f("),
}


@dataclass(frozen=True)
class Mutant:
    """One change: its rule, 0-based line, the line as it was, and the whole text."""

    rule: str
    line: int
    before: str
    text: str


def mutants(text: str) -> Iterator[Mutant]:
    """Every change that a rule makes, in the order of the lines."""
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if line.lstrip().startswith(("//", "#", "*")):
            continue
        for rule, (pattern, change) in RULES.items():
            for match in re.finditer(pattern, line):
                new = line[: match.start()] + change(match) + line[match.end() :]
                yield Mutant(rule, number, line, "\n".join([*lines[:number], new, *lines[number + 1 :]]))


def mutated(text: str, rule: str, at: str, nth: int = 0) -> str:
    """The text with the `nth` change that the rule makes on lines that contain `at`."""
    found = [m for m in mutants(text) if m.rule == rule and at in m.before]
    assert len(found) > nth, f"rule {rule!r} changes no line with {at!r}"
    return found[nth].text
