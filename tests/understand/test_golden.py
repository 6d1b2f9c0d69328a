"""What is said of whole kernels, word for word. CUBRIDGE_UPDATE_GOLDEN=1 writes the files instead."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cubridge_engine.understand.model import Explanation
from tests.understand.kernels import ADAPTED, BUNDLED, STYLES, adapted, explained

GOLDEN = Path(__file__).parent / "golden"
TEXTS = {**BUNDLED, **STYLES}


def page(e: Explanation) -> str:
    """Every sentence with its evidence and lines, the equations, the rows."""
    lines = [e.title, ""]
    for group in (e.sentences, e.unknown):
        for s in group:
            where = ", ".join(str(span.line + 1) for span in s.spans)
            lines.append(f"[{s.topic}, {s.evidence}{', line ' + where if where else ''}] {s.text}")
        lines.append("")
    lines += [f"{q.left:>4} = {q.text}" if q.left else f"       {q.text}" for q in e.equations]
    lines += ["", *(f"{f.key}: {f.value}" for f in e.facts)]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", [*TEXTS, *ADAPTED])
def test_golden(name: str) -> None:
    found = page(explained(adapted(name) if name in ADAPTED else TEXTS[name]))
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("CUBRIDGE_UPDATE_GOLDEN"):
        path.write_text(found)
    assert found == path.read_text()
