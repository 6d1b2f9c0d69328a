"""The length-preserving sanitiser: what the grammar cannot read is overwritten by blanks of the same length.

Offsets, lines and columns of the sanitised text are those of the user's file. Every overwritten range is recorded as an
`Edit`, so that nothing is dropped silently: what is blanked is "not analysed", and is shown so. The rules are a table
(`RULES`): each names the construct, says why the grammar needs help, and carries an example, which is a test.

Rules recognise constructs by their place in the syntax, or by the bodies of the macros that the file itself defines.
Only for macros of headers that are not at hand do they fall back on the upper-case naming convention of macros.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from .lexical import blank, bracket_pairs
from .preprocessor import Macro


@dataclass(frozen=True, slots=True)
class Edit:
    """``[start, end)`` was overwritten by the rule `rule`. `value` is what the reader may still need of it."""

    start: int
    end: int
    rule: str
    value: str


@dataclass
class Canvas:
    """The text being sanitised: `clean` goes to the grammar, `code` (no comments, literals, directives) to patterns."""

    clean: bytearray
    code: bytearray
    macros: Mapping[str, Macro]
    edits: list[Edit] = field(default_factory=list[Edit])

    @cached_property
    def closing(self) -> dict[int, int]:
        """Opening bracket -> offset behind its partner. Rules only ever blank whole pairs, so it stays true."""
        return bracket_pairs(self.code)

    def put(self, start: int, end: int, rule: str, value: str, new: bytes | None = None) -> None:
        """Overwrite ``[start, end)`` by `new` (same length) or by blanks, and record it."""
        filled = blank(bytes(self.clean[start:end])) if new is None else new
        self.clean[start:end] = filled
        self.code[start:end] = filled
        self.edits.append(Edit(start, end, rule, value))

    def text(self, start: int, end: int) -> str:
        return self.clean[start:end].decode("utf-8", "replace")

    def before(self, at: int) -> tuple[bytes, bool]:
        """(last code byte before `at` or b"", whether a line ends in between)."""
        window = bytes(self.code[max(0, at - 4096) : at])
        code = window.rstrip()
        return code[-1:], b"\n" in window[len(code) :]

    def after(self, at: int) -> tuple[bytes, bool]:
        """(first code byte at or behind `at` or b"", whether a line ends in between)."""
        window = bytes(self.code[at : at + 4096])
        code = window.lstrip()
        return code[:1], b"\n" in window[: len(window) - len(code)]


@dataclass(frozen=True, slots=True)
class Rule:
    """One construct: its `name`, why the grammar needs help, a minimal `example`, and the code that applies it."""

    name: str
    reason: str
    example: str
    apply: Callable[[Canvas, str], None]


def sanitise(clean: bytes, code: bytes, macros: Mapping[str, Macro]) -> tuple[bytes, bytes, list[Edit]]:
    """(`clean` and `code` with every rule applied, the edits by position). Never raises; lengths are kept."""
    canvas = Canvas(bytearray(clean), bytearray(code), macros)
    for rule in RULES:
        rule.apply(canvas, rule.name)
    return bytes(canvas.clean), bytes(canvas.code), sorted(canvas.edits, key=lambda edit: edit.start)


# --- makers of `apply` functions -----------------------------------------------------------------------------------


def _group(pattern: bytes, new: bytes | None = None) -> Callable[[Canvas, str], None]:
    """Overwrite group 1 of every match."""
    compiled = re.compile(pattern, re.MULTILINE)

    def apply(canvas: Canvas, rule: str) -> None:
        for match in list(compiled.finditer(canvas.code)):
            canvas.put(*match.span(1), rule, canvas.text(*match.span(1)).strip(), new)

    return apply


def _call(pattern: bytes) -> Callable[[Canvas, str], None]:
    """Blank ``NAME(...)`` where the pattern ends at the opening parenthesis; the value is ``NAME(...)``."""
    compiled = re.compile(pattern)

    def apply(canvas: Canvas, rule: str) -> None:
        for match in list(compiled.finditer(canvas.code)):
            end = canvas.closing.get(match.end() - 1)
            if end is not None:
                canvas.put(match.start(), end, rule, canvas.text(match.start(), end))

    return apply


# --- rules that need more than a pattern ----------------------------------------------------------------------------

_ATTRIBUTE_CALL = (
    r"(?:__align__|alignas|__launch_bounds__|__cluster_dims__|__maxnreg__|__block_size__|__attribute__|__declspec|"
    r"_Pragma)"
)
_QUALIFIER = (
    r"(?:__device__|__host__|__global__(?:\s+void)?|__forceinline__|__inline__|__noinline__|__restrict__|__restrict|"
    r"inline|static|volatile" + rf"|{_ATTRIBUTE_CALL}\s*\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))"
)
_ALL_QUALIFIERS = re.compile(rf"(?:\s*{_QUALIFIER})*\s*")
_WORD = re.compile(r"[A-Za-z_]\w*")


def qualifier_macros(macros: Mapping[str, Macro]) -> dict[str, str]:
    """Name -> expansion of the macros that consist of qualifiers, attributes and pragmas only (or of nothing)."""
    found: dict[str, str] = {}
    for _ in range(4):  # macros made of such macros
        before = len(found)
        for name, macro in macros.items():
            body = _WORD.sub(lambda word: found.get(word.group(), word.group()), macro.body)
            if name not in found and len(body) < 400 and _ALL_QUALIFIERS.fullmatch(body):
                found[name] = body
        if len(found) == before:
            break
    return found


def _apply_qualifier_macros(canvas: Canvas, rule: str) -> None:
    names = qualifier_macros(canvas.macros)
    if not names:
        return
    for match in list(_IDENTIFIER.finditer(canvas.code)):
        name = match.group().decode("ascii", "replace")
        if name not in names:
            continue
        macro, end = canvas.macros[name], match.end()
        if macro.params is not None:
            opening = re.compile(rb"\s*\(").match(canvas.code, end)
            closed = canvas.closing.get(opening.end() - 1) if opening else None
            if opening is None or closed is None:
                continue
            arguments = canvas.text(opening.end(), closed - 1).split(",")
            given = dict(zip(macro.params, (a.strip() for a in arguments), strict=False))
            value = _WORD.sub(lambda word: given.get(word.group(), word.group()), names[name])  # noqa: B023
            end = closed
        else:
            value = names[name]
        canvas.put(match.start(), end, rule, value)


_IDENTIFIER = re.compile(rb"(?<![\w.])[A-Za-z_]\w*")
_LOOP_PREFIX = re.compile(rb"(?<!\w)([A-Za-z_]\w*)(?:[ \t]*\(\w*\))?\s+(?=(?:for|while)\s*\()")
_KEYWORDS = frozenset(b"else do if while for switch return constexpr case default try co_return".split())


def _apply_loop_prefix(canvas: Canvas, rule: str) -> None:
    """A name directly before a loop is never C++: it is an unroll macro."""
    for match in list(_LOOP_PREFIX.finditer(canvas.code)):
        previous, starts_line = canvas.before(match.start())
        if match.group(1) in _KEYWORDS or previous not in (b"", b"{", b"}", b";", b":", b")"):
            continue
        piece = match.group().rstrip()
        if previous == b")" and not starts_line:
            continue
        end = match.start() + len(piece)
        canvas.put(match.start(), end, rule, canvas.text(match.start(), end))


_PRAGMA = re.compile(rb"^[ \t]*(#[ \t]*pragma\b[^\r\n]*)", re.MULTILINE)
_BODY_FOLLOWS = re.compile(rb"\b(?:else|do)\s*$")


def _apply_inner_pragmas(canvas: Canvas, rule: str) -> None:
    """A pragma between ``for (...)`` and its body, or inside an expression."""
    for match in list(_PRAGMA.finditer(canvas.clean)):
        start, end = match.span(1)
        if canvas.code[start:end].strip():  # inside a comment or a literal the mask differs
            continue
        previous, _ = canvas.before(start)
        if previous in (b"", b";", b"{", b"}", b":") or (
            previous.isalnum() and not _BODY_FOLLOWS.search(canvas.code, max(0, start - 200), start)
        ):
            continue
        canvas.put(start, end, rule, canvas.text(start, end))


_STATEMENT = re.compile(rb"^[ \t]*([A-Za-z_]\w*)", re.MULTILINE)
_BY_CONVENTION = re.compile(rb"[A-Z][A-Z0-9]*_[A-Z0-9_]+|CASE")
_CONTINUES = frozenset(bytes([byte]) for byte in b"{;:,).?+-*/<>=&|([%^")
_FREE_SPACE = re.compile(rb"[ \t]*\r?\n(?:[ \t]*\r?\n)*([ \t])")


def _apply_statement_macros(canvas: Canvas, rule: str) -> None:
    """A macro call on lines of its own without ``;``: end it by ``;`` in the white space behind, else blank it."""
    for match in list(_STATEMENT.finditer(canvas.code)):
        start, end = match.span(1)
        name = match.group(1)
        if not (_BY_CONVENTION.fullmatch(name) or name.decode("ascii", "replace") in canvas.macros):
            continue
        opening = canvas.code.startswith(b"(", end)
        closed = canvas.closing.get(end) if opening else end
        if closed is None:
            continue
        following, ends_line = canvas.after(closed)
        previous, starts_line = canvas.before(start)
        if not ends_line and following:
            continue
        if following in _CONTINUES or previous not in (b"", b";", b"{", b"}", b")", b">", b":"):
            continue
        if previous in (b")", b">") and not starts_line:
            continue
        space = _FREE_SPACE.match(canvas.code, closed)
        if opening and space and previous in (b";", b"{", b"}") and following != b"":
            canvas.put(*space.span(1), rule, "", b";")
        else:
            canvas.put(start, closed, rule, canvas.text(start, closed))


_WRAPPER = re.compile(rb"(?<!\w)([A-Za-z_]\w*)[ \t]*\(")
_BLOCK_ARGUMENT = re.compile(rb"[,(]\s*\{")
_MACRO_CASE = re.compile(rb"[A-Z][A-Z0-9_]{3,}")


def _apply_wrappers(canvas: Canvas, rule: str) -> None:
    """``NAME(a, b, { ... })`` and ``NAME(stmt; stmt;)``: keep the statements, blank the macro around them."""
    for match in list(_WRAPPER.finditer(canvas.code)):
        name = match.group(1)
        if not (_MACRO_CASE.fullmatch(name) or name.decode("ascii", "replace") in canvas.macros):
            continue
        previous, _ = canvas.before(match.start())
        opening = match.end() - 1
        closed = canvas.closing.get(opening) if previous in (b"", b"{", b"}", b";", b":", b")") else None
        if closed is None:
            continue
        inside = bytes(canvas.code[opening : closed - 1])
        body = inside.rstrip()
        block = _BLOCK_ARGUMENT.search(inside)
        if block and body.endswith(b"}"):
            first = opening + block.end() - 1
        elif body.endswith(b";"):
            first = opening + 1
        else:
            continue
        canvas.put(match.start(), first, rule, canvas.text(match.start(), first).strip())
        canvas.put(opening + len(body), closed, rule, ")")


# --- the table ------------------------------------------------------------------------------------------------------

_T = rb"[A-Za-z_]\w*(?:::\w+)*(?:<[^;{}()]{0,200}?>)?(?:::\w+)*"

RULES: tuple[Rule, ...] = (
    Rule(
        "qualifier macro",
        "a macro that stands for qualifiers, attributes, pragmas or nothing hides the declaration behind it",
        "#define HD __host__ __device__\ntemplate <int N> HD float f(float x) { return x; }\n",
        _apply_qualifier_macros,
    ),
    Rule(
        "attribute",
        "attributes are read in few places only; after `__shared__ __align__` the buffer is lost",
        "__global__ void k() { extern __shared__ __align__(16) char s[]; }\n",
        _call(rb"(?<!\w)" + _ATTRIBUTE_CALL.encode() + rb"\s*\("),
    ),
    Rule(
        "device macro",
        "header macros for `__device__ __forceinline__` before the return type are read as the type",
        "CUTLASS_DEVICE\nfloat f(float x) { return x; }\n",
        _group(
            rb"(?<![\w.>:])([A-Z][A-Z0-9]*_(?:HOST_)?(?:DEVICE|GLOBAL)(?:_\w+)?|[A-Z_]*(?:FORCE_?INLINE|ALWAYS_?INLINE)[A-Z_]*|"
            rb"[A-Z]+_HOST)(?=\s+[A-Za-z_~])"
        ),
    ),
    Rule(
        "restrict macro",
        "a header macro for `__restrict__` breaks the declarator",
        "__global__ void k(const float * GGML_CUDA_RESTRICT q) {}\n",
        _group(rb"[*&]\s*((?:[A-Z]+_)*RESTRICT\b)"),
    ),
    Rule(
        "loop prefix",
        "an unroll macro before `for` turns the loop into a declaration, and the loop is lost",
        "__global__ void k(float *o) {\n  UNROLL\n  for (int i = 0; i < 4; ++i) { o[i] = 0; }\n}\n",
        _apply_loop_prefix,
    ),
    Rule(
        "inner pragma",
        "a pragma between `for (...)` and its body takes the body away from the loop",
        "void f(float *o) {\n  for (;;)\n#pragma unroll\n    for (int j = 0; j < 4; ++j) o[j] = 0;\n}\n",
        _apply_inner_pragmas,
    ),
    Rule(
        "stringified macro",
        "a macro between the pieces of a string, as in asm text",
        'void f() { asm volatile("bar.sync " STR(1) ";"); }\n',
        _group(rb'"\s*([A-Za-z_]\w*\s*\([^()"]*\)|[A-Za-z_]\w*(?=\s*"))'),
    ),
    Rule(
        "lambda qualifier",
        "`[=] __device__ (...)` is no lambda to the grammar",
        "void f() { auto g = [=] __device__ (int x) { return x; }; }\n",
        _group(rb"\]\s*((?:__device__|__host__)(?:\s+__device__|\s+__host__)?)(?=\s*[({])"),
    ),
    Rule(
        "typename construct",
        "`typename T::X{}` and `typename T::X(...)` as an expression",
        "template <class T> void f() { g(typename T::X{}); }\n",
        _group(rb"(?:[(,=+\-*/<&|?:!{]|\breturn\b)\s*(typename)\s+(?=" + _T + rb"\s*[{(])"),
    ),
    Rule(
        "typename operand",
        "`sizeof(typename T::X)` and `using typename T::X;`",
        "template <class T> struct S { using typename T::X; };\n",
        _group(rb"\b(?:sizeof\s*\(|using\b)\s*(typename)\b"),
    ),
    Rule(
        "template call",
        "`x.template f(...)` without template arguments",
        "template <class T> void f(T x) { x.template g(1); }\n",
        _group(rb"(?:\.|->)\s*(template\s+)(?=\w+\s*\()"),
    ),
    Rule(
        "comparison in template arguments",
        "`>=` ends the template argument list for the grammar (read as `==`, in the tree only)",
        "using A = std::conditional_t<Arch >= 90, int, float>;\n",
        _group(rb"(?:conditional|enable_if)(?:_t)?\s*<[^;{}]{0,200}?(>=)", b"=="),
    ),
    Rule(
        "statement wrapper",
        "a macro around statements: a dispatch over template constants, a profiling scope",
        "void f() { PROFILE( g(1); h(2); ); }\n",
        _apply_wrappers,
    ),
    Rule(
        "statement macro",
        "a macro call without `;` swallows the next statement",
        "void f(int *x) {\n  CHECK_INPUT(x)\n  x[0] = 1;\n}\n",
        _apply_statement_macros,
    ),
    Rule(
        "extern macro",
        "`extern MACRO(...);` declares explicit instantiations by macro",
        "extern DECL_CASE(576, 512);\n",
        _group(rb"^(extern)\s+(?=[A-Z][A-Z0-9_]+\s*\()"),
    ),
)
