"""What `check` makes of each planted fault: found or not, on its line or not, with a sentence that names the cause.

Two columns: by reading alone, and by watching, where the numbers are compared with what the contract promises.
tests/faults/table.json holds the recorded answers; ``python -m tests.faults`` prints new ones, ``--record`` keeps them.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from cubridge_engine.check import Finding, check
from cubridge_engine.check.on_request import Request, answer
from cubridge_engine.diagnostics import Severity
from cubridge_engine.lift import Lifted, lift
from cubridge_engine.source import SourceFile, parse

from .bases import HERE, Base
from .corpus import Fault

TABLE = HERE / "table.json"
# From worst to best: nothing said; said on a line that has nothing to do with it; on the right one; and why.
RANKS = ("-", "elsewhere", "line", "explained")
NOT_RUN = "not run"
ALARMS = (Severity.ERROR, Severity.WARNING, Severity.NOTE)


@dataclass(frozen=True)
class Answer:
    """The best that was said of a fault, and the code that said it."""

    rank: str
    code: str = ""

    @property
    def text(self) -> str:
        """As the table holds it."""
        return f"{self.rank} {self.code}".strip()

    def worse_than(self, recorded: str) -> bool:
        """Whether the table says that more was found once."""
        return RANKS.index(self.rank) < RANKS.index(rank_of(recorded))


def rank_of(recorded: str) -> str:
    """The rank of an answer as the table holds it; what was not run counts as nothing found."""
    return "-" if recorded == NOT_RUN else recorded.split(" ")[0]


def lifted_text(base: Base, text: str) -> tuple[SourceFile, Lifted]:
    """The text parsed and lifted in the place of the base's."""
    source = parse(str(base.path), text.encode())
    return source, lift(source)


def by_reading(base: Base, text: str) -> tuple[Finding, ...]:
    """All findings of reading."""
    source, lifted = lifted_text(base, text)
    return tuple(check(source, lifted, base.contract).findings)


def by_watching(base: Base, text: str) -> tuple[Finding, ...]:
    """All findings of watching, compared with what the contract promises."""
    _, lifted = lifted_text(base, text)
    return answer(str(base.path), text.encode(), lifted, base.contract, Request(watch=True)).findings


@lru_cache(maxsize=32)
def _on_the_twin(base: Base) -> frozenset[tuple[str, str]]:
    return frozenset(_place(f, base.text) for f in by_reading(base, base.text))


def _place(found: Finding, text: str) -> tuple[str, str]:
    """Code and text of the line: what stays equal between the clean twin and the faulty kernel."""
    return found.code, text.split("\n")[found.span.line].strip() if found.span else ""


def false_alarms(found: Iterable[Finding]) -> list[str]:
    """Findings of a clean kernel that would mislead: errors."""
    return [f"{f.code}: {f.diagnostic.message}" for f in found if f.severity is Severity.ERROR]


def judged(fault: Fault, found: Iterable[Finding]) -> Answer:
    """The best of what was said of the faulty kernel and not of its twin."""
    twin = _on_the_twin(fault.base)
    best = Answer("-")
    for one in found:
        if one.severity not in ALARMS or _place(one, fault.text) in twin:
            continue
        related = one.diagnostic.related
        places = {r.span.line for r in related} | ({one.span.line} if one.span else set())
        said = " ".join([one.diagnostic.message, *(r.message for r in related)]).lower()
        rank = "elsewhere"
        if places & fault.lines:
            rank = "explained" if any(word.lower() in said for word in fault.cause) else "line"
        if RANKS.index(rank) > RANKS.index(best.rank):
            best = Answer(rank, one.code)
    return best


def recorded() -> dict[str, dict[str, str]]:
    """The table: fault -> kind, reading, watching."""
    return json.loads(TABLE.read_text()) if TABLE.exists() else {}


def record(rows: dict[str, dict[str, str]]) -> None:
    """Write the table, a fault per line."""
    lines = [f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items()]
    TABLE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def summary(rows: dict[str, dict[str, str]]) -> str:
    """Per kind of fault: how many there are, found and explained, by reading and by watching, and by either."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0] * 7)
    for row in rows.values():
        answers = [rank_of(row["reading"]), rank_of(row["watching"])]
        best = max(answers, key=RANKS.index)
        for name in (row["kind"], "all"):
            count = counts[name]
            count[0] += 1
            for column, rank in enumerate((*answers, best)):
                count[1 + 2 * column] += rank in RANKS[2:]
                count[2 + 2 * column] += rank == "explained"
    head = f"{'kind':34}{'faults':>8}{'reading':>16}{'watching':>16}{'either':>16}   (line right, cause named)"
    rest = sorted((kind, count) for kind, count in counts.items() if kind != "all")
    lines = [head]
    for kind, count in [*rest, ("all", counts["all"])]:
        pairs = "".join(f"{f'{count[c]}, {count[c + 1]}':>16}" for c in (1, 3, 5))
        lines.append(f"{kind:34}{count[0]:>8}{pairs}")
    return "\n".join(lines)
