"""Reading compiler output: errors and warnings onto the user's lines, ptxas figures and notes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..diagnostics import Diagnostic, Related, Span, make
from .model import KernelFigures
from .owners import missing_header

MOST_FINDINGS = 20  # a missing header makes hundreds of errors; the first ones tell

# file(line): error: message   (NVRTC, cudafe)      file:line:column: error: message   (the host compiler)
_FRONT = re.compile(
    r"^(?P<file>[^\s(][^(\n]*)\((?P<line>\d+)\): "
    r"(?P<kind>(?:catastrophic )?error|warning)(?: #[\w-]+)?: (?P<message>.*)$"
)
_HOST = re.compile(r"^(?P<file>[^\s:][^:\n]*):(?P<line>\d+):\d+: (?P<kind>(?:fatal )?error|warning): (?P<message>.*)$")
NAME_MAP = "__nv_name_map"  # the file in which NVRTC looks up name expressions
_CARET = re.compile(r"^\s*\^\s*$")
_INSTANTIATED = re.compile(
    r"^\s*(?:detected during|instantiation of|processing of).*?\bat line (?P<line>\d+)(?: of (?P<file>\S+))?"
)
_HEADER = re.compile(r'cannot open source file "([^"]+)"|([^\s:]+): No such file or directory')
_PTXAS_BAD = re.compile(r"^\s*ptxas (?:[^;]*; )?\s*(?:error|fatal)\s*:\s*(?P<message>.*)$")
_PTXAS_EMPTY = re.compile(r"assembly aborted due to errors")  # says nothing that the lines before it do not
_TOO_MUCH_SHARED = re.compile(
    r"function '([^']+)' uses too much shared data \((0x[0-9a-f]+) bytes, (0x[0-9a-f]+) max\)"
)
_QUOTED = re.compile(r"'([^']+)'")
_ENTRY = re.compile(r"Compiling entry function '(?P<name>\S+)' for '(?P<arch>\S+)'")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SMEM = re.compile(r"(\d+) bytes smem")
_NOTE = re.compile(r"\((C\d{4,5})\)\s*(.*)$")
_UNSUPPORTED = re.compile(r"Instruction '(?P<name>\w+)[^']*' not supported on \.target '(?P<arch>sm_\d+)'$")
# Instructions that only one variant of an architecture has.
_SPECIFIC = {"wgmma": "sm_90a", "setmaxnreg": "sm_90a", "tcgen05": "sm_100a"}
# Warnings about what we did ourselves or that say nothing about the kernel.
_SILENT = re.compile(r"was declared but never referenced|incompatible redefinition of macro")


@dataclass(frozen=True, slots=True)
class Findings:
    """A log, read."""

    diagnostics: tuple[Diagnostic, ...]
    kernels: tuple[KernelFigures, ...]
    notes: tuple[str, ...]


def line_span(path: str, source: bytes | None, line: int, column: int | None = None) -> Span:
    """The span of a 0-based line without its indentation, or from byte `column` on. Without the source, zero width."""
    lines = source.split(b"\n") if source is not None else []
    if not 0 <= line < len(lines):
        return Span(path, 0, 0, max(line, 0), 0, max(line, 0), 0)
    text = lines[line].rstrip()
    start = len(text) - len(text.lstrip())
    if column is not None and start <= column < len(text):
        word = re.match(rb"\w+|.", text[column:])
        start, end = column, column + (len(word[0]) if word else 1)
    else:
        end = len(text)
    offset = sum(len(x) + 1 for x in lines[:line])
    return Span(path, offset + start, offset + end, line, start, line, end)


def _reader(path: str, source: bytes) -> Callable[[str, int, int | None], Span]:
    cache: dict[str, bytes | None] = {path: source}

    def span(file: str, line: int, column: int | None) -> Span:
        if file not in cache:
            try:
                cache[file] = Path(file).read_bytes()
            except OSError:
                cache[file] = None
        return line_span(file, cache[file], line - 1, column)

    return span


def _front_end(lines: list[str], path: str, source: bytes) -> list[Diagnostic]:
    span = _reader(path, source)
    last_line = source.count(b"\n") + 1
    found: list[Diagnostic] = []
    for index, text in enumerate(lines):
        match = _FRONT.match(text) or _HOST.match(text)
        if match is None or _SILENT.search(match["message"]):
            continue
        column: int | None = None
        related: list[Related] = []
        for follow in lines[index + 1 : index + 12]:
            if _FRONT.match(follow) or _HOST.match(follow):
                break
            if _CARET.match(follow) and column is None:
                column = follow.index("^") - 2  # the quoted source line is indented by two
            if at := _INSTANTIATED.match(follow):
                related.append(Related(span(at["file"] or match["file"], int(at["line"]), None), "instantiated here"))
        if match["file"] == NAME_MAP or (match["file"] == path and int(match["line"]) > last_line):
            continue  # a name expression, which is not in the user's file: see bad_expressions
        where = span(match["file"], int(match["line"]), column)
        message = match["message"].strip()
        header = _HEADER.search(message)
        if header:
            found.append(missing_header(header[1] or header[2], where))
        elif "error" in match["kind"]:
            found.append(make("CB603", where, related=tuple(related), message=message))
        else:
            found.append(make("CB604", where, message=message))
    return found


def _figures(lines: list[str], expressions: Mapping[str, str]) -> list[KernelFigures]:
    """`expressions` maps lowered names to the name expressions they were asked by."""
    kernels: list[KernelFigures] = []
    name = ""
    frame = (0, 0, 0)
    for text in lines:
        if entry := _ENTRY.search(text):
            name, frame = entry["name"], (0, 0, 0)
        elif stack := _STACK.search(text):
            frame = (int(stack[1]), int(stack[2]), int(stack[3]))
        elif name and (used := _USED.search(text)):
            shared = _SMEM.search(text)
            stack_bytes, stores, loads = frame
            kernels.append(
                KernelFigures(
                    name,
                    expressions.get(name, name),
                    int(used[1]),
                    spill_loads=loads,
                    spill_stores=stores,
                    shared_bytes=int(shared[1]) if shared else 0,
                    stack=stack_bytes,
                )
            )
            name = ""
    return kernels


def entry_names(log: str) -> tuple[str, ...]:
    """The kernels that ptxas speaks of, in order."""
    return tuple(dict.fromkeys(match["name"] for match in _ENTRY.finditer(log)))


def _ptxas_error(message: str, path: str, source: bytes, arch: str, expressions: Mapping[str, str]) -> Diagnostic:
    if shared := _TOO_MUCH_SHARED.search(message):
        needed, limit = int(shared[2], 16), int(shared[3], 16)
        kernel = expressions.get(shared[1], shared[1])
        return make("CB610", None, kernel=kernel, needed=needed, static=needed, dynamic=0, arch=arch, limit=limit)
    # ptxas knows lines of PTX only; an instruction it quotes is in the user's text if it came from an asm statement.
    for quoted in _QUOTED.findall(message):
        at = source.find(quoted.encode())
        if at >= 0:
            line = source.count(b"\n", 0, at)
            return make(
                "CB605", line_span(path, source, line, at - source.rfind(b"\n", 0, at) - 1), message=message, arch=arch
            )
    return make("CB605", None, message=message, arch=arch)


def _specific(messages: list[str], path: str, source: bytes) -> tuple[list[Diagnostic], list[str]]:
    """One error for all instructions that need a variant such as sm_90a of the architecture; the other messages."""
    missing: dict[tuple[str, str], dict[str, None]] = {}
    others: list[str] = []
    for message in messages:
        match = _UNSUPPORTED.match(message)
        needed = _SPECIFIC.get(match["name"]) if match else None
        if match is None or needed is None:
            others.append(message)
        else:
            missing.setdefault((match["arch"], needed), {})[match["name"]] = None
    found: list[Diagnostic] = []
    for (arch, needed), names in missing.items():
        # The text may have the instruction in a comment as well: the statement is what stands in a string.
        written = re.search(rb"\"[^\"\n]*\b(" + "|".join(names).encode() + rb")\b", source)
        span = None if written is None else line_span(path, source, source.count(b"\n", 0, written.start(1)))
        words = " and ".join(names)
        found.append(
            make(
                "CB617", span, instructions=words, verb="needs" if len(names) == 1 else "need", needed=needed, arch=arch
            )
        )
    return found, others


def read_log(log: str, *, path: str, source: bytes, arch: str, expressions: Mapping[str, str]) -> Findings:
    """Read the output of a compilation of `source`. `expressions`: lowered name -> name expression."""
    lines = log.splitlines()
    diagnostics = _front_end(lines, path, source)
    kernels = _figures(lines, expressions)
    notes: list[str] = []
    bad_lines = [bad["message"] for text in lines if (bad := _PTXAS_BAD.match(text))]
    telling = [message for message in bad_lines if not _PTXAS_EMPTY.search(message)]
    specific, others = _specific(telling or bad_lines, path, source)
    diagnostics += specific
    diagnostics += [_ptxas_error(message, path, source, arch, expressions) for message in others]
    for text in lines:
        if text.startswith("ptxas") and (note := _NOTE.search(text)):
            notes.append(f"{note[1]}: {note[2]}")
            diagnostics.append(make("CB611", None, note=note[1], message=note[2]))
    diagnostics += [
        make("CB609", None, kernel=k.expression, spill_stores=k.spill_stores, arch=arch, registers=k.registers)
        for k in kernels
        if k.spill_stores or k.spill_loads
    ]
    unique = list({(d.code, d.span, d.message): d for d in diagnostics}.values())
    unique.sort(key=lambda d: -int(d.severity))
    return Findings(tuple(unique[:MOST_FINDINGS]), tuple(kernels), tuple(dict.fromkeys(notes)))
