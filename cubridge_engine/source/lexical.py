"""Masks of a CUDA text: the same bytes with comments and strings blanked, so that patterns see code only.

Everything here preserves length and line endings, so a byte offset in any mask is one in the user's file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_KEPT = b"\t\n\v\f\r "
BLANK_TABLE = bytes(byte if byte in _KEPT else 0x20 for byte in range(256))
_STRING_TABLE = bytes(byte if byte in _KEPT else 0x24 for byte in range(256))

_START = re.compile(rb"""//|/\*|(?<![A-Za-z0-9_])(?:u8|[uUL])?R"|"|(?<![0-9a-fA-F])'""")
_LINE_COMMENT = re.compile(rb"(?:[^\n\\]|\\\r?\n|\\)*")
# An unterminated literal ends at the end of its line, as compilers recover; this also keeps the scan linear.
_QUOTED = {
    b'"': re.compile(rb'"(?:[^"\\\r\n]|\\\r?\n|\\.)*"?'),
    b"'": re.compile(rb"'(?:[^'\\\r\n]|\\\r?\n|\\.)*'?"),
}
_RAW_DELIMITER = re.compile(rb'[^()\\\s"]{0,16}\(')


@dataclass(frozen=True, slots=True)
class Masks:
    """`code`: comments blank, literal contents ``$``, where no name matches. `bare`: comments blank, literals kept."""

    code: bytes
    bare: bytes


def blank(piece: bytes) -> bytes:
    """`piece` with all but white space turned into spaces."""
    return piece.translate(BLANK_TABLE)


def readable(data: bytes) -> tuple[bytes, int, int]:
    """(data with byte order mark, NUL and non-UTF-8 bytes blanked, how many were unreadable, offset of the first)."""
    clean = data
    if clean.startswith(b"\xef\xbb\xbf"):
        clean = b"   " + clean[3:]
    bad, first = clean.count(0), clean.find(0)
    if bad:
        clean = clean.replace(b"\0", b" ")
    try:
        clean.decode("utf-8")
    except UnicodeDecodeError as error:
        first = error.start if first < 0 else min(first, error.start)
        # surrogateescape maps each undecodable byte to exactly one code point of this range: lengths stay equal
        text, count = re.subn("[\udc80-\udcff]", " ", clean.decode("utf-8", "surrogateescape"))
        clean, bad = text.encode("utf-8"), bad + count
    return clean, bad, first


def mask(data: bytes) -> Masks:
    """Blank the comments and hide the literals of `data`. Linear in its length, for any bytes."""
    code, bare = bytearray(data), bytearray(data)
    unclosed: set[bytes] = set()
    at = 0
    while match := _START.search(data, at):
        start, token = match.start(), match.group()
        if token in (b"//", b"/*"):
            at = _comment_end(data, start, token)
            code[start:at] = bare[start:at] = blank(data[start:at])
        else:
            at, inner = _literal_end(data, match, unclosed)
            if at - 1 > inner:
                code[inner : at - 1] = data[inner : at - 1].translate(_STRING_TABLE)
    return Masks(bytes(code), bytes(bare))


def _comment_end(data: bytes, start: int, token: bytes) -> int:
    if token == b"//":
        match = _LINE_COMMENT.match(data, start)
        return match.end() if match else len(data)
    end = data.find(b"*/", start + 2)
    return len(data) if end < 0 else end + 2


def _literal_end(data: bytes, match: re.Match[bytes], unclosed: set[bytes]) -> tuple[int, int]:
    """(end of the literal, first byte of its contents). `unclosed` remembers raw delimiters known to have no end."""
    inner = match.end()
    if match.group().endswith(b'R"'):
        opening = _RAW_DELIMITER.match(data, inner)
        if opening:
            closing = b")" + opening.group()[:-1] + b'"'
            end = -1 if closing in unclosed else data.find(closing, opening.end())
            if end >= 0:
                return end + len(closing), inner
            unclosed.add(closing)
    quoted = _QUOTED[match.group()[-1:]].match(data, inner - 1)
    return (quoted.end() if quoted else inner), inner


def bracket_pairs(code: bytes | bytearray) -> dict[int, int]:
    """Offset of every opening bracket (any of ``([{``) -> offset behind the one that closes it, by depth alone."""
    pairs: dict[int, int] = {}
    stack: list[int] = []
    for match in _BRACKET.finditer(code):
        if match.group() in b"([{":
            stack.append(match.start())
        elif stack:
            pairs[stack.pop()] = match.end()
    return pairs


_BRACKET = re.compile(rb"[()\[\]{}]")
