"""The comment lines at the top of an adapted file: what it means, how far it was verified, how to call it. Written and
read back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..ir.text_expr import print_expr
from ..transfer.model import Operand

_LINE = re.compile(r"^\s*//\s*cubridge:\s*(?P<word>\w+)\s*(?P<rest>.*?)\s*$")

# A condition of a spec on the sizes of a call.
CONDITION = re.compile(r"(?P<a>[A-Z]\w*|\d+)(?: % (?P<step>\d+))? (?:==|<=|<) (?P<b>\w+)$")


@dataclass(frozen=True, slots=True)
class Header:
    """What the lines say. `bindings` are expressions over D as text; `operands` maps a parameter to (operand, axes).

    `widths` is (D, Dv) of the kernel as it was adapted, and `elsewhere` the values of bindings at another D. `inputs`
    are the spec's, in its order, and `requires` conditions on sizes. `tiles` maps a list of tiles to its axes, and
    `pages` a table to the rows of a page.
    """

    spec: str = ""
    level: str = ""
    bindings: dict[str, str] = field(default_factory=dict, hash=False)
    operands: dict[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict, hash=False)
    widths: tuple[int, int] | None = None
    elsewhere: dict[int, dict[str, float]] = field(default_factory=dict, hash=False)
    inputs: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    tiles: dict[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    pages: dict[str, int] = field(default_factory=dict, hash=False)


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


def call_lines(widths: tuple[int, int], inputs: Sequence[str], requires: Sequence[str]) -> list[str]:
    """The lines on a call: the kernel's widths D and Dv, the spec's inputs in their order, and what it requires of the
    sizes (``Sq == Sk``, ``Sq <= Sk``, ``H == 8``, ``Sq % 16 == 0``).
    """
    d, dv = widths
    return [
        f"// cubridge: widths {d}" + (f", {dv}" if dv != d else ""),
        f"// cubridge: inputs {', '.join(inputs)}",
        *([f"// cubridge: requires {', '.join(requires)}"] if requires else []),
    ]


def elsewhere_line(d: int, values: Mapping[str, float | int]) -> str:
    """The line on the values at another head dimension."""
    passed = ", ".join(f"{name} = {value!r}" for name, value in values.items())
    return f"// cubridge: report at D = {d} it was executed with {passed}"


def parse_header(text: str) -> Header:
    """Read the lines of the leading comment back; lines of other kinds are skipped. Never raises."""
    found = Header()
    for line in text.lstrip("\ufeff").splitlines():
        match = _LINE.match(line)
        if match is None:
            if line.strip() and not line.lstrip().startswith(("//", "/*", "*")):
                break
            continue
        found = _READERS.get(match["word"], _skip)(found, match["rest"])
    return found


def _skip(found: Header, _: str) -> Header:
    return found


def _set(found: Header, rest: str) -> Header:
    name, equals, value = rest.partition("=")
    return replace(found, bindings={**found.bindings, name.strip(): value.strip()}) if equals else found


def _param(found: Header, rest: str) -> Header:
    match = re.match(r"(\w+)\s*=\s*operand:(\w+)\[(.*)\]$", rest)
    if match is None:
        return found
    return replace(found, operands={**found.operands, match[1]: (match[2], tuple(_listed(match[3])))})


def _tiles(found: Header, rest: str) -> Header:
    match = re.match(r"(\w+)\s*=\s*int32\[([^\]]*)\]", rest)
    return replace(found, tiles={**found.tiles, match[1]: tuple(_listed(match[2]))}) if match else found


def _pages(found: Header, rest: str) -> Header:
    match = re.match(r"(\w+)\s*=.*?ceil\(Sk / (\d+)\)", rest)
    return replace(found, pages={**found.pages, match[1]: int(match[2])}) if match else found


def _widths(found: Header, rest: str) -> Header:
    sizes = [int(text) for text in _listed(rest) if text.isdigit()]
    return replace(found, widths=(sizes[0], sizes[-1])) if len(sizes) in (1, 2) else found


def _report(found: Header, rest: str) -> Header:
    match = re.match(r"at D = (\d+) it was executed with (.*)$", rest)
    if match is None:
        return found
    pairs = re.findall(r"(\w+) = ([-+.\w]+)", match[2])
    try:
        values = {name: float(value) for name, value in pairs}
    except ValueError:
        return found
    return replace(found, elsewhere={**found.elsewhere, int(match[1]): values})


def _listed(text: str) -> list[str]:
    return [one.strip() for one in text.split(",") if one.strip()]


# word -> what the rest of the line adds
_READERS: dict[str, Callable[[Header, str], Header]] = {
    "spec": lambda found, rest: replace(found, spec=rest),
    "level": lambda found, rest: replace(found, level=rest),
    "set": _set,
    "param": _param,
    "tiles": _tiles,
    "pages": _pages,
    "widths": _widths,
    "inputs": lambda found, rest: replace(found, inputs=tuple(_listed(rest))),
    "requires": lambda found, rest: replace(found, requires=tuple(c for c in _listed(rest) if CONDITION.match(c))),
    "report": _report,
}


def with_header(data: bytes, lines: Sequence[str], newline: str = "\n") -> bytes:
    """`data` with the lines before everything else (after a byte order mark); earlier cubridge lines at the top are
    replaced.
    """
    mark = b"\xef\xbb\xbf" if data.startswith(b"\xef\xbb\xbf") else b""
    rest = data[len(mark) :].splitlines(keepends=True)
    while rest and _LINE.match(rest[0].decode("utf-8", "replace")):
        rest.pop(0)
    return mark + "".join(f"{line}{newline}" for line in lines).encode() + b"".join(rest)
