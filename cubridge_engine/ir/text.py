"""The text form of CuIR: stable, readable, diffable; ``parse_kernel(print_kernel(k)) == k``.

One line per operation, from one table: a pattern with the node's fields in braces, then ``; key=value`` for the fields
that are not at their default. Printing fills the pattern; parsing is the same pattern turned into a regular
expression. Origins are not part of the text (``print_kernel(..., lines=True)`` adds them as comments, which the parser
skips).
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from . import nodes
from .expr import Expr
from .nodes import For, GridMap, If, Kernel, Op, Origin, Param
from .text_expr import ExprSyntaxError, parse_expr, print_expr

VERSION = 1


class CuirSyntaxError(ValueError):
    """The text is not CuIR; `line` is 1-based."""

    def __init__(self, line: int, why: str) -> None:
        super().__init__(f"line {line}: {why}")
        self.line = line


@dataclass(frozen=True, slots=True)
class Row:
    """How one node type is written: the mnemonic, the pattern of the head, and the fields written as ``;
    key=value``.
    """

    word: str
    head: str
    extra: tuple[str, ...] = ()


ROWS: dict[type[Op], Row] = {
    nodes.Alloc: Row("alloc", "{space} {name}[{slots}, {rows}, {cols}] {dtype}", ("layout",)),
    nodes.Copy: Row(
        "copy",
        "{buffer}[{slot}] <- {tensor}[{row0} : +{rows}]",
        ("limit", "is_async", "vector_bytes", "head", "table", "page", "signal"),
    ),
    nodes.CpCommit: Row("cp_commit", ""),
    nodes.CpWait: Row("cp_wait", "{pending}", ("signal",)),
    nodes.Barrier: Row("barrier", "{scope}"),
    nodes.LoadTile: Row("load_tile", "{dst} <- {buffer}[{slot}]", ("transposed",)),
    nodes.For: Row("for", "{iv} in {lo} .. {hi}", ("step", "role")),
    nodes.If: Row("if", "{cond}"),
    nodes.Let: Row("let", "{name} = {value}"),
    nodes.Fill: Row("fill", "{tile} = {value}"),
    nodes.Mma: Row("mma", "{role} {acc} += {a} @ {b}", ("slot", "atom", "a_slot", "rounds_a")),
    nodes.Score: Row("score", "{tile} = {expr}"),
    nodes.Mask: Row("mask", "{tile} keep {keep}", ("fill", "guard")),
    nodes.Map: Row("map", "{role} {dst} <- {src} = {expr}"),
    nodes.RowReduce: Row("row_reduce", "{role} {dst} <- {src}", ("init", "lanes")),
    nodes.LaneReduce: Row("lane_reduce", "{op} {row}"),
    nodes.RowMap: Row("row", "{role} {row} = {expr}", ("lanes",)),
    nodes.StoreTile: Row("store_tile", "{tensor} <- {src} = {expr}", ("limit",)),
    nodes.StoreRow: Row("store_row", "{tensor} = {expr}", ("limit",)),
    nodes.Opaque: Row("opaque", "reads({reads}) writes({writes})", ("why",)),
}
_BY_WORD = {row.word: (cls, row) for cls, row in ROWS.items()}

# ---- field codecs --------------------------------------------------------------------------------------------------


def _quote(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace(";", "\\s") + '"'


def _unquote(text: str) -> str:
    escapes = {"\\": "\\", '"': '"', "n": "\n", "s": ";"}
    return re.sub(r"\\(.)", lambda m: escapes[m.group(1)], text[1:-1])


def _print_value(value: Any) -> str:
    if isinstance(value, Expr):
        return print_expr(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ", ".join(value)
    if value is None:
        return "none"
    if isinstance(value, str) and not re.fullmatch(r"[\w.:]+", value):
        return _quote(value)
    return str(value)


def _parse_names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _parse_string(text: str) -> str:
    return _unquote(text) if text.startswith('"') else text


def _parse_optional_expr(text: str) -> Expr | None:
    return None if text == "none" else parse_expr(text)


# Field type -> (regular expression, reader).
_CODECS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "str": (r'[\w.:]+|"(?:\\.|[^"])*"', _parse_string),
    "int": (r"-?\d+", int),
    "bool": (r"true|false", lambda t: t == "true"),
    "Expr": (r".+?", parse_expr),
    "Expr | None": (r".+?", _parse_optional_expr),
    "tuple[str, ...]": (r"[^)]*", _parse_names),
}


@cache
def _field_types(cls: type[Op]) -> dict[str, str]:
    return {f.name: str(f.type) for f in dataclasses.fields(cls) if f.name not in ("origin", "body", "orelse")}


@cache
def _defaults(cls: type[Op]) -> dict[str, Any]:
    return {f.name: f.default for f in dataclasses.fields(cls) if f.default is not dataclasses.MISSING}


@cache
def _regex(cls: type[Op]) -> re.Pattern[str]:
    types = _field_types(cls)
    parts = re.split(r"\{(\w+)\}", ROWS[cls].head)
    pattern = "".join(
        re.escape(part) if index % 2 == 0 else f"(?P<{part}>{_CODECS[types[part]][0]})"
        for index, part in enumerate(parts)
    )
    return re.compile(pattern + r"\Z")


# ---- print -----------------------------------------------------------------------------------------------------------


def print_op(op: Op) -> str:
    """The head line of one operation (without the body of a `for` or `if`)."""
    cls = type(op)
    row = ROWS[cls]
    head = re.sub(r"\{(\w+)\}", lambda m: _print_value(getattr(op, m.group(1))), row.head)
    line = f"{row.word} {head}".rstrip()
    for name in row.extra:
        value = getattr(op, name)
        if name not in _defaults(cls) or value != _defaults(cls)[name]:
            line += f"; {name}={_print_value(value)}"
    return line


def print_kernel(kernel: Kernel, *, lines: bool = False) -> str:
    """The whole program. With `lines`, each operation ends in a comment with its 1-based source line."""
    out = [f"cuir {VERSION}", f"kernel {kernel.name}; family={kernel.family}; threads={kernel.threads} {{"]
    values = f" Dv={kernel.Dv}" if kernel.Dv != kernel.D else ""
    out.append(f"  tiles Br={kernel.Br} Bc={kernel.Bc} D={kernel.D}{values}")
    out += [f"  set {name} = {_print_value(value)}" for name, value in kernel.instantiation.items()]
    out += [f"  param {p.position} {p.name} : {_quote(p.ctype)} : {p.role}" for p in kernel.params]
    for role, strides in kernel.tensors.items():
        out.append(f"  strides {role} = {' | '.join(print_expr(s) for s in strides)}")
    for name in ("q_tile", "b", "h", "hk"):
        out.append(f"  grid {name} = {print_expr(getattr(kernel.grid, name))}")
    out.append(f"  unit {print_expr(kernel.exp_unit)}")
    _print_block(kernel.body, 1, out, lines)
    out.append("}")
    return "\n".join(out) + "\n"


def _print_block(body: tuple[Op, ...], depth: int, out: list[str], lines: bool) -> None:
    pad = "  " * depth
    for op in body:
        note = _line_note(op, lines)
        if isinstance(op, For | If):
            out.append(f"{pad}{print_op(op)} {{{note}")
            _print_block(op.body, depth + 1, out, lines)
            if isinstance(op, If) and op.orelse:
                out.append(f"{pad}}} else {{")
                _print_block(op.orelse, depth + 1, out, lines)
            out.append(f"{pad}}}")
        else:
            out.append(f"{pad}{print_op(op)}{note}")


def _line_note(op: Op, lines: bool) -> str:
    origin: Origin = getattr(op, "origin", nodes.NOWHERE)
    if not lines or origin.span is None:
        return ""
    proposed = ", proposed" if origin.provenance == "model" else ""
    return f"  # line {origin.span.line + 1}{proposed}"


# ---- parse -----------------------------------------------------------------------------------------------------------


class _Reader:
    def __init__(self, text: str) -> None:
        self.lines = [
            (n, re.sub(r"\s+# line \d+(, proposed)?$", "", raw).strip()) for n, raw in enumerate(text.splitlines(), 1)
        ]
        self.lines = [(n, line) for n, line in self.lines if line and not line.startswith("#")]
        self.at = 0

    def peek(self) -> str:
        return self.lines[self.at][1] if self.at < len(self.lines) else ""

    def number(self) -> int:
        return self.lines[min(self.at, len(self.lines) - 1)][0] if self.lines else 1

    def take(self) -> str:
        if self.at >= len(self.lines):
            raise CuirSyntaxError(self.number(), "the text ends too early")
        self.at += 1
        return self.lines[self.at - 1][1]

    def match(self, pattern: str, what: str) -> re.Match[str]:
        number = self.number()
        found = re.fullmatch(pattern, self.take())
        if found is None:
            raise CuirSyntaxError(number, f"expected {what}")
        return found

    def expr(self, text: str) -> Expr:
        try:
            return parse_expr(text)
        except ExprSyntaxError as error:
            raise CuirSyntaxError(self.lines[self.at - 1][0], str(error)) from error


def parse_kernel(text: str) -> Kernel:
    """Read the text form. Raises CuirSyntaxError with the line."""
    reader = _Reader(text)
    version = reader.match(r"cuir (\d+)", "'cuir VERSION'")
    if int(version[1]) != VERSION:
        raise CuirSyntaxError(1, f"this reader knows version {VERSION}, the text is version {version[1]}")
    head = reader.match(r"kernel (\S+); family=(\w+); threads=(\d+) \{", "'kernel NAME; family=...; threads=N {'")
    tiles = reader.match(r"tiles Br=(\d+) Bc=(\d+) D=(\d+)(?: Dv=(\d+))?", "'tiles Br= Bc= D='")
    instantiation: dict[str, int | str] = {}
    params: list[Param] = []
    strides: dict[str, tuple[Expr, ...]] = {}
    while reader.peek().split(" ", 1)[0] in ("set", "param", "strides"):
        word = reader.peek().split(" ", 1)[0]
        if word == "set":
            m = reader.match(r"set (\w+) = (.+)", "'set NAME = VALUE'")
            instantiation[m[1]] = int(m[2]) if re.fullmatch(r"-?\d+", m[2]) else _parse_string(m[2])
        elif word == "param":
            m = reader.match(r'param (\d+) ([\w.]+) : ("(?:\\.|[^"])*") : (\S+)', "'param N NAME : \"TYPE\" : ROLE'")
            params.append(Param(m[2], _unquote(m[3]), m[4], int(m[1])))
        else:
            m = reader.match(r"strides (\S+) = (.*)", "'strides ROLE = A | B'")
            strides[m[1]] = tuple(reader.expr(part) for part in m[2].split(" | ")) if m[2] else ()
    grid: dict[str, Any] = {
        name: reader.expr(reader.match(rf"grid {name} = (.+)", f"'grid {name} ='")[1])
        for name in ("q_tile", "b", "h", "hk")
    }
    unit = reader.expr(reader.match(r"unit (.+)", "'unit EXPR'")[1])
    body = _parse_block(reader)
    if reader.peek():
        raise CuirSyntaxError(reader.number(), "text after the end of the kernel")
    return Kernel(
        name=head[1],
        params=tuple(params),
        grid=GridMap(**grid),
        Br=int(tiles[1]),
        Bc=int(tiles[2]),
        D=int(tiles[3]),
        Dv=int(tiles[4] or tiles[3]),
        threads=int(head[3]),
        family=head[2],
        body=body,
        exp_unit=unit,
        tensors=strides,
        instantiation=instantiation,
    )


def _parse_block(reader: _Reader) -> tuple[Op, ...]:
    """Operations up to the closing brace of the block, which is consumed (``} else {`` is left to the caller)."""
    ops: list[Op] = []
    while True:
        line = reader.peek()
        if line == "}":
            reader.take()
            return tuple(ops)
        if line == "} else {" or not line:
            if not line:
                raise CuirSyntaxError(reader.number(), "a block is not closed")
            return tuple(ops)
        ops.append(_parse_op(reader))


def _parse_op(reader: _Reader) -> Op:
    number = reader.number()
    line = reader.take()
    opens = line.endswith(" {")
    line = line.removesuffix(" {")
    word, _, rest = line.partition(" ")
    if word not in _BY_WORD:
        raise CuirSyntaxError(number, f"unknown operation {word!r}")
    cls, row = _BY_WORD[word]
    head, *extras = rest.split("; ")
    found = _regex(cls).match(head)
    if found is None:
        raise CuirSyntaxError(number, f"expected '{word} {row.head}'")
    values = dict(found.groupdict())
    for item in extras:
        key, equals, value = item.partition("=")
        if not equals or key not in row.extra:
            raise CuirSyntaxError(number, f"{word} has no field {key!r}")
        values[key] = value
    types = _field_types(cls)
    fields: dict[str, Any] = {}
    for key, value in values.items():
        try:
            fields[key] = _CODECS[types[key]][1](value)
        except (ExprSyntaxError, ValueError, KeyError) as error:
            raise CuirSyntaxError(number, f"{key}: {error}") from error
    if cls in (For, If):
        if not opens:
            raise CuirSyntaxError(number, f"'{word}' opens a block: '{{' is missing")
        fields["body"] = _parse_block(reader)
        if cls is If and reader.peek() == "} else {":
            reader.take()
            fields["orelse"] = _parse_block(reader)
    missing = [name for name in types if name not in fields and name not in _defaults(cls)]
    if missing:
        raise CuirSyntaxError(number, f"{word} needs {', '.join(missing)}")
    return typing.cast(Op, cls(**fields))
