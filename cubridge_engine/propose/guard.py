"""Replies are hostile until shown otherwise: what a text for a site may hold, before any compiler sees it.

A text stands inside a device function and can be executed by the simulator only, until that has found nothing wrong.
What it could do earlier is to the compiler: read files by an include, end the function it stands in, switch rules off
by a pragma, or pretend to be a header of ours. So: no preprocessor but ``#pragma unroll``, brackets that balance, no
strings but those of listed PTX instructions, a bounded size, and only names that a device function may use.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from .sites import Site

MAX_TEXT = 4_000  # bytes for one site
MAX_TOTAL = 16_000
PRAGMAS = re.compile(r"#[ \t]*pragma[ \t]+unroll(?:[ \t]+\d{1,4}|[ \t]*\(\d{1,4}\))?[ \t]*")
# PTX instructions that compute from registers to registers: no memory, no control flow, no synchronisation.
PTX = frozenset(
    {
        *("ex2.approx.f32", "ex2.approx.ftz.f32", "lg2.approx.f32", "lg2.approx.ftz.f32"),
        *("rcp.approx.f32", "rcp.approx.ftz.f32", "rsqrt.approx.f32", "rsqrt.approx.ftz.f32"),
        *("tanh.approx.f32", "sin.approx.f32", "cos.approx.f32", "fma.rn.f32", "add.f32", "mul.f32"),
        *("max.f32", "min.f32", "max.NaN.f32", "min.NaN.f32"),
    }
)
# Words that a kernel's inner code has no use for: other code, memory of its own, time, the host.
FORBIDDEN = frozenset(
    {
        *("__asm__", "__asm", "_Pragma", "__pragma", "__attribute__", "__global__", "__host__", "__device__"),
        *("extern", "template", "namespace", "using", "typedef", "class", "union", "friend", "operator", "import"),
        *("__shared__", "__constant__", "__managed__", "static", "malloc", "free", "new", "delete"),
        *("alloca", "printf", "assert", "system", "goto", "try", "throw", "catch", "while", "do"),
        *("clock", "clock64", "globaltimer", "__trap", "__brkpt", "__nanosleep", "__prof_trigger", "cudaMalloc"),
        *("__FILE__", "__LINE__", "__DATE__", "__TIME__", "__TIMESTAMP__", "__has_include", "__COUNTER__"),
        *("__builtin_unreachable", "__builtin_assume", "__assume"),
    }
)
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_ASM = re.compile(r'\basm\s*(?:volatile\s*)?\(\s*"\s*([\w.]+)\s+[^"\\;{}@]*;?\s*"')
_STRING = re.compile(r'"[^"\n\\]*"')
_PAIRS = {")": "(", "]": "[", "}": "{"}


class Rejected(ValueError):
    """A text that is not even tried; the message says why in one clause that the model can be told."""


def check_texts(edits: Sequence[tuple[Site, str]]) -> None:
    """Raise Rejected unless every text may stand at its site and no two sites overlap."""
    if not edits:
        raise Rejected("no site is changed")
    total = sum(len(text.encode()) for _, text in edits)
    if total > MAX_TOTAL:
        raise Rejected(f"the texts have {total} bytes together, more than {MAX_TOTAL}")
    for site, text in edits:
        try:
            check_text(text)
        except Rejected as why:
            raise Rejected(f"site {site.name}: {why}") from None
    ordered = sorted(edits, key=lambda edit: (edit[0].start, edit[0].end))
    for (one, _), (other, _) in pairwise(ordered):
        if other.start < one.end or one.name == other.name or (one.start, one.end) == (other.start, other.end):
            raise Rejected(f"sites {one.name} and {other.name} overlap: change one of them")


def check_text(text: str) -> None:
    """Raise Rejected unless `text` is plain device code."""
    if len(text.encode("utf-8", "replace")) > MAX_TEXT:
        raise Rejected(f"the text has more than {MAX_TEXT} bytes")
    odd = next((c for c in text if not (" " <= c <= "~" or c in "\n\t")), None)
    if odd is not None:
        raise Rejected(f"the character {odd!r} may not stand in it")
    if "cubridge" in text.lower():
        raise Rejected("comments of CuBridge are written by CuBridge only")
    if "\\" in text or "??" in text or "%:" in text or "<%" in text or "<:" in text:
        raise Rejected("backslashes, trigraphs and digraphs may not stand in it")
    code = _COMMENT.sub(" ", text)
    if "/*" in code or "*/" in code:
        raise Rejected("a comment is not closed")
    _check_directives(code)
    _check_strings(code)
    _check_words(_STRING.sub('""', code))
    _check_brackets(_STRING.sub('""', code))


def _check_directives(code: str) -> None:
    for line in code.split("\n"):
        if "#" in line and not PRAGMAS.fullmatch(line.strip()):
            raise Rejected(f"the directive '{line.strip()[:40]}' is not allowed: only #pragma unroll is")


def _check_strings(code: str) -> None:
    """Every asm is one listed instruction; there is no other string."""
    found = list(_ASM.finditer(code))
    if len(found) != len(re.findall(r"\basm\b", code)):
        raise Rejected("an asm statement is one instruction in one string")
    for match in found:
        if match[1] not in PTX:
            raise Rejected(f"the PTX instruction {match[1]} is not on the list of allowed ones")
    inside = [match.span() for match in re.finditer(r"\basm\b[^;]*;", _STRING.sub(lambda m: "s" * len(m[0]), code))]
    for match in re.finditer(r"[\"']", code):
        if match[0] == "'" or not any(a <= match.start() < b for a, b in inside):
            raise Rejected("strings and character literals may not stand in it")


def _check_words(code: str) -> None:
    for word in re.findall(r"[A-Za-z_]\w*", code):
        if word in FORBIDDEN or word.startswith(("atomic", "cuda", "nv")):
            raise Rejected(f"the word '{word}' may not stand in it")
    if "<<<" in code:
        raise Rejected("a launch may not stand in it")


def _check_brackets(code: str) -> None:
    """Brackets balance, so that a text cannot end the block or the function that it stands in."""
    opened: list[str] = []
    for character in code:
        if character in "([{":
            opened.append(character)
        elif character in _PAIRS and (not opened or opened.pop() != _PAIRS[character]):
            raise Rejected(f"'{character}' closes what the text did not open")
    if opened:
        raise Rejected(f"'{opened[-1]}' is not closed")
