"""The signature of a kernel and of a host function, read from the syntax: names and types of parameters."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tree_sitter import Node

from ..compile.c_types import contract_type
from ..diagnostics import Span
from ..source import Function, SourceFile

_NOT_A_TYPE = re.compile(
    r"\b(const|volatile|restrict|__restrict__|__restrict|__grid_constant__|struct|typename|register)\b"
)
_WORD = re.compile(r"[A-Za-z_]\w*$")


@dataclass(frozen=True, slots=True)
class Argument:
    """A parameter: its name ('' when it has none), C++ type without qualifiers, and the contract's word for it.
    `kind` is a contract type, or ``struct`` for what is passed by value and is no number.
    """

    name: str
    ctype: str
    kind: str
    span: Span


@dataclass(frozen=True, slots=True)
class Template:
    """A template parameter: ``int D``, ``typename T``. `kind` is its type, `default` its default as text."""

    name: str
    kind: str
    default: str = ""


@dataclass(frozen=True, slots=True)
class Signature:
    """A function's name with its namespaces, its parameters and template parameters."""

    name: str
    qualified: str
    arguments: tuple[Argument, ...]
    templates: tuple[Template, ...]
    span: Span


def signature_of(source: SourceFile, function: Function) -> Signature:
    """Read the parameters of a function."""
    templates = _templates(source, function)
    names = {t.name for t in templates}
    rows = [n for n in function.params.named_children if n.type.endswith("parameter_declaration")]
    arguments = tuple(_argument(source, row, names) for row in rows if source.clean_text(row).strip() != "void")
    return Signature(function.name, qualified_name(source, function), arguments, templates, source.span(function.node))


def qualified_name(source: SourceFile, function: Function) -> str:
    """``ns::name``; unnamed namespaces leave no trace in it."""
    parts: list[str] = []
    node = function.node.parent
    while node is not None:
        if node.type == "namespace_definition" and (name := node.child_by_field_name("name")) is not None:
            parts.append(source.clean_text(name))
        node = node.parent
    return "::".join((*reversed(parts), function.name))


def _argument(source: SourceFile, row: Node, templates: set[str]) -> Argument:
    text = source.clean_text(row).partition("=")[0]
    declarator = row.child_by_field_name("declarator")
    name_node = _name(declarator)
    name = source.clean_text(name_node) if name_node is not None else ""
    if name_node is not None:
        start = name_node.start_byte - row.start_byte
        text = text[:start] + text[start + len(name) :]
    text = re.sub(r"\[[^\]]*\]", "*", text)
    ctype = " ".join(_NOT_A_TYPE.sub(" ", text).split()).replace(" *", "*").replace(" &", "&").strip()
    return Argument(name, ctype, contract_type(ctype, templates), source.span(row))


def _name(node: Node | None) -> Node | None:
    while node is not None and node.type not in ("identifier", "field_identifier"):
        inner = node.child_by_field_name("declarator")
        endings = ("declarator", "identifier")
        node = inner or next((c for c in reversed(node.named_children) if c.type.endswith(endings)), None)
    return node


def _templates(source: SourceFile, function: Function) -> tuple[Template, ...]:
    if function.template is None:
        return ()
    parameters = function.template.child_by_field_name("parameters")
    found: list[Template] = []
    for row in parameters.named_children if parameters is not None else ():
        text, _, default = source.clean_text(row).partition("=")
        words = text.replace("...", " ").split()
        if len(words) >= 2 and _WORD.match(words[-1]):
            found.append(Template(words[-1], " ".join(words[:-1]), default.strip()))
    return tuple(found)
