"""An explanation and a comparison as pages: plain text for a terminal, Markdown for everything else."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from ..results_understood import (
    ChangeResult,
    Diffed,
    DifferenceResult,
    EquationResult,
    Explained,
    Lines,
    SentenceResult,
)
from .evidence import EVIDENCE

WIDTH = 100
SAME: dict[bool | None, str] = {
    True: "Both compute the same function",
    False: "They compute different functions",
    None: "Whether they compute the same function is not decided",
}


def text_page(e: Explained, width: int = WIDTH) -> str:
    """A paragraph, the mathematics, a table, what it needs, how it is known, and what is not known."""
    parts = [[e.title], _wrapped(e.paragraph, width)]
    if e.equations:
        parts.append(["For batch b, head h, query i and key j:", *_equation_lines(e.equations)])
    if e.facts:
        rows = [(f.name, f.value, _where(f.lines)) for f in e.facts]
        parts.append(_table(rows))
    needs = [s for s in e.sentences if not s.lead]
    if needs:
        parts.append(["Also:", *(f"  - {s.text}" for s in needs)])
    if e.sentences:
        parts.append(["How this is known:", *_table(_sources(e.sentences))])
    if e.unknown:
        parts.append(["Not known, or assumed:", *(f"  - {s.text}{_after(s.lines)}" for s in e.unknown)])
    return "\n\n".join("\n".join(part) for part in parts if any(part)) + "\n"


def markdown_page(e: Explained) -> str:
    """The same as Markdown, every sentence with its evidence."""
    parts = [f"## {e.title}", e.paragraph]
    if e.equations:
        parts.append("```text\n" + "\n".join(line.strip("\n") for line in _equation_lines(e.equations)) + "\n```")
    if e.facts:
        rows = ["| what | how | lines |", "| --- | --- | --- |"]
        rows += [f"| {_cell(f.name)} | {_cell(f.value)} | {_where(f.lines)} |" for f in e.facts]
        parts.append("\n".join(rows))
    if e.sentences:
        parts.append("\n".join(f"- {s.text} *({s.evidence}{_comma(s.lines)})*" for s in e.sentences))
    if e.unknown:
        parts.append("\n".join(["Not known, or assumed:", "", *(f"- {s.text}{_after(s.lines)}" for s in e.unknown)]))
    return "\n\n".join(part for part in parts if part) + "\n"


def diff_page(d: Diffed) -> str:
    """What two kernels compute, then how."""
    names = (f"first:  {d.a.path}{_named(d.a_name)}", f"second: {d.b.path}{_named(d.b_name)}")
    verdict = SAME[d.same] + (f": {d.why}." if d.why else ".")
    parts = [list(names), [verdict]]
    if d.setting:
        parts[-1].append(f"{d.setting[0].upper()}{d.setting[1:]}.")
    if d.semantic:
        parts.append(["What they compute:", *(line for x in d.semantic for line in _difference(x))])
    if d.orchestration:
        parts.append(["How they compute it:", *(line for x in d.orchestration for line in _change(x))])
    elif d.same is not None:
        parts.append(["How they compute it: no difference was found."])
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def _named(name: str | None) -> str:
    return f" ({name})" if name else ""


def _difference(d: DifferenceResult) -> list[str]:
    lines = [f"  {d.sentence}"]
    if d.a_lines or d.b_lines:
        lines.append(f"    first line {_where(d.a_lines) or '-'}, second line {_where(d.b_lines) or '-'}")
    return lines


def _change(c: ChangeResult) -> list[str]:
    sides = [f"{value or '(none)'}{_after(lines)}" for value, lines in ((c.a, c.a_lines), (c.b, c.b_lines))]
    return [f"  {c.name}", f"    first:  {sides[0]}", f"    second: {sides[1]}"]


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)


def _equation_lines(equations: Sequence[EquationResult]) -> list[str]:
    left = max(len(q.left) for q in equations)
    body = [f"  {q.left.rjust(left)} {'=' if q.left else ' '} {q.text}".rstrip() for q in equations]
    width = max(map(len, body))
    return [
        line if q.line is None else f"{line.ljust(width)}   line {q.line + 1}"
        for line, q in zip(body, equations, strict=True)
    ]


def _sources(sentences: Iterable[SentenceResult]) -> list[tuple[str, str, str]]:
    """One row for each topic and evidence, in order, with what the word means where it is first used."""
    rows: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for s in sentences:
        rows.setdefault((s.topic, s.evidence), []).extend(s.lines)
    seen: set[str] = set()
    found: list[tuple[str, str, str]] = []
    for (topic, evidence), lines in rows.items():
        words = evidence if evidence in seen else f"{evidence} ({EVIDENCE[evidence]})"
        seen.add(evidence)
        found.append((topic.replace("_", " "), words, _where(tuple(dict.fromkeys(lines)))))
    return found


def _table(rows: Sequence[tuple[str, str, str]]) -> list[str]:
    first = max(len(row[0]) for row in rows)
    second = min(max(len(row[1]) for row in rows), 72)
    return [
        f"  {a.ljust(first)}  {b.ljust(second) if where else b}{'  line ' + where if where else ''}".rstrip()
        for a, b, where in rows
    ]


def _where(lines: Lines) -> str:
    return ", ".join(str(a + 1) if a == b else f"{a + 1}-{b + 1}" for a, b in lines)


def _after(lines: Lines) -> str:
    return f" (line {_where(lines)})" if lines else ""


def _comma(lines: Lines) -> str:
    return f", line {_where(lines)}" if lines else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
