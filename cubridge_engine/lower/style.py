"""The surrounding code's habits: newlines, indentation, braces, literals, names in use. Read from the text, never
imposed.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_CONSTANT = re.compile(r"\b(?:constexpr|const)\s+(?:unsigned\s+)?(?:int|unsigned|size_t|auto)\s+(\w+)\s*=\s*(\d+)\s*;")
_DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+(\d+)[ \t]*(?://.*)?\r?$", re.MULTILINE)
# Only at file scope and constexpr (or a macro): visible in device code wherever the kernel is.
_FLOAT = re.compile(
    r"^(?:static[ \t]+)?(?:inline[ \t]+)?constexpr[ \t]+float[ \t]+(\w+)[ \t]*=[ \t]*([\d.]+(?:e[+-]?\d+)?)f?[ \t]*;"
    r"|^#[ \t]*define[ \t]+(\w+)[ \t]+([\d.]+(?:e[+-]?\d+)?)f?[ \t]*\r?$",
    re.MULTILINE,
)
_WIDTH = 118


@dataclass(frozen=True)
class Style:
    """Habits of one file. `text` is the file decoded; offsets are bytes elsewhere, so only patterns are looked for
    here.
    """

    text: str

    @cached_property
    def newline(self) -> str:
        """The line ending most lines have."""
        return "\r\n" if self.text.count("\r\n") * 2 > self.text.count("\n") else "\n"

    @cached_property
    def unit(self) -> str:
        """One level of indentation: a tab, or the commonest positive step between neighbouring lines."""
        if self.text.count("\n\t") > self.text.count("\n  "):
            return "\t"
        indents = [len(line) - len(line.lstrip(" ")) for line in self.text.splitlines() if line.strip()]
        steps = Counter(b - a for a, b in pairwise(indents) if b - a in (2, 3, 4, 8))
        return " " * (steps.most_common(1)[0][0] if steps else 2)

    @cached_property
    def allman(self) -> bool:
        """True when opening braces stand on lines of their own after ``)``."""
        return len(re.findall(r"\)\s*\r?\n\s*\{", self.text)) > len(re.findall(r"\)[ \t]*\{", self.text))

    @cached_property
    def float_suffix(self) -> str:
        """How a whole float is written: ``50.f`` or ``50.0f``."""
        return ".0f" if len(re.findall(r"\d\.0f\b", self.text)) > len(re.findall(r"\d\.f\b", self.text)) else ".f"

    @cached_property
    def flat_pragmas(self) -> bool:
        """True when ``#pragma`` lines start in the first column."""
        flush = len(re.findall(r"^#[ \t]*pragma", self.text, re.MULTILINE))
        return flush * 2 >= len(re.findall(r"^[ \t]*#[ \t]*pragma", self.text, re.MULTILINE)) and flush > 0

    @cached_property
    def identifiers(self) -> frozenset[str]:
        """Every word of the file, comments included: a new name must be none of them."""
        return frozenset(_IDENTIFIER.findall(self.text))

    @cached_property
    def constants(self) -> dict[str, int]:
        """Integer constants of the file by name."""
        found = {m[1]: int(m[2]) for m in _CONSTANT.finditer(self.text)}
        return {**found, **{m[1]: int(m[2]) for m in _DEFINE.finditer(self.text)}}

    @cached_property
    def float_constants(self) -> dict[str, float]:
        """Float constants at file scope that are no round numbers (ln 2, log2 e), to use instead of a literal."""
        found: dict[str, float] = {}
        for m in _FLOAT.finditer(self.text):
            name, digits = (m[1], m[2]) if m[1] else (m[3], m[4])
            if len(digits) > 6 and "." in digits:
                found[name] = float(digits)
        return found

    def constant_named(self, value: int, liked: tuple[str, ...]) -> str | None:
        """A constant of the file with this value, if its name (case and prefix aside) is one of `liked`."""
        for name, number in self.constants.items():
            plain = re.sub(r"^k(?=[A-Z])", "", name).lower().replace("_", "")
            if number == value and plain in liked:
                return name
        return None

    def fits(self, line: str) -> bool:
        """True when a line is not too long for this file."""
        return len(line.expandtabs(4)) <= _WIDTH


def leading_space(text: str) -> str:
    """The white space a line starts with."""
    return text[: len(text) - len(text.lstrip(" \t"))]


class NameMaker:
    """Hands out names that occur nowhere in the file."""

    def __init__(self, taken: frozenset[str]) -> None:
        self._taken = set(taken)

    def make(self, wanted: str) -> str:
        """`wanted`, or with ``_2``, ``_3`` ... behind it."""
        name, n = wanted, 1
        while name in self._taken:
            n += 1
            name = f"{wanted}_{n}"
        self._taken.add(name)
        return name
