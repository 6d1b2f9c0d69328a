"""Looking around in the kernel's syntax: the statements around a byte range."""

from __future__ import annotations

from ..source import SourceFile
from .syntax import Syn

_LOOPS = frozenset({"for_statement", "while_statement"})
Range = tuple[int, int]


def path_to(root: Syn, at: Range) -> list[Syn]:
    """The nodes from `root` down to the smallest that contains the range."""
    path = [root]
    while True:
        inside = next((k for k in path[-1].kids if k.start <= at[0] and at[1] <= k.end), None)
        if inside is None:
            return path
        path.append(inside)


def statement_in(block: Syn, at: Range) -> Syn | None:
    """The direct statement of `block` that contains the range."""
    return next((k for k in block.kids if k.start <= at[0] and at[1] <= k.end), None)


def after(block: Syn, statement: Syn) -> Syn | None:
    """The statement of `block` that follows."""
    later = [k for k in block.kids if k.start >= statement.end]
    return later[0] if later else None


def line_start(source: SourceFile, offset: int) -> int:
    """Start of the line of `offset`."""
    return source.data.rfind(b"\n", 0, offset) + 1


def line_end(source: SourceFile, offset: int) -> int:
    """Offset of the end of the line that contains `offset`."""
    end = source.data.find(b"\n", offset)
    end = len(source.data) if end < 0 else end
    return end - 1 if source.data[end - 1 : end] == b"\r" else end


def indent_at(source: SourceFile, offset: int) -> str:
    """The blanks at the start of the line of `offset`."""
    start = line_start(source, offset)
    end = start
    while end < len(source.data) and source.data[end : end + 1] in (b" ", b"\t"):
        end += 1
    return source.data[start:end].decode()


def leading_offset(source: SourceFile, previous_end: int, statement_start: int) -> int:
    """Start of the line where `statement` begins, its comment lines included."""
    between = source.data[previous_end:statement_start]
    at = previous_end
    for line in between.splitlines(keepends=True):
        if at > previous_end and line.strip():
            return at
        at += len(line)
    return line_start(source, statement_start)


def header_text(source: SourceFile, loop: Syn) -> str:
    """A loop's header as written, with a ``#pragma unroll`` line before it."""
    end = _closing(source.data, loop.start)
    header = source.data[loop.start : end].decode("utf-8", "replace")
    start = line_start(source, loop.start)
    above = source.data[line_start(source, max(0, start - 1)) : start].decode("utf-8", "replace").strip()
    return f"{above}\n{header}" if start and above.startswith("#pragma") else header


def _closing(data: bytes, start: int) -> int:
    """End of the first parenthesised group at or after `start`."""
    depth = 0
    for at in range(start, len(data)):
        if data[at : at + 1] == b"(":
            depth += 1
        elif data[at : at + 1] == b")":
            depth -= 1
            if depth == 0:
                return at + 1
    return len(data)


def loops_of(path: list[Syn]) -> list[Syn]:
    """The loops on a path, outermost first."""
    return [n for n in path if n.type in _LOOPS]


def find(root: Syn, kinds: frozenset[str], low: int, high: int) -> list[Syn]:
    """Nodes of these types inside a byte range, in order."""
    return [n for n in root.walk() if n.type in kinds and low <= n.start and n.end <= high]


def bare(syn: Syn) -> Syn:
    """A node without the parentheses around it."""
    while syn.type in ("parenthesized_expression", "condition_clause") and syn.kids:
        syn = syn.kids[-1]
    return syn
