"""The golden table: one line per form, readable as text and in a diff."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, fields
from pathlib import Path

from .forms import all_forms
from .outcome import Outcome

PATH = Path(os.environ.get("CUBRIDGE_CORPUS_TABLE", Path(__file__).parent / "table.json"))
# What a run must reproduce. Times, texts and distances are for people.
COMPARED = ("state", "code", "line")
_KEPT = ("state", "code", "line", "message", "means", "level", "adapt_code", "adapt_message", "seconds")


def read_table() -> dict[str, Outcome]:
    """The recorded outcomes by name; empty when there is no table."""
    if not PATH.is_file():
        return {}
    rows = json.loads(PATH.read_text())
    known = {f.name for f in fields(Outcome)}
    return {row["name"]: Outcome(**{k: v for k, v in row.items() if k in known}) for row in rows}


def write_table(outcomes: dict[str, Outcome]) -> None:
    """Write the outcomes of forms that exist, in their order."""
    lines: list[str] = []
    for form in all_forms():
        outcome = outcomes.get(form.name)
        if outcome is None:
            continue
        row = {
            "name": form.name,
            "family": form.family,
            "package": form.package,
            "verdict": verdict(outcome, form.fused),
        }
        row |= {name: value for name in _KEPT if (value := asdict(outcome)[name])}
        lines.append(json.dumps(row, ensure_ascii=False))
    PATH.write_text("[\n" + ",\n".join(lines) + "\n]\n")


def verdict(outcome: Outcome, fused: bool) -> str:
    """The place of an outcome in the funnel."""
    if outcome.state != "refused":
        return {"read": "read", "wrong": "WRONG"}.get(outcome.state, outcome.state)
    return "refused wrongly" if fused else "refused rightly"
