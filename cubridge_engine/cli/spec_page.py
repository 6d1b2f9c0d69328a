"""The page of `cubridge spec`: the mathematics beside the user's line numbers, tensors, sizes, what stays outside."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from ..results import SpecReading
from .render import columns

_NARROW = 46  # of a source line in the table of --explain, where the output is no terminal
_LINE = "line"


def show_page(out: Console, result: SpecReading, *, explain: bool, picture: str | None) -> None:
    """Print the page. Colour only says again what the words say."""
    attention = result.attention
    assert attention is not None
    out.print(Text(f"{result.spec.name}: {attention['name']}", style="bold"))
    out.print(Text(f"means: {attention['summary']}"))
    _section(out, "for each batch b, head h, query i and key j")
    _equations(out, attention["equations"])
    _section(out, "returns")
    _print(out, [f"  {o['role']}[{', '.join(o['axes'])}] {o['dtype']}" for o in attention["outputs"]])
    _print(out, [f"  {attention['empty_rows_text']}"])
    _section(out, "tensors, at the example's sizes")
    _print(out, columns([_tensor(t) for t in attention["tensors"]], right=(3,)))
    if attention["holds_for"]:
        _section(out, "holds for")
        _print(out, [f"  {words}" for words in attention["holds_for"]])
    _outside(out, attention.get("cut"))
    if explain:
        _section(out, "line by line, with the numbers of the example")
        _explain(out, attention["explain"])
    if result.tiles is not None:
        _tiles(out, result.tiles, picture)
    out.file.flush()


def _section(out: Console, title: str) -> None:
    out.print()
    out.print(Text(title, style="bold cyan"))


def _print(out: Console, lines: Iterable[str]) -> None:
    for line in lines:
        out.print(line, markup=False)


def _equations(out: Console, equations: Sequence[Mapping[str, Any]]) -> None:
    left = max(len(e["left"]) for e in equations)
    texts = [f"  {e['left']:<{left}} {'=' if e['left'] else ' '} {e['text']}" for e in equations]
    width = min(max(len(t) for t in texts), 88)
    for equation, text in zip(equations, texts, strict=True):
        row = Text(text)
        if equation["line"] is not None:
            row.append(f"{' ' * max(width - len(text), 0)}   {_LINE} {equation['line'] + 1}", style="dim")
        out.print(row)


def _tensor(tensor: Mapping[str, Any]) -> tuple[str, ...]:
    where = f"{_LINE} {tensor['line'] + 1}" if tensor["line"] is not None else ""
    size = "" if tensor["bytes"] is None else f"{tensor['bytes']:,} bytes"
    how = tensor["from"] if tensor["from"] != "argument" else where
    shape = f"{tensor['name']}[{', '.join(tensor['axes'])}]"
    return tensor["role"], shape, tensor["dtype"], size, f"{how}, {where}" if how == "captured" and where else how


def _outside(out: Console, cut: Mapping[str, Any] | None) -> None:
    """What of the function is not the kernel's."""
    if cut is None or (cut["calls"] < 2 and not cut["before"] and not cut["after"]):
        return
    _section(out, "stays in PyTorch")
    for name, words in (("before", "before the attention"), ("after", "after it")):
        if cut[name]:
            _print(out, [f"  {words:<20} {_LINE}s {_ranges(cut[name])}"])
    if cut["calls"] > 1:
        _print(out, [f"  the attention is called {cut['calls']} times"])


def _ranges(lines: Sequence[int]) -> str:
    """``3-5, 9`` for lines that count from 0."""
    runs: list[list[int]] = []
    for line in lines:
        if runs and line == runs[-1][-1] + 1:
            runs[-1].append(line)
        else:
            runs.append([line])
    return ", ".join(f"{r[0] + 1}" if len(r) == 1 else f"{r[0] + 1}-{r[-1] + 1}" for r in runs)


def _explain(out: Console, rows: Sequence[Mapping[str, Any]]) -> None:
    source = max((min(len(r["text"]), _NARROW) for r in rows), default=0)
    for row in rows:
        text = row["text"] if len(row["text"]) <= source else f"{row['text'][: source - 4]} ..."
        line = Text(f"  {row['line'] + 1:>4}  ", style="dim")
        line.append(f"{text:<{source}}", style="not dim")
        line.append(f"   {row['what']}", style="not dim cyan" if row["kinds"] != ["unused"] else "dim")
        out.print(line)


def _tiles(out: Console, tiles: Mapping[str, Any], picture: str | None) -> None:
    sizes, counts = tiles["sizes"], tiles["counts"]
    _section(out, f"tiles of {sizes['Br']} x {sizes['Bc']}, {sizes['Sq']} queries, {sizes['Sk']} keys")
    said = ", ".join(f"{counts[name]} {name}" for name in ("full", "partial", "empty"))
    _print(out, [f"  {said}; {tiles['density']:.1%} of all pairs are attended", *(f"  {n}" for n in tiles["notes"])])
    if picture is not None:
        _print(out, [f"  drawn in {picture}"])
