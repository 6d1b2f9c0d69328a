"""`SourceFile`: one CUDA file as read: its bytes, its syntax tree, and what was left out on the way."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice, takewhile

from tree_sitter import Node, Tree, TreeCursor

from cubridge_engine.diagnostics import Diagnostic, Span

from .preprocessor import Include, Macro
from .sanitise import RULES, Edit
from .text_index import TextIndex

_REASONS = {
    "conditional directive": "a directive that chooses a branch",
    "untaken branch": "the branch of an #if that is not compiled under the present definitions",
    **{rule.name: rule.reason for rule in RULES},
}


@dataclass(frozen=True, slots=True)
class Blanked:
    """A range that the grammar did not see: `rule` names the reason's row, `why` says it, `value` is what stood there
    as far as a reader may need it (the text of an attribute, the expansion of a macro, the condition of a branch)."""

    span: Span
    why: str
    value: str
    rule: str


@dataclass(frozen=True, eq=False)
class Function:
    """A function definition. `params` is its ``parameter_list``, `body` its ``compound_statement``.

    `name` is the last part of `qualified_name`; `template` the enclosing ``template_declaration``; `qualifiers` the
    CUDA and storage words before the name (``__global__``, ``static``); `attributes` maps attribute names to argument
    text (``{"__launch_bounds__": "128, 2"}``).
    """

    node: Node
    name: str
    qualified_name: str
    params: Node
    body: Node
    template: Node | None
    qualifiers: frozenset[str]
    attributes: Mapping[str, str]

    @property
    def is_kernel(self) -> bool:
        """True for a ``__global__`` function."""
        return "__global__" in self.qualifiers


@dataclass(frozen=True, eq=False)
class Launch:
    """``kernel<template_args><<<grid, block, shared, stream>>>(args)``; `node` is the whole call expression."""

    node: Node
    kernel: str
    template_args: tuple[Node, ...]
    grid: Node | None
    block: Node | None
    shared: Node | None
    stream: Node | None
    args: tuple[Node, ...]


@dataclass(frozen=True, eq=False)
class Header:
    """A header that was read along, and the byte range of the ``#include`` in the main file that led to it."""

    source: SourceFile
    at: tuple[int, int]


