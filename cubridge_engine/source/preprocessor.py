"""The directives of a CUDA text: macros, quote-includes, and the choice of one branch of every ``#if``.

The choice follows the C preprocessor (an undefined name is 0), with the macros a device pass of nvcc predefines, so
that what is read is what is compiled. A condition that cannot be evaluated (``__has_include``) is taken, and said.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from cubridge_engine.diagnostics import Diagnostic, Span, make

from .condition import evaluate
from .lexical import Masks

# What nvcc defines while it compiles the device side; `defines` of the caller come on top.
PREDEFINED: Mapping[str, str] = {
    "__CUDACC__": "1",
    "__NVCC__": "1",
    "__CUDA_ARCH__": "800",
    "__CUDACC_VER_MAJOR__": "13",
    "__CUDACC_VER_MINOR__": "0",
    "CUDA_VERSION": "13000",
    "CUDART_VERSION": "13000",
    "__cplusplus": "201703",
    "__GNUC__": "13",
    "__linux__": "1",
    "__x86_64__": "1",
}

_DIRECTIVE = re.compile(rb"^[ \t\f\v]*#[ \t]*([A-Za-z_]\w*|)((?:[^\n\\]|\\\r?\n|\\)*)", re.MULTILINE)
_DEFINE = re.compile(r"\s*([A-Za-z_]\w*)(\(([^()]*)\))?")
_CONTINUED = re.compile(rb"\\\r?\n")
_OPENING = frozenset({"if", "ifdef", "ifndef"})
_ALTERNATIVE = frozenset({"elif", "elifdef", "elifndef", "else"})


@dataclass(frozen=True, slots=True)
class Macro:
    """A ``#define`` in a branch that is read. `params` is None for an object-like macro; `body` has no comments."""

    name: str
    params: tuple[str, ...] | None
    body: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Include:
    """A ``#include`` in a branch that is read; `quoted` tells ``"x"`` from ``<x>``."""

    target: str
    quoted: bool
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Problem:
    """A finding about directives: the diagnostic code, where, and the fields of its message."""

    code: str
    start: int
    end: int
    fields: dict[str, object]

    def diagnostic(self, span: Span) -> Diagnostic:
        """The finding as a diagnostic at `span`."""
        return make(self.code, span, related=(), **self.fields)


@dataclass(frozen=True, slots=True)
class Directive:
    """One logical directive line: `rest` is what follows the keyword, joined and without comments."""

    keyword: str
    rest: str
    start: int
    end: int


@dataclass(slots=True)
class _Branch:
    """An open ``#if``. `live`: its current branch is read; `done`: no later branch can be; `outer`: parent is read."""

    opened: Directive
    outer: bool
    live: bool
    done: bool
    dead_since: int | None = None
    reason: str = ""


@dataclass(slots=True)
class Preprocessed:
    """`directives`: ranges of all directives read; `conditionals` and `dead`: (start, end, text) to blank."""

    macros: dict[str, Macro] = field(default_factory=dict[str, Macro])
    includes: list[Include] = field(default_factory=list[Include])
    directives: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    conditionals: list[tuple[int, int, str]] = field(default_factory=list[tuple[int, int, str]])
    dead: list[tuple[int, int, str]] = field(default_factory=list[tuple[int, int, str]])
    problems: list[Problem] = field(default_factory=list[Problem])


def directives(masks: Masks) -> Iterator[Directive]:
    """Every directive of the text, in order, dead branches included."""
    for match in _DIRECTIVE.finditer(masks.code):
        rest = _CONTINUED.sub(b" ", masks.bare[match.start(2) : match.end(2)]).decode("utf-8", "replace").strip()
        end = match.end() - 1 if match.group().endswith(b"\r") else match.end()
        yield Directive(match.group(1).decode("ascii"), rest, match.start(), end)


