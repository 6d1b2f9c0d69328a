"""Changes of a text that leave what it computes as it is."""

from __future__ import annotations

import re
from dataclasses import dataclass

_STRING_OR_COMMENT = re.compile(
    r'"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/|^\s*#(?:[^\n\\]|\\.)*(?:\\\n[^\n]*)*', re.S | re.M
)


@dataclass(frozen=True)
class Moved:
    """A text in two files."""

    main: str
    header: str


_MACROS = """#define MEET() do { __syncthreads(); } while (0)
#define LARGER(a, b) fmaxf((a), (b))
#define INDEX const int
"""


def reformatted(text: str) -> str:
    """Every statement on lines of its own, no comments, other spaces."""
    kept: list[str] = []

    def keep(match: re.Match[str]) -> str:
        if match.group(0).startswith(("//", "/*")):
            return " "
        kept.append(match.group(0).strip())
        mark = f"\x00{len(kept) - 1}\x00"
        return f"\n{mark}\n" if match.group(0).lstrip().startswith("#") else mark

    bare = _STRING_OR_COMMENT.sub(keep, text)
    lines = [line if line.startswith("\x00") else re.sub(r"[ \t]+", "  ", line) for line in bare.split("\n")]
    spread = [line if "\x00" in line else line.replace(";", ";\n\t").replace("{", "{\n") for line in lines]
    return re.sub(r"\x00(\d+)\x00", lambda m: kept[int(m.group(1))], "\n".join(spread))


def in_macros(text: str) -> str:
    """Types, a function of CUDA and the barrier behind macros of the author's own."""
    head, kernel = _split(text)
    kernel = re.sub(r"(?<![\w#])__syncthreads\(\);", "MEET();", kernel)
    kernel = re.sub(r"(?<![\w(<,] )\bfmaxf\(", "LARGER(", kernel)
    kernel = re.sub(r"\bconst int (\w+) =", r"INDEX \1 =", kernel)
    return f"{head}{_MACROS}{kernel}"


def in_a_header(text: str, name: str) -> Moved:
    """Everything before the kernel in a header."""
    head, kernel = _split(text)
    includes = re.findall(r"^#include[^\n]*\n", head, re.M)
    return Moved(f'#include "{name}"\n{kernel}', f"#pragma once\n{head}") if includes or head else Moved(text, "")


def _split(text: str) -> tuple[str, str]:
    """What is before the kernel's definition (its template line included), and the rest."""
    at = text.index("__global__")
    before = text[:at]
    template = re.search(r"template\s*<[^;{}]*>\s*$", before)
    at = template.start() if template else at
    return text[:at], text[at:]
