"""Functions that a file defines by macros: ``DEFINE_PRODUCT(half, 64);`` at file level.

The use is expanded as the preprocessor would (``#x``, ``a##b``, macros in macros) and parsed; every offset in such a
definition is that of the use.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..source import Function, SourceFile, parse

if TYPE_CHECKING:
    from tree_sitter import Node

_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|[A-Za-z_]\w*|\d[\w.]*|##?|\s+|.', re.S)
_MOST_ROUNDS = 16
_LONGEST = 60_000  # characters of an expansion


def definitions(source: SourceFile) -> Iterator[tuple[Function, bytes, tuple[int, int]]]:
    """(function, the text it is in, byte range of the macro's use) of each."""
    for node in source.root.named_children:
        call = node.named_children[0] if node.type == "expression_statement" and node.named_children else node
        name = call.child_by_field_name("function") if call.type == "call_expression" else None
        macro = source.macros.get(source.clean_text(name)) if name is not None else None
        if macro is None or macro.params is None or "{" not in macro.body:
            continue
        text = _expanded(source, source.text(call))
        if len(text) > _LONGEST:
            continue
        expansion = parse("expansion", text.encode())
        for functions in expansion.functions().values():
            for function in functions:
                yield function, expansion.clean, _range(call)


def _range(node: Node) -> tuple[int, int]:
    return node.start_byte, node.end_byte


def _expanded(source: SourceFile, text: str) -> str:
    for _ in range(_MOST_ROUNDS):
        once = _once(source, text)
        if once == text or len(once) > _LONGEST:
            break
        text = once
    return text


def _once(source: SourceFile, text: str) -> str:
    """The text with the macros in it replaced, outermost first."""
    tokens = _TOKEN.findall(text)
    result: list[str] = []
    at = 0
    while at < len(tokens):
        macro = source.macros.get(tokens[at])
        if macro is None:
            result.append(tokens[at])
            at += 1
        elif macro.params is None:
            result.append(macro.body)
            at += 1
        else:
            call = macro_arguments(tokens, at + 1)
            if call is None or len(call[0]) != len(macro.params):
                result.append(tokens[at])
                at += 1
                continue
            given = dict(zip((p.strip() for p in macro.params), call[0], strict=True))
            result.append(_substituted(macro.body, given))
            at = call[1]
    return "".join(result)


def _substituted(body: str, given: dict[str, str]) -> str:
    """A macro's body with its arguments, ``#`` and ``##`` carried out."""
    tokens: list[str] = _TOKEN.findall(body.replace("\\\n", " "))
    result: list[str] = []
    at = 0
    while at < len(tokens):
        token = tokens[at]
        if token == "#" and at + 1 < len(tokens) and tokens[at + 1] in given:
            result.append('"' + given[tokens[at + 1]].replace("\\", "\\\\").replace('"', '\\"') + '"')
            at += 2
            continue
        if token == "##":
            while result and result[-1].isspace():
                result.pop()
            while at + 1 < len(tokens) and tokens[at + 1].isspace():
                at += 1
        else:
            result.append(given.get(token, token))
        at += 1
    return "".join(result)


def macro_arguments(tokens: list[str], at: int) -> tuple[list[str], int] | None:
    """The arguments of a call whose parenthesis stands at `at`, and the place behind it."""
    while at < len(tokens) and tokens[at].isspace():
        at += 1
    if at >= len(tokens) or tokens[at] != "(":
        return None
    depth, found = 0, [""]
    for place in range(at, len(tokens)):
        token = tokens[place]
        depth += (token in "([{") - (token in ")]}")
        if depth == 0:
            return [argument.strip() for argument in found], place + 1
        if token == "," and depth == 1:
            found.append("")
        elif place > at:
            found[-1] += token
    return None
