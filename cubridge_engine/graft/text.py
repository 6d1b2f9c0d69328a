"""C++ text around a line, by brackets alone: statements, blocks, what is declared. Templates that no parser here reads
do not matter to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from ..source.lexical import bracket_pairs, mask

_CONTROL = re.compile(r"\b(if|for|while|switch|do|else|try|catch)\b")
_OUTER = re.compile(r"\b(namespace|struct|class|union|enum|extern)\b[^()]*$")
_INTEGER = (
    r"(?:unsigned\s+(?:int|short|char|long\s+long|long)|unsigned|int|uint|short"
    r"|long\s+long|long|size_t|u?int(?:8|16|32|64)_t)"
)
_DECLARED = re.compile(
    rf"(?<![\w:<,(])((?:(?:const|constexpr|static|volatile|register)\s+)*){_INTEGER}\s+(?=[A-Za-z_])"
)
_PARAMETER = re.compile(rf"^\s*((?:(?:const|constexpr)\s+)*){_INTEGER}(?:\s+const)?\s+([A-Za-z_]\w*)\s*(?:=.*)?$", re.S)
_TYPES = frozenset({"char", "int", "long", "short"})  # behind `unsigned`, where what is declared is a pointer
_NAME = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class Block:
    """A pair of braces (offsets of the first and behind the last) and the text before it: its header."""

    start: int
    end: int
    header: str
    header_start: int

    @property
    def is_function(self) -> bool:
        """True for the body of a function: parentheses before it, and no word of control flow."""
        return "(" in self.header and not _CONTROL.match(self.header.lstrip()) and not _OUTER.search(self.header)

    @property
    def is_control(self) -> bool:
        """True for the body of a loop or a branch, and for a block without a header."""
        head = self.header.strip()
        return not head or (_CONTROL.match(head) is not None and not head.endswith(("struct", "class")))


class Text:
    """One file. Offsets are bytes of `data`; the code is looked at with comments and literals blanked."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        code = re.sub(
            rb"(?m)^[ \t]*#(?:[^\\\n]|\\\r?\n|\\.)*", lambda m: re.sub(rb"[^\n]", b" ", m[0]), mask(data).code
        )
        self.code = code.decode("latin-1")  # one character per byte
        self.pairs = bracket_pairs(code)
        self._opens = {end - 1: start for start, end in self.pairs.items()}

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *(m.end() for m in re.finditer("\n", self.code))]

    def line_start(self, line: int) -> int:
        """Offset of a 0-based line."""
        return self._starts[min(max(line, 0), len(self._starts) - 1)]

    def line_of(self, at: int) -> int:
        """The 0-based line of an offset."""
        return self.code.count("\n", 0, at)

    def indent(self, at: int) -> str:
        """White space at the start of the line of an offset."""
        start = self.code.rfind("\n", 0, at) + 1
        match = re.match(r"[ \t]*", self.data[start:].decode("latin-1"))
        return match[0] if match else ""

    def statement(self, line: int) -> tuple[int, int]:
        """Start and end of the statement that a line belongs to; its first, where several begin there."""
        at = self.line_start(line)
        first = re.compile(r"\S").search(self.code, at)
        at = first.start() if first else at
        start = self.statement_start(at)
        return start, self.statement_end(max(start, 0))

    def statement_start(self, at: int) -> int:
        """Behind the last ``;``, ``{`` or ``}`` before `at`, whole pairs of brackets left out."""
        here = at - 1
        while here >= 0:
            c = self.code[here]
            if c in ")]" and here in self._opens:
                here = self._opens[here] - 1
                continue
            if c == "(":  # inside an argument list: the statement is around it
                here -= 1
                continue
            if c in ";{}":
                break
            here -= 1
        found = re.compile(r"\S").search(self.code, here + 1)
        return found.start() if found else here + 1

    def statement_end(self, start: int) -> int:
        """Behind the ``;`` or the closing brace that ends what begins at `start`, branches of an ``else`` with it."""
        here = start
        while here < len(self.code):
            c = self.code[here]
            if c in "([" and here in self.pairs:
                here = self.pairs[here]
                continue
            if c == "{" and here in self.pairs:
                here = self.pairs[here]
                rest = re.compile(r"\s*(else\b|[;,)=.]|while\b)").match(self.code, here)
                if rest is None:
                    return here
                continue
            here += 1
            if c == ";":
                rest = re.compile(r"\s*else\b").match(self.code, here)
                if rest is None or not self.code[start:].startswith("if"):
                    return here
        return here

    def blocks_around(self, at: int) -> list[Block]:
        """The braces around an offset, the innermost first."""
        found = [
            Block(start, end, self.code[h:start], h)
            for start, end in self.pairs.items()
            if self.code[start] == "{" and start < at < end
            for h in [self.statement_start(start)]
        ]
        return sorted(found, key=lambda b: -b.start)

    def function_around(self, at: int) -> Block | None:
        """The innermost function whose body holds an offset."""
        return next((b for b in self.blocks_around(at) if b.is_function), None)

    def own_text(self, block: Block, until: int) -> str:
        """The text of a block before `until` at its own depth: what is in brackets inside of it is left out."""
        out: list[str] = []
        here = block.start + 1
        while here < until:
            if self.code[here] in "({[" and here in self.pairs and self.pairs[here] <= until:
                piece = self.code[here : self.pairs[here]]
                out.append(f"{piece[0]}{piece[-1]}")
                here = self.pairs[here]
                continue
            out.append(self.code[here])
            here += 1
        return "".join(out)


def declared_integers(text: str) -> Iterator[tuple[str, bool]]:
    """(name, whether it is constexpr) of the integers that a text at one depth declares."""
    for match in _DECLARED.finditer(text):
        rest = text[match.end() :]
        for piece in rest[: rest.find(";")].split(",") if ";" in rest else [rest]:
            name = _NAME.match(piece.strip())
            if name is None or name[0] in _TYPES or re.match(r"\s*\(", piece.strip()[name.end() :]):
                break
            if not re.match(r"\s*\[", piece.strip()[name.end() :]):  # an array of integers is no number
                yield name[0], "constexpr" in match[1]


def header_integers(header: str) -> Iterator[tuple[str, bool]]:
    """(name, whether it is a constant) of the integers among parameters, template parameters and loop variables."""
    opened = header.find("(")
    for group, constant in (
        (_angle(header), True),
        (header[opened + 1 : header.rfind(")")] if opened >= 0 else "", False),
    ):
        for piece in _split(group, ";" if _CONTROL.match(header.strip()) else ","):
            match = _PARAMETER.match(piece)
            if match is not None:
                yield match[2], constant


def _angle(header: str) -> str:
    match = re.match(r"\s*template\s*<", header)
    if match is None:
        return ""
    depth, at = 1, match.end()
    while at < len(header) and depth:
        depth += (header[at] == "<") - (header[at] == ">")
        at += 1
    return header[match.end() : at - 1]


def _split(text: str, separator: str) -> list[str]:
    """Pieces at separators outside all brackets."""
    out, depth = [""], 0
    for c in text:
        depth += (c in "([{<") - (c in ")]}>")
        if c == separator and depth <= 0:
            out.append("")
        else:
            out[-1] += c
    return out
