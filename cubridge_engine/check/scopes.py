"""The declarations of a device function: which names are there at a place, and of what type."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tree_sitter import Node

from ..source import Function, SourceFile

_BLOCKS = ("compound_statement", "for_statement", "function_definition", "lambda_expression")
LOOPS = ("for_statement", "while_statement", "do_statement")
FLOATS = ("float", "double", "half", "auto", "__half")


@dataclass(frozen=True, slots=True)
class Declared:
    """A variable: its type in words, its value where it is given one, and the bytes in which it can be named."""

    name: str
    type: str
    value: Node | None
    node: Node
    start: int
    end: int
    plain: bool  # no array, pointer or reference
    loop: Node | None  # the innermost loop around the declaration

    @property
    def floating(self) -> bool:
        """True where it holds numbers of the computation, not sizes."""
        return any(word in self.type.replace("const", " ").split() for word in FLOATS) or "float" in self.type


def every_node(node: Node) -> Iterator[Node]:
    """A node and all below it, in the order of the text."""
    stack = [node]
    while stack:
        found = stack.pop()
        yield found
        stack.extend(reversed(found.named_children))


def around(node: Node | None, *types: str) -> Node | None:
    """The innermost node of some types around `node`, itself not counted."""
    node = node.parent if node is not None else None
    while node is not None and node.type not in types:
        node = node.parent
    return node


def root_name(source: SourceFile, node: Node | None) -> str:
    """The variable that an expression names an element of: ``o[i][0]`` is of ``o``; '' for anything else."""
    while node is not None and node.type in ("subscript_expression", "parenthesized_expression", "field_expression"):
        node = node.child_by_field_name("argument") or (node.named_children[0] if node.named_children else None)
    return source.clean_text(node) if node is not None and node.type == "identifier" else ""


@dataclass(slots=True)
class Scope:
    """What a function declares."""

    source: SourceFile
    function: Function
    declared: list[Declared] = field(default_factory=list[Declared])
    assigned: dict[str, list[Node]] = field(default_factory=dict[str, list[Node]])

    def __post_init__(self) -> None:
        for node in every_node(self.function.params):
            if node.type in ("parameter_declaration", "optional_parameter_declaration"):
                self._declare(node, node.child_by_field_name("declarator"), None, self.function.body.end_byte)
        for node in every_node(self.function.body):
            if node.type == "declaration":
                block = around(node, *_BLOCKS)
                end = block.end_byte if block is not None else self.function.body.end_byte
                for child in node.children_by_field_name("declarator"):
                    value = child.child_by_field_name("value") if child.type == "init_declarator" else None
                    inner = child.child_by_field_name("declarator") if child.type == "init_declarator" else child
                    self._declare(node, inner, value, end)
            elif node.type in ("assignment_expression", "update_expression"):
                target = node.child_by_field_name("left") or node.child_by_field_name("argument")
                self.assigned.setdefault(root_name(self.source, target), []).append(node)

    def _declare(self, node: Node, inner: Node | None, value: Node | None, end: int) -> None:
        kind = node.child_by_field_name("type")
        plain = inner is not None and inner.type == "identifier"
        while inner is not None and inner.type != "identifier":
            inner = inner.child_by_field_name("declarator") or (
                inner.named_children[-1] if inner.named_children else None
            )
        if inner is not None and kind is not None:
            name, words = self.source.clean_text(inner), self.source.clean_text(kind)
            start = (value or inner).end_byte
            self.declared.append(Declared(name, words, value, node, start, end, plain, around(node, *LOOPS)))

    def at(self, place: int) -> dict[str, Declared]:
        """What can be named at a byte, the inner ones winning."""
        return {d.name: d for d in self.declared if d.start <= place < d.end}

    def floating(self, name: str, place: int) -> bool:
        """True for a variable of numbers at a byte."""
        found = self.at(place).get(name)
        return found is not None and found.floating
