"""The comment lines at the top of an adapted file: what it means, how far it was verified, how to call it. Written and
read back.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..ir.text_expr import print_expr
from ..transfer.model import Operand

_LINE = re.compile(r"^\s*//\s*cubridge:\s*(?P<word>\w+)\s*(?P<rest>.*?)\s*$")


@dataclass(frozen=True, slots=True)
class Header:
    """What the lines say. `bindings` are expressions over D as text; `operands` maps a parameter to (operand, axes)."""

    spec: str = ""
    level: str = ""
    bindings: dict[str, str] = field(default_factory=dict, hash=False)
    operands: dict[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict, hash=False)


def header_lines(spec: str, level: str, bindings: Mapping[str, str], operands: Sequence[Operand]) -> tuple[str, ...]:
    """The lines, without newline. `spec` is a file name, `level` how far the result was verified ('' to leave the line
    out).
    """
    lines = [f"// cubridge: spec {spec}"]
    if level:
        lines.append(f"// cubridge: level {level}")
    lines += [f"// cubridge: set {name}={value}" for name, value in bindings.items()]
    lines += [_operand_line(o) for o in operands]
    return tuple(lines)


def _operand_line(operand: Operand) -> str:
    axes = ", ".join(operand.axes)
    if operand.page:
        n = operand.page
        return (
            f"// cubridge: pages {operand.param} = {operand.dtype}[B, ceil(Sk / {n})], at least one; k and v are "
            f"[pages, Hkv, {n}, D] by their strides, that of a page in the place of the batch's: key j of batch b is "
            f"row j % {n} of page {operand.param}[b, j / {n}]"
        )
    if operand.tiles is None:
        return f"// cubridge: param {operand.param} = operand:{operand.name}[{axes}]"
    tiles = operand.tiles
    return (
        f"// cubridge: tiles {operand.param} = int32[{axes}], at most {tiles.bytes_text()}; a row is the number of KV "
        f"tiles of {tiles.bc} keys to visit, how many are tested, and these tiles: those where {print_expr(tiles.mask)}"
    )


def parse_header(text: str) -> Header:
    """Read the lines of the leading comment back; lines of other kinds are skipped. Never raises."""
    spec = level = ""
    bindings: dict[str, str] = {}
    operands: dict[str, tuple[str, tuple[str, ...]]] = {}
    for line in text.lstrip("\ufeff").splitlines():
        match = _LINE.match(line)
        if match is None:
            if line.strip() and not line.lstrip().startswith(("//", "/*", "*")):
                break
            continue
        word, rest = match["word"], match["rest"]
        if word == "spec":
            spec = rest
        elif word == "level":
            level = rest
        elif word == "set" and "=" in rest:
            name, value = rest.split("=", 1)
            bindings[name.strip()] = value.strip()
        elif word == "param":
            found = re.match(r"(\w+)\s*=\s*operand:(\w+)\[(.*)\]$", rest)
            if found:
                operands[found[1]] = (found[2], tuple(a.strip() for a in found[3].split(",") if a.strip()))
    return Header(spec, level, bindings, operands)


def with_header(data: bytes, lines: Sequence[str], newline: str = "\n") -> bytes:
    """`data` with the lines before everything else (after a byte order mark); earlier cubridge lines at the top are
    replaced.
    """
    mark = b"\xef\xbb\xbf" if data.startswith(b"\xef\xbb\xbf") else b""
    rest = data[len(mark) :].splitlines(keepends=True)
    while rest and _LINE.match(rest[0].decode("utf-8", "replace")):
        rest.pop(0)
    return mark + "".join(f"{line}{newline}" for line in lines).encode() + b"".join(rest)
