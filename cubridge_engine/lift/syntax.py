"""A light copy of the syntax tree: walking tree-sitter nodes from Python is what would cost most of the time of a
lift.
"""

from __future__ import annotations

from collections.abc import Iterator

import tree_sitter_cuda
from tree_sitter import Language, Node, Parser

_SKIPPED = frozenset({"comment"})
_KEPT_TOKENS = frozenset(
    {"binary_expression", "assignment_expression", "unary_expression", "update_expression", "pointer_expression"}
)


class Syn:
    """One syntax node: `kids` are its named children without comments, `fields` the children that have a field name.

    `start` and `end` are byte offsets in the user's file; of text that came out of a macro they are those of the
    macro's use.
    `op` is the operator of an expression, '' for other nodes.
    """

    __slots__ = ("end", "fields", "kids", "lists", "op", "start", "text", "type")

    def __init__(self, kind: str, text: str, start: int, end: int) -> None:
        self.type = kind
        self.text = text
        self.start = start
        self.end = end
        self.op = ""
        self.kids: list[Syn] = []
        self.fields: dict[str, Syn] = {}
        self.lists: dict[str, list[Syn]] = {}

    def get(self, name: str) -> Syn | None:
        """The child with that field name."""
        return self.fields.get(name)

    def walk(self) -> Iterator[Syn]:
        """This node and all below it, in order."""
        stack: list[Syn] = [self]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(reversed(node.kids))

    def __repr__(self) -> str:
        return f"<{self.type} {self.text[:40]!r}>"


def convert(node: Node, data: bytes, *, at: tuple[int, int] | None = None) -> Syn:
    """Copy the tree below `node`. `at` overrides all offsets (for macro expansions)."""
    start, end = at or (node.start_byte, node.end_byte)
    syn = Syn(node.type, data[node.start_byte : node.end_byte].decode("utf-8", "replace"), start, end)
    cursor = node.walk()
    if not cursor.goto_first_child():
        return syn
    tokens = node.type in _KEPT_TOKENS
    while True:
        child = cursor.node
        assert child is not None
        name = cursor.field_name
        if child.is_named and child.type not in _SKIPPED:
            kid = convert(child, data, at=at)
            syn.kids.append(kid)
            if name:
                syn.fields.setdefault(name, kid)
                syn.lists.setdefault(name, []).append(kid)
        elif tokens and name == "operator":
            syn.op = child.type
        if not cursor.goto_next_sibling():
            return syn


_PARSER = Parser(Language(tree_sitter_cuda.language()))


def parse_fragment(text: str, at: tuple[int, int]) -> Syn | None:
    """Statements given as text (the expansion of a macro), as one compound statement at the offsets `at`; None if
    unreadable.
    """
    data = f"void f() {{ {text} ; }}".encode()
    root = _PARSER.parse(data).root_node
    if root.has_error:
        return None
    function = next((n for n in root.named_children if n.type == "function_definition"), None)
    body = function.child_by_field_name("body") if function else None
    return convert(body, data, at=at) if body else None
