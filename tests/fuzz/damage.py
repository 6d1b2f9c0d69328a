"""Damage to a CUDA text, by seed: cut off, shuffled, mutated. The same seed gives the same text."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

_TOKEN = re.compile(r"\w+|\S")
PIECES = (
    "}", "{", "(", ")", ";", "*/", "/*", '"', "'", "#", "#if 1", "#define X(", "\\", "\0", "é", "<<<", ">>>",
    "template<",
    "for(;;)", "while(1);", "return;", "0x", "1e999", "-1", "4294967296", "asm volatile(\"", "__global__", "...", "??/",
    "goto out;", "#include \"kernel.cu\"", "~0ull >> 65", "1 % 0", "x[x[x[0]]]",
)  # fmt: skip
OPERATORS = ("+", "-", "*", "/", "%", "<", "<=", ">", "==", "&", "|", "^", "<<", ">>", "&&", "?", ",")
NUMBERS = ("0", "1", "-1", "3", "7", "1000000", "2147483647", "4294967296", "0.f", "1e30f")


def _cut(rng: random.Random, text: str) -> str:
    return text[: rng.randrange(len(text))]


def _headless(rng: random.Random, text: str) -> str:
    return text[rng.randrange(len(text)) :]


def _hole(rng: random.Random, text: str) -> str:
    at = rng.randrange(len(text))
    return text[:at] + text[at + rng.randrange(1, 400) :]


def _piece(rng: random.Random, text: str) -> str:
    at = rng.randrange(len(text))
    return text[:at] + rng.choice(PIECES) + text[at:]


def _lines_swapped(rng: random.Random, text: str) -> str:
    lines = text.split("\n")
    a, b = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[a], lines[b] = lines[b], lines[a]
    return "\n".join(lines)


def _block_moved(rng: random.Random, text: str) -> str:
    lines = text.split("\n")
    start = rng.randrange(len(lines))
    block = lines[start : start + rng.randrange(1, 12)]
    del lines[start : start + len(block)]
    at = rng.randrange(len(lines) + 1)
    return "\n".join([*lines[:at], *block, *lines[at:]])


def _block_repeated(rng: random.Random, text: str) -> str:
    lines = text.split("\n")
    start = rng.randrange(len(lines))
    block = lines[start : start + rng.randrange(1, 30)]
    return "\n".join([*lines[:start], *block * rng.randrange(2, 5), *lines[start:]])


def _token(rng: random.Random, text: str, wanted: Callable[[str], bool], new: Callable[[list[str]], str]) -> str:
    tokens = [m for m in _TOKEN.finditer(text) if wanted(m[0])]
    if not tokens:
        return text
    chosen = rng.choice(tokens)
    return text[: chosen.start()] + new([m[0] for m in tokens]) + text[chosen.end() :]


def _number(rng: random.Random, text: str) -> str:
    return _token(rng, text, str.isdigit, lambda _: rng.choice(NUMBERS))


def _name(rng: random.Random, text: str) -> str:
    return _token(rng, text, str.isidentifier, rng.choice)


def _operator(rng: random.Random, text: str) -> str:
    return _token(rng, text, OPERATORS.__contains__, lambda _: rng.choice(OPERATORS))


def _token_lost(rng: random.Random, text: str) -> str:
    return _token(rng, text, bool, lambda _: "")


WAYS = (
    _cut, _headless, _hole, _piece, _lines_swapped, _block_moved, _block_repeated, _number, _number, _name, _name,
    _operator, _operator, _token_lost,
)  # fmt: skip


def damaged(text: str, seed: int) -> str:
    """One to three kinds of damage, one upon the other."""
    rng = random.Random(seed)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        text = rng.choice(WAYS)(rng, text) or ";"
    return text
