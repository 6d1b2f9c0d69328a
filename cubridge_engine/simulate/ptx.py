"""PTX text -> Program. Reads what nvcc, NVRTC and Triton write; a part that cannot be read is a diagnostic."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field

from ..diagnostics import Diagnostic, make
from .model import (
    Function,
    Imm,
    Instruction,
    Location,
    Mem,
    Not,
    Operand,
    Pair,
    Param,
    Program,
    Reg,
    Special,
    Sym,
    Variable,
    Vec,
    rename,
)

_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
_FILE = re.compile(r'\.file\s+(\d+)\s+"([^"]*)"')
_INFO = re.compile(r"(\$L__info_string\d+):\s*((?:\.b8\s+[\d,\s]+)+)")
_LOC = re.compile(
    r"\.loc\s+(\d+)\s+(\d+)\s+(\d+)(?:\s*,\s*function_name\s+([\w$]+)(?:\s*\+\s*\d+)?\s*,\s*inlined_at\s+(\d+)\s+(\d+)\s+(\d+))?"
)
_HEADER = re.compile(r"(?:\.(?:visible|extern|weak|common)\s+)*\.(entry|func)\b[^{;]*(?=[{;])", re.S)
_LABEL = re.compile(r"([A-Za-z_$%][\w$]*)\s*:(?!:)")
_TO_EOL = re.compile(r"\.(?:version|target|address_size|file|loc|alias)\b[^\n]*")
_DECLARATION = re.compile(
    r"(?:\.(?:visible|extern|weak|common)\s+)*\.(shared|local|const|global|param)\b\s*(.*)$", re.S
)
_NUMBER = re.compile(r"[+-]?(?:0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?$")
_DECIMAL = re.compile(r"[+-]?(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?$")
_NAME = re.compile(r"[A-Za-z_$%][\w$.%]*$")


class _Unreadable(Exception):
    """Internal: this statement cannot be read."""


def split_commas(text: str) -> list[str]:
    """Split at the commas that are outside brackets."""
    parts: list[str] = []
    depth = start = 0
    for i, ch in enumerate(text):
        if ch in "{[(":
            depth += 1
        elif ch in "}])":
            depth -= 1
        elif ch == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    last = text[start:].strip()
    return [*parts, last] if last else parts


def parse_int(text: str) -> int:
    """An integer literal of PTX (decimal, hex, octal, binary, ``U`` suffix)."""
    body = text.strip().rstrip("U")
    sign = -1 if body.startswith("-") else 1
    body = body.lstrip("+-")
    if len(body) > 1 and body[0] == "0" and body.isdigit():
        return sign * int(body, 8)
    return sign * int(body, 0)


@dataclass(slots=True)
class _Scope:
    registers: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)


class _Reader:
    """One pass over the text; `position` walks through it and `line` is counted on the way."""

    def __init__(self, text: str) -> None:
        blank = _COMMENT.sub(lambda m: "\n" * m.group().count("\n") or " ", text)
        self.text = blank
        self.files = {int(n): path for n, path in _FILE.findall(blank)}
        self.functions = {name: _function_name(body) for name, body in _INFO.findall(blank)}
        self.program = Program()
        self.diagnostics: list[Diagnostic] = []
        self.line = 1
        self.position = 0
        self.function: Function | None = None
        self.scopes: list[_Scope] = []
        self.unique = 0
        self.loc: Location | None = None
        self.seen: dict[tuple[int, int, int], Location] = {}
        self.unresolved: list[tuple[int, list[_Scope]]] = []

    def advance(self, end: int) -> str:
        """The text up to `end`; moves there."""
        piece = self.text[self.position : end]
        self.line += piece.count("\n")
        self.position = end
        return piece

    def read(self) -> Program:
        n = len(self.text)
        while self.position < n:
            ch = self.text[self.position]
            if ch.isspace() or ch == ";":
                self.advance(self.position + 1)
            elif self.text.startswith(".section", self.position):
                end = self.text.find("}", self.position)
                self.advance(n if end < 0 else end + 1)
            else:
                try:
                    self.item(ch)
                except _Unreadable as error:
                    self.diagnostics.append(make("CB511", None, ptx_line=self.line, reason=str(error)))
                    end = self.text.find(";", self.position)
                    self.advance(n if end < 0 else end + 1)
        return self.program

    def item(self, ch: str) -> None:
        m = _TO_EOL.match(self.text, self.position)
        if m:
            self.directive(m.group())
            self.advance(m.end())
        elif self.function is None:
            self.outer()
        elif ch == "{":
            self.scopes.append(_Scope())
            self.advance(self.position + 1)
        elif ch == "}":
            self.advance(self.position + 1)
            self.scopes.pop()
            if not self.scopes:
                self.finish_function()
        else:
            m = _LABEL.match(self.text, self.position)
            if m:
                self.advance(m.end())
                self.label(m.group(1))
            else:
                self.statement()

    def directive(self, text: str) -> None:
        word, _, rest = text.partition(" ")
        if text.startswith(".loc"):
            m = _LOC.match(text)
            if m:
                self.location(m)
        elif word.startswith(".version"):
            self.program.version = rest.strip()
        elif word.startswith(".target"):
            self.program.target = rest.split(",")[0].strip()

    def location(self, m: re.Match[str]) -> None:
        key = (int(m[1]), int(m[2]), int(m[3]))
        parent = None
        if m[5]:
            at = (int(m[5]), int(m[6]), int(m[7]))
            # The enclosing place may itself have been inlined: it is the latest .loc that named it.
            parent = self.seen.get(at) or Location(self.files.get(at[0], "?"), at[1], at[2])
        name = self.functions.get(m[4] or "", "")
        self.loc = Location(self.files.get(key[0], "?"), key[1], key[2], name, parent)
        self.seen[key] = self.loc

    def outer(self) -> None:
        m = _HEADER.match(self.text, self.position)
        if m:
            line = self.line
            header = self.advance(m.end())
            function = _read_header(header, m[1] == "entry", line)
            if self.text[self.position] == "{":
                self.program.functions[function.name] = function
                self.function = function
                self.scopes = [_Scope()]
                self.loc = None
                self.seen = {}
                self.unresolved = []
            else:
                self.program.functions.setdefault(function.name, function)
            self.advance(self.position + 1)
            return
        end = self.text.find(";", self.position)
        if end < 0:
            raise _Unreadable("text behind the last statement")
        piece = self.advance(end + 1)[:-1].strip()
        variable = _read_variable(piece)
        if variable is not None and variable.space != "param":
            self.program.variables.append(variable)

    def label(self, name: str) -> None:
        assert self.function is not None
        if len(self.scopes) > 1:
            self.unique += 1
            inner = f"{name}@{self.unique}"
            self.scopes[-1].labels[name] = inner
            name = inner
        self.function.labels[name] = len(self.function.code)

    def statement(self) -> None:
        assert self.function is not None
        end = self.text.find(";", self.position)
        if end < 0:
            raise _Unreadable("a statement without end")
        line = self.line
        text = self.advance(end + 1)[:-1].strip()
        if text.startswith(".reg"):
            self.registers(text)
        elif text.startswith(".branchtargets"):
            label = list(self.function.labels)[-1]
            self.function.tables[label] = tuple(split_commas(text[len(".branchtargets") :]))
        elif text.startswith("."):
            variable = _read_variable(text)
            if variable is not None:
                if len(self.scopes) > 1:  # .param variables of a call: unique per call
                    self.unique += 1
                    inner = f"{variable.name}@{self.unique}"
                    self.scopes[-1].registers[variable.name] = inner
                    variable = Variable(inner, variable.space, variable.align, variable.size)
                self.function.variables.append(variable)
        else:
            self.instruction(text, line)

    def registers(self, text: str) -> None:
        assert self.function is not None
        m = re.match(r"\.reg\s*\.(\w+)\s+(.*)$", text, re.S)
        if not m:
            raise _Unreadable(f"register declaration {text!r}")
        for item in split_commas(m[2]):
            family = re.match(r"([\w%$]+)<(\d+)>$", item)
            if family:
                self.function.registers.update({f"{family[1]}{i}": m[1] for i in range(int(family[2]))})
            elif len(self.scopes) > 1:
                self.unique += 1
                inner = f"{item}@{self.unique}"
                self.scopes[-1].registers[item] = inner
                self.function.registers[inner] = m[1]
            else:
                self.function.registers[item] = m[1]

    def instruction(self, text: str, line: int) -> None:
        assert self.function is not None
        guard: Reg | None = None
        negated = False
        names = {k: v for scope in self.scopes for k, v in scope.registers.items()}
        if text.startswith("@"):
            head, _, text = text[1:].partition(" ") if " " in text.split("\t")[0] else text[1:].partition("\t")
            negated = head.startswith("!")
            name = head.lstrip("!").strip()
            guard = Reg(names.get(name, name))
            text = text.strip()
        m = re.match(r"([A-Za-z][\w.:]*)\s*(.*)$", text, re.S)
        if not m:
            raise _Unreadable(f"statement {text[:40]!r}")
        args = tuple(self.operand(a, names) for a in split_commas(m[2]))
        op = m[1]
        self.function.code.append(Instruction(op, tuple(op.split(".")), args, guard, negated, line, self.loc))
        if len(self.scopes) > 1 and op.split(".")[0] in ("bra", "brx"):
            self.unresolved.append((len(self.function.code) - 1, list(self.scopes)))

    def operand(self, text: str, names: dict[str, str]) -> Operand:
        assert self.function is not None
        if not text:
            raise _Unreadable("an empty operand")
        if text[0] in "{(":
            return Vec(tuple(self.operand(t, names) for t in split_commas(text[1:-1])))
        if text[0] == "[":
            return self.memory(text[1:-1], names)
        if text[0] == "!":
            return Not(self.operand(text[1:].strip(), names))
        if "|" in text:
            first, _, second = text.partition("|")
            return Pair(self.operand(first.strip(), names), self.operand(second.strip(), names))
        if text[:2] in ("0f", "0F", "0d", "0D") and len(text) in (10, 18):
            return Imm(int(text[2:], 16), 32 if text[1] in "fF" else 64)
        if _NUMBER.match(text):
            return Imm(parse_int(text))
        if _DECIMAL.match(text):  # of 64 bits, as inline assembly writes the zeros of an accumulator
            return Imm(int.from_bytes(struct.pack("<d", float(text)), "little"), 64)
        return self.name(text, names)

    def name(self, text: str, names: dict[str, str]) -> Operand:
        assert self.function is not None
        base, plus, offset = text.partition("+")
        base = base.strip()
        if not _NAME.match(base):
            raise _Unreadable(f"operand {text!r}")
        base = names.get(base, base)
        if base == "_":
            return Reg("_")
        if base in self.function.registers:
            return Reg(base)
        if base == "WARP_SZ":
            return Imm(32)
        stem, dot, component = base.partition(".")
        if dot and component in ("x", "y", "z", "w") and stem in self.function.registers:
            raise _Unreadable(f"component of a vector register {text!r}")
        if base.startswith("%"):
            return Special(base)
        return Sym(base, parse_int(offset) if plus else 0)

    def memory(self, text: str, names: dict[str, str]) -> Operand:
        parts = split_commas(text)
        coords: tuple[Operand, ...] = ()
        if len(parts) > 1:
            inner = self.operand(parts[1], names)
            coords = inner.items if isinstance(inner, Vec) else (inner,)
        m = re.match(r"([^+\s]+)\s*(?:\+\s*(-?\w+))?$", parts[0])
        if not m:
            raise _Unreadable(f"address [{text}]")
        offset = parse_int(m[2]) if m[2] else 0
        return Mem(self.operand(m[1], names), offset, coords)

    def finish_function(self) -> None:
        function = self.function
        assert function is not None
        for index, scopes in self.unresolved:
            ins = function.code[index]
            names: dict[str, str] = {}
            for scope in scopes:
                names.update(scope.labels)
            args = tuple(rename(a, names) for a in ins.args)
            function.code[index] = Instruction(ins.op, ins.parts, args, ins.guard, ins.negated, ins.line, ins.loc)
        self.function = None


def _function_name(body: str) -> str:
    """The plain name in the mangled name that the debug strings hold byte by byte."""
    mangled = bytes(int(n) for n in re.findall(r"\d+", body.replace(".b8", " ")) if int(n)).decode("latin-1")
    m = re.match(r"_ZN?(?:\d+_INTERNAL\w*?)?(\d+)", mangled)
    return mangled[m.end() : m.end() + int(m[1])] if m else mangled


def _read_header(text: str, entry: bool, line: int) -> Function:
    m = re.match(
        r"[^(]*?\.(?:entry|func)\s*(\((?P<ret>[^)]*)\))?\s*(?P<name>[\w$]+)\s*(\((?P<args>[^)]*)\))?", text, re.S
    )
    if not m:
        raise _Unreadable("a function header")
    function = Function(m["name"], entry, _read_params(m["args"] or ""), _read_params(m["ret"] or ""), line=line)
    tail = text[m.end() :]

    def numbers(directive: str) -> list[int]:
        found = re.search(rf"\.{directive}\s+([\d,\s]+)", tail)
        return [int(n) for n in re.findall(r"\d+", found[1])] if found else []

    required = numbers("reqntid")
    if required:
        x, y, z = (*required, 1, 1)[:3]
        function.block = (x, y, z)
    most = numbers("maxntid")
    if most:
        x, y, z = (*most, 1, 1)[:3]
        function.max_threads = x * y * z
    cluster = numbers("reqnctapercluster")
    if cluster:
        x, y, z = (*cluster, 1, 1)[:3]
        function.cluster = (x, y, z)
    return function


def _read_params(text: str) -> tuple[Param, ...]:
    params: list[Param] = []
    offset = 0
    for item in split_commas(text):
        kind = re.search(r"\.(b|u|s|f)(8|16|32|64|128)\b", item)
        name = re.search(r"([\w$%]+)\s*(?:\[(\d+)\])?\s*$", item)
        if not kind or not name:
            raise _Unreadable(f"parameter {item!r}")
        unit = int(kind[2]) // 8
        declared = re.search(r"\.param\s+\.align\s+(\d+)", item)
        align = max(int(declared[1]), 1) if declared else unit
        size = unit * int(name[2] or 1)
        offset = -(-offset // align) * align
        params.append(Param(name[1], kind[1] + kind[2], offset, size, align))
        offset += size
    return tuple(params)


def _read_variable(text: str) -> Variable | None:
    m = _DECLARATION.match(text)
    if not m:
        return None
    body, _, init = m[2].partition("=")
    kind = re.search(r"\.(b|u|s|f)(8|16|32|64|128)\s", body + " ")
    name = re.search(r"([\w$%]+)\s*((?:\[\d*\])*)\s*$", body)
    if not kind or not name:
        return None
    unit = int(kind[2]) // 8
    extents = re.findall(r"\[(\d*)\]", name[2])
    count = 1
    for extent in extents:
        count *= int(extent or 0)
    align = re.search(r"\.align\s+(\d+)", body)
    data = _read_init(init, kind[1], unit, count) if init.strip() else None
    return Variable(name[1], m[1], max(int(align[1]), 1) if align else unit, unit * count, "" in extents, data)


def _read_init(text: str, kind: str, unit: int, count: int) -> bytes:
    out = bytearray()
    for item in re.split(r"[\s,{}]+", text.strip()):
        if not item:
            continue
        if item[:2] in ("0f", "0F", "0d", "0D") and kind == "f":
            value = int(item[2:], 16)
        elif _NUMBER.match(item):
            value = parse_int(item)
        else:
            raise _Unreadable(f"initialiser {item!r}")
        out += (value & ((1 << 8 * unit) - 1)).to_bytes(unit, "little")
    return bytes(out.ljust(unit * count, b"\0"))


def parse(text: str) -> tuple[Program, tuple[Diagnostic, ...]]:
    """Read a PTX module. Never raises; a statement that cannot be read is CB511 and is left out."""
    reader = _Reader(text)
    try:
        program = reader.read()
    except (_Unreadable, AssertionError, IndexError, ValueError) as error:
        reader.diagnostics.append(make("CB511", None, ptx_line=reader.line, reason=str(error) or "unexpected text"))
        program = reader.program
    return program, tuple(reader.diagnostics)