@dataclass(frozen=True, eq=False)
class SourceFile:
    """One file. `data`: the user's bytes; `clean`: same length, what the grammar saw; `code`: `clean` without comments,
    literal contents and directives; `macros` and `includes`: those of the branches that are read."""

    path: str
    data: bytes
    clean: bytes
    code: bytes
    tree: Tree
    index: TextIndex
    edits: tuple[Edit, ...]
    macros: Mapping[str, Macro]
    includes: tuple[Include, ...]
    diagnostics: tuple[Diagnostic, ...] = ()
    headers: tuple[Header, ...] = ()  # read along (`with_includes`); their macros are among `macros`
    missing: tuple[Diagnostic, ...] = ()  # a note for each header that was not read

    @property
    def root(self) -> Node:
        """The ``translation_unit`` (an ``ERROR`` node when the file is not C++ at all)."""
        return self.tree.root_node

    @cached_property
    def blanked(self) -> tuple[Blanked, ...]:
        """Every range that the grammar did not see, in order."""
        return tuple(Blanked(self.span_of(e.start, e.end), _REASONS[e.rule], e.value, e.rule) for e in self.edits)

    @cached_property
    def defines_seen(self) -> dict[str, str]:
        """Macro name -> replacement text; of a function-like macro ``(a, b) replacement``."""
        return {
            name: macro.body if macro.params is None else f"({', '.join(macro.params)}) {macro.body}"
            for name, macro in self.macros.items()
        }

    def with_diagnostics(self, found: tuple[Diagnostic, ...]) -> SourceFile:
        """The same file with these diagnostics; what was looked up in the tree is not looked up again."""
        known = {name: value for name, value in vars(self).items() if name in ("_functions", "_landmarks")}
        result = replace(self, diagnostics=found)
        vars(result).update(known)
        return result

    # --- places and text ---

    def span_of(self, start: int, end: int) -> Span:
        """The span of the byte range ``[start, end)``, clamped to the file."""
        start = min(max(start, 0), len(self.data))
        end = min(max(end, start), len(self.data))
        return Span(self.path, start, end, *self.index.locate(start), *self.index.locate(end))

    def span(self, node: Node) -> Span:
        """The span of `node`."""
        return self.span_of(node.start_byte, node.end_byte)

    def text(self, node: Node) -> str:
        """The user's own text of `node`, blanked parts included; bytes that are not UTF-8 become U+FFFD."""
        return self.data[node.start_byte : node.end_byte].decode("utf-8", "replace")

    def clean_text(self, node: Node) -> str:
        """The text of `node` as the grammar saw it."""
        return self.clean[node.start_byte : node.end_byte].decode("utf-8", "replace")

    def line_start(self, line: int) -> int:
        """Byte offset of the first byte of the 0-based `line`."""
        return self.index.line_start(line)

    # --- what is in the file ---

    def functions(self) -> dict[str, tuple[Function, ...]]:
        """All function definitions (methods and templates too) by name, in the order of the file."""
        by_name: dict[str, tuple[Function, ...]] = {}
        for function in self._functions:
            by_name[function.name] = (*by_name.get(function.name, ()), function)
        return by_name

    def kernels(self) -> list[Function]:
        """The ``__global__`` functions that have a body, in the order of the file."""
        return [function for function in self._functions if function.is_kernel]

    def launches(self) -> list[Launch]:
        """The ``<<<...>>>`` launches, in the order of the file."""
        found = (self._launch(node) for node in self._landmarks["kernel_call_syntax"])
        return [launch for launch in found if launch is not None]

    def error_ranges(self, node: Node) -> list[tuple[int, int]]:
        """Outermost unread ranges below `node`; a missing token is an empty range."""
        return list(_unread(node)) if node.has_error else []

    def error_share(self, node: Node) -> float:
        """Share of the bytes of `node` that is unread, 0 to 1; a missing token counts as one byte."""
        size = max(1, node.end_byte - node.start_byte)
        return min(1.0, sum(max(1, end - start) for start, end in self.error_ranges(node)) / size)

    # --- helpers ---

    @cached_property
    def _functions(self) -> tuple[Function, ...]:
        found = (self._function(node) for node in self._landmarks["function_definition"])
        return tuple(function for function in found if function is not None)

    @cached_property
    def _landmarks(self) -> dict[str, list[Node]]:
        """The nodes of the types looked for, in the order of the file: one walk, linear even for very deep trees."""
        found: dict[str, list[Node]] = {"function_definition": [], "kernel_call_syntax": []}
        for cursor in _walk(self.root, lambda _: True):
            if (node := cursor.node) is not None and node.type in found:
                found[node.type].append(node)
        return found

    def _function(self, node: Node) -> Function | None:
        declarator = node.child_by_field_name("declarator")
        while declarator is not None and declarator.type != "function_declarator":
            declarator = declarator.child_by_field_name("declarator") or _last_named(declarator, "declarator")
        body = node.child_by_field_name("body")
        params = declarator.child_by_field_name("parameters") if declarator else None
        name = declarator.child_by_field_name("declarator") if declarator else None
        if body is None or params is None or name is None or body.type != "compound_statement":
            return None
        qualified = self.clean_text(name)
        while name.type in ("qualified_identifier", "template_function") and (
            inner := name.child_by_field_name("name")
        ):
            name = inner
        template = node.parent if node.parent and node.parent.type == "template_declaration" else None
        qualifiers, attributes = self._header(node, body)
        return Function(node, self.clean_text(name), qualified, params, body, template, qualifiers, attributes)

    def _header(self, node: Node, body: Node) -> tuple[frozenset[str], dict[str, str]]:
        """Qualifiers and attributes of a definition, from its tokens and from what was blanked before its body."""
        words = {self.clean_text(child) for child in node.children if child.type in _QUALIFIER_TYPES}
        attributes: dict[str, str] = {}
        previous = node.prev_sibling
        start = previous.end_byte if previous else node.parent.start_byte if node.parent else 0
        for edit in self._edits_between(start, body.start_byte):
            if edit.rule not in _HEADER_RULES:
                continue
            for name, argument in _pieces(edit.value):
                if argument is None:
                    words.add(name)
                else:
                    attributes[name] = argument
        return frozenset(words), attributes

    def _edits_between(self, start: int, end: int) -> Iterator[Edit]:
        first = bisect_left(self.edits, start, key=lambda edit: edit.start)
        return takewhile(lambda edit: edit.end <= end, islice(self.edits, first, None))

    def _launch(self, node: Node) -> Launch | None:
        call = node.parent
        function = call.child_by_field_name("function") if call else None
        arguments = call.child_by_field_name("arguments") if call else None
        if call is None or function is None or arguments is None:
            return None
        while function.type == "qualified_identifier" and (inner := function.child_by_field_name("name")):
            function = inner
        name = function.child_by_field_name("name") if function.type == "template_function" else function
        given = function.child_by_field_name("arguments") if function.type == "template_function" else None
        grid, block, shared, stream, *_ = (*_values(node), None, None, None, None)
        return Launch(
            call,
            self.clean_text(name or function),
            tuple(_values(given)) if given else (),
            grid,
            block,
            shared,
            stream,
            tuple(_values(arguments)),
        )


_HEADER_RULES = frozenset({"qualifier macro", "attribute", "device macro"})
_QUALIFIER_TYPES = frozenset(
    {"__global__", "__device__", "__host__", "__forceinline__", "__noinline__", "storage_class_specifier"}
)


def _last_named(node: Node, ending: str) -> Node | None:
    """The declarator inside a ``reference_declarator``, which has no field name for it."""
    return next((child for child in reversed(node.named_children) if child.type.endswith(ending)), None)


def _values(node: Node) -> list[Node]:
    return [child for child in node.named_children if child.type != "comment" and not child.is_error]


def _pieces(text: str) -> Iterator[tuple[str, str | None]]:
    """(word, None) and (name, argument text) of a string of qualifiers and attributes."""
    at = 0
    while at < len(text):
        end = at
        while end < len(text) and (text[end].isalnum() or text[end] == "_"):
            end += 1
        name, at = text[at:end], max(end, at + 1)
        if not name:
            continue
        rest = text[end:].lstrip()
        if not rest.startswith("("):
            yield name, None
            continue
        opening = text.index("(", end)
        depth, close = 0, opening
        while close < len(text):
            depth += {"(": 1, ")": -1}.get(text[close], 0)
            close += 1
            if depth == 0:
                break
        yield name, text[opening + 1 : close - 1].strip()
        at = close


def _walk(node: Node, enter: Callable[[Node], bool]) -> Iterator[TreeCursor]:
    """Pre-order walk below and including `node`; the children of a node are visited when `enter` says so."""
    cursor = node.walk()
    while True:
        yield cursor
        current = cursor.node
        if current is not None and enter(current) and cursor.goto_first_child():
            continue
        while not cursor.goto_next_sibling():
            if not cursor.goto_parent():
                return


def _unread(node: Node) -> Iterator[tuple[int, int]]:
    """Ranges of the outermost ERROR nodes and of the missing tokens."""
    for cursor in _walk(node, lambda n: n.has_error and not n.is_error):
        current = cursor.node
        if current is not None and (current.is_error or current.is_missing):
            yield current.start_byte, current.end_byte
