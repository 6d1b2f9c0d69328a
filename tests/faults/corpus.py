"""The planted faults as data: tests/faults/faults/<base>.toml, one small edit of a clean base each.

A row has a ``name``, a ``kind``, the edit (``old`` and ``new``, or ``edits``: several pairs), ``lines`` (texts of the
faulty kernel on any of which the fault may be shown: where it was planted, or where it does harm), ``seen`` (the
weakest way in which it can be seen: reading, watching, expect), ``cause`` (words, one of which the sentence has to
have) and sometimes ``witness``: what shows that it is a fault where no launch of the base's small problems can (sizes).
Mutants (mutate.py) have ``rule`` and ``at`` in the place of the edit.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from .bases import BASES, HERE, Base
from .mutate import mutated

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SEEN = ("reading", "watching", "expect")


@dataclass(frozen=True)
class Fault:
    """One planted fault. `lines` are 0-based."""

    base: Base
    name: str
    kind: str
    text: str
    lines: frozenset[int]
    seen: str
    cause: tuple[str, ...]
    witness: str
    made: str

    @property
    def id(self) -> str:
        """Base and name."""
        return f"{self.base.name}: {self.name}"


def _lines_with(text: str, marks: list[str]) -> frozenset[int]:
    found: set[int] = set()
    for mark in marks:
        at = [n for n, line in enumerate(text.split("\n")) if mark.split("\n")[0].strip() in line]
        assert at, f"no line has {mark!r}"
        found.update(at)
    return frozenset(found)


def _edited(text: str, row: dict[str, Any]) -> str:
    edits = row.get("edits") or [[row["old"], row["new"]]]
    for old, new in edits:
        assert text.count(old) == 1, f"{text.count(old)} places have {old!r}"
        text = text.replace(old, new)
    return text


def _fault(base: Base, row: dict[str, Any]) -> Fault:
    text = mutated(base.text, row["rule"], row["at"], row.get("nth", 0)) if "rule" in row else _edited(base.text, row)
    assert row["seen"] in SEEN
    lines = _lines_with(text, row["lines"])
    made = "tool" if "rule" in row else "hand"
    witness = row.get("witness", "launch")
    return Fault(base, row["name"], row["kind"], text, lines, row["seen"], tuple(row["cause"]), witness, made)


def faults() -> tuple[Fault, ...]:
    """All planted faults, in the order of the bases and files."""
    found: list[Fault] = []
    for base in BASES.values():
        for folder in ("faults", "mutants"):
            path = HERE / folder / f"{base.name}.toml"
            if path.exists():
                found += [_fault(base, row) for row in tomllib.loads(path.read_text())["fault"]]
    return tuple(found)