def preprocess(masks: Masks, defines: Mapping[str, str]) -> Preprocessed:
    """Choose branches and collect macros and includes. `defines` are object-like macros as ``-D`` gives them."""
    out = Preprocessed()
    # name -> body, None for a function-like macro: what `evaluate` reads
    table: dict[str, str | None] = {**PREDEFINED, **defines}
    open_ifs: list[_Branch] = []
    for line in directives(masks):
        if line.keyword in _OPENING:
            outer = not open_ifs or open_ifs[-1].live
            branch = _Branch(line, outer, live=False, done=not outer)
            open_ifs.append(branch)
            if outer:
                _enter(branch, line, table, out)
        elif line.keyword in _ALTERNATIVE or line.keyword == "endif":
            _alternative(line, open_ifs, table, out)
        elif not open_ifs or open_ifs[-1].live:
            out.directives.append((line.start, line.end))
            _plain(line, table, out)
    for branch in open_ifs:
        where = branch.opened
        out.problems.append(Problem("CB107", where.start, where.end, {"directive": f"#{where.keyword}"}))
        if branch.outer and branch.dead_since is not None:
            out.dead.append((branch.dead_since, len(masks.code), branch.reason))
    return out


def _alternative(line: Directive, open_ifs: list[_Branch], table: dict[str, str | None], out: Preprocessed) -> None:
    """``#elif``, ``#else`` and ``#endif``: close the current branch and perhaps enter the next."""
    if not open_ifs:
        out.problems.append(Problem("CB108", line.start, line.end, {"directive": f"#{line.keyword}"}))
        out.conditionals.append((line.start, line.end, f"#{line.keyword}"))
        return
    branch = open_ifs[-1]
    if branch.outer and branch.dead_since is not None:
        out.dead.append((branch.dead_since, line.start, branch.reason))
        branch.dead_since = None
    if line.keyword == "endif":
        open_ifs.pop()
        if branch.outer:
            out.conditionals.append((line.start, line.end, "#endif"))
    elif branch.outer:
        _enter(branch, line, table, out)


def _enter(branch: _Branch, line: Directive, table: dict[str, str | None], out: Preprocessed) -> None:
    """Decide whether the branch that `line` opens is read."""
    said = f"#{line.keyword} {line.rest}".strip()
    out.conditionals.append((line.start, line.end, said))
    branch.live = False
    if branch.done:
        branch.reason = f"{said}: an earlier branch is read"
    else:
        value = _truth(line, table)
        if value is None:
            out.problems.append(Problem("CB109", line.start, line.end, {"condition": line.rest}))
        branch.live = value is not False
        branch.done = branch.live
        branch.reason = f"{said} is false"
    branch.dead_since = None if branch.live else line.end


def _truth(line: Directive, table: Mapping[str, str | None]) -> bool | None:
    if line.keyword == "else":
        return True
    if line.keyword in ("if", "elif"):
        value = evaluate(line.rest, table)
        return None if value is None else value != 0
    name = re.match(r"[A-Za-z_]\w*", line.rest)
    if name is None:
        return None
    return (name.group() in table) != line.keyword.endswith("ndef")


def _plain(line: Directive, table: dict[str, str | None], out: Preprocessed) -> None:
    """``#define``, ``#undef`` and ``#include`` of a branch that is read; others are left to the grammar."""
    if line.keyword == "define" and (match := _DEFINE.match(line.rest)):
        params = None if match.group(2) is None else tuple(p.strip() for p in match.group(3).split(",") if p.strip())
        macro = Macro(match.group(1), params, line.rest[match.end() :].strip(), line.start, line.end)
        out.macros[macro.name] = macro
        table[macro.name] = macro.body if params is None else None
    elif line.keyword == "undef":
        table.pop(line.rest, None)
    elif line.keyword == "include" and (match := re.match(r'"([^"]*)"|<([^>]*)>', line.rest)):
        quoted = match.group(1) is not None
        out.includes.append(Include(match.group(1) if quoted else match.group(2), quoted, line.start, line.end))
