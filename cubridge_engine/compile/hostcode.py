"""Blanking host code, so that NVRTC can compile the kernels of a file that also holds launchers, bindings and a main().

Length-preserving: every blanked byte becomes a space and newlines stay, so that lines and columns stay true.
This is a scanner for top-level items, not a parser: when brackets do not balance it changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

_NOISE = re.compile(
    rb"//(?:\\\r?\n|[^\n])*"  # comment to the end of the line
    rb"|/\*.*?\*/"
    rb'|R"(?P<tag>[^\s()\\]{0,16})\(.*?\)(?P=tag)"'
    rb'|"(?:\\.|[^"\\\n])*"'
    rb"|(?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])+'"  # a character; a quote within a number is a digit separator
    rb"|^[ \t]*\#(?:\\\r?\n|[^\n])*",  # a preprocessor directive with its continuations
    re.S | re.M,
)
_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"\n]+)[>"]', re.M)
_DEVICE_MACRO = re.compile(rb"^[ \t]*#[ \t]*define[ \t]+(\w+)\b(?:\\\r?\n|[^\n])*?__(?:device|global)__", re.M)
_DEVICE_WORDS = frozenset((b"__global__", b"__device__", b"__constant__", b"__shared__", b"constexpr"))
_KEPT_DECLARATIONS = frozenset(
    (b"using", b"typedef", b"static_assert", b"struct", b"class", b"union", b"enum", b"namespace", b"const", b"friend")
)
# Headers of host libraries: leaving them out loses nothing that a kernel needs.
HOST_HEADER = re.compile(r"(torch|ATen|c10|pybind11|Python)\b|[a-z_]+$|.*(iostream|vector|string)")
_WORD = re.compile(rb"[A-Za-z_]\w*")
_ALIGNAS = re.compile(rb"\balignas\s*\(\s*\)")  # of a struct: no function's parentheses
_PAIRS = {ord("("): ord(")"), ord("["): ord("]"), ord("{"): ord("}")}


@dataclass(frozen=True, slots=True)
class _Item:
    start: int
    end: int
    head: bytes  # masked text up to the body, or up to the semicolon
    has_body: bool


@dataclass(frozen=True, slots=True)
class Blanked:
    """The text without host code; `parts` blanked ranges; `host_helpers`: device code calls unannotated functions."""

    text: bytes
    parts: tuple[tuple[int, int], ...]
    host_helpers: bool


def _spaces(data: bytes) -> bytes:
    return bytes(c if c in b"\r\n" else 0x20 for c in data)


def mask_noise(source: bytes) -> bytes:
    """`source` with comments, literals and preprocessor directives blanked."""
    return _NOISE.sub(lambda match: _spaces(match[0]), source)


def _closing(text: bytes, start: int) -> int | None:
    """Offset of the bracket that closes the one at `start`; None when brackets do not balance."""
    stack: list[int] = []
    for index in range(start, len(text)):
        char = text[index]
        if char in _PAIRS:
            stack.append(_PAIRS[char])
        elif char in b")]}":
            if stack.pop() != char:
                return None
            if not stack:
                return index
    return None


def _without_template(head: bytes) -> bytes:
    """`head` without its leading ``template <...>`` clauses."""
    while match := re.match(rb"\s*template\s*<", head):
        depth, index = 1, match.end()
        while index < len(head) and depth:
            depth += {0x3C: 1, 0x3E: -1}.get(head[index], 0)
            index += 1
        head = head[index:]
    return head


def _outer(head: bytes) -> bytes:
    """`head` with everything in parentheses and brackets blanked."""
    depth, out = 0, bytearray(head)
    for index, char in enumerate(head):
        depth -= char in b")]"
        if depth > 0:
            out[index] = 0x20
        depth += char in b"(["
    return bytes(out)


def _items(text: bytes, start: int, end: int) -> list[_Item] | None:
    """Top-level items of text[start:end]; namespaces and ``extern "C"`` blocks are entered."""
    items: list[_Item] = []
    index = begin = start
    while index < end:
        char = text[index]
        if text[begin : index + 1].isspace():
            begin = index + 1
        elif char in b"([":
            close = _closing(text, index)
            if close is None:
                return None
            index = close
        elif char == ord(";"):
            items.append(_Item(begin, index + 1, text[begin:index], False))
            begin = index + 1
        elif char == ord("{"):
            close = _closing(text, index)
            if close is None:
                return None
            head = _ALIGNAS.sub(b"", _outer(_without_template(text[begin:index])))
            words = _WORD.findall(head)
            if b"namespace" in words[:2] or words == [b"extern"]:
                inner = _items(text, index + 1, close)
                if inner is None:
                    return None
                items.extend(inner)
                begin = close + 1
            elif b"(" in head and b"=" not in head:
                items.append(_Item(begin, close + 1, text[begin:index], True))
                begin = close + 1
            index = close
        elif char == ord("}"):
            return None
        index += 1
    return items


def _is_host(item: _Item, device_words: frozenset[bytes]) -> bool:
    words = set(_WORD.findall(item.head))
    if words & device_words or any(b"DEVICE" in word.upper() for word in words):
        return False
    head = _outer(_without_template(item.head))
    if item.has_body:
        return True
    first = _WORD.findall(head)[:2]
    return b"(" in head and b"=" not in head and not _KEPT_DECLARATIONS & set(first)


def _name(item: _Item) -> bytes:
    words = _WORD.findall(_outer(_without_template(item.head)).partition(b"(")[0])
    return words[-1] if words else b""


def _called_from_device(text: bytes, items: list[_Item], hosts: list[_Item]) -> list[_Item]:
    """The unannotated functions with a body that kept code names, directly or through one another."""
    kept = bytearray(text)
    for item in hosts:
        kept[item.start : item.end] = _spaces(text[item.start : item.end])
    words = set(_WORD.findall(bytes(kept)))
    helpers: list[_Item] = []
    candidates = [item for item in hosts if item.has_body and b"<<<" not in text[item.start : item.end]]
    while found := [item for item in candidates if item not in helpers and _name(item) in words]:
        helpers.extend(found)
        for item in found:
            words.update(_WORD.findall(text[item.start : item.end]))
    return helpers


def includes(source: bytes) -> list[tuple[int, str]]:
    """(offset of the line, header) of each #include."""
    return [(match.start(), match[1].decode("utf-8", "replace")) for match in _INCLUDE.finditer(source)]


def blank_host_code(source: bytes, resolves: Callable[[str], bool]) -> Blanked:
    """Blank host functions, host prototypes, explicit instantiations and includes that do not resolve.

    `resolves(name)` tells whether a header is there. Returns the text unchanged when its brackets do not balance.
    """
    masked = mask_noise(source)
    items = _items(masked, 0, len(masked))
    if items is None:
        return Blanked(source, (), False)
    macros = frozenset(match[1] for match in _DEVICE_MACRO.finditer(source))
    hosts = [item for item in items if _is_host(item, _DEVICE_WORDS | macros)]
    helpers = _called_from_device(masked, items, hosts)
    parts = [(item.start, item.end) for item in hosts if item not in helpers]
    for start, header in includes(source):
        if not resolves(header):
            parts.append((start, (source + b"\n").index(b"\n", start)))
    text = bytearray(source)
    for start, end in parts:
        text[start:end] = _spaces(source[start:end])
    return Blanked(bytes(text), tuple(sorted(parts)), bool(helpers))
