"""The user's own functions, methods and members by name: those of the file and of its headers, not the library's."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tree_sitter import Node

from ...source import SourceFile
from ..syntax import Syn, convert
from .table import LIBRARY_FOLDERS

_STRUCTS = ("struct_specifier", "class_specifier")


@dataclass(eq=False, slots=True)
class Defined:
    """A function or method. `owner`: the struct that it is in, '' for a function. `flags`: template parameters, in
    order, with their default as text.
    """

    name: str
    owner: str
    source: SourceFile
    body: Syn
    parameters: list[tuple[str, bool]]  # name, has a default
    flags: list[tuple[str, str]]
    is_kernel: bool
    text: str

    def takes(self, count: int) -> bool:
        """Whether it can be called with `count` arguments."""
        needed = sum(not optional for _, optional in self.parameters)
        return needed <= count <= len(self.parameters)


def last_name(text: str) -> tuple[str, str, str]:
    """``a::b.template f<x, y>`` as what stands before the name (``a::b.``), ``f`` and ``x, y``."""
    text, arguments = text.strip(), ""
    if text.endswith(">") and not text.endswith(("->", "operator>")):
        depth = 0
        for at in range(len(text) - 1, -1, -1):
            depth += (text[at] == ">") - (text[at] == "<")
            if depth == 0:
                text, arguments = text[:at], text[at + 1 : -1]
                break
    found = re.search(r"(operator\(\)|~?\w+)\s*$", text)
    name = found.group(1) if found else ""
    return text[: found.start()].removesuffix("template ") if found else text, name, arguments


def split_arguments(text: str) -> list[str]:
    """Template arguments, without comments, at the top level."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    parts, depth, start = list[str](), 0, 0
    for at, char in enumerate(text):
        depth += (char in "<([{") - (char in ">)]}")
        if char == "," and depth == 0:
            parts.append(text[start:at].strip())
            start = at + 1
    return [*parts, text[start:].strip()] if text.strip() else []


class Definitions:
    """All of them, looked up as they are needed."""

    def __init__(self, source: SourceFile) -> None:
        own = [h.source for h in source.headers if not any(part in h.source.path for part in LIBRARY_FOLDERS)]
        self.sources = [source, *own]
        self._made: dict[str, list[Defined]] = {}
        self.members: dict[str, dict[str, str]] = {}  # struct -> member -> its type as text
        for one in self.sources:
            if b"struct" in one.clean or b"class" in one.clean:
                self._structs(one)

    def all(self) -> list[Defined]:
        """In the order of the files."""
        names = dict.fromkeys(name for source in self.sources for name in source.functions())
        return [one for name in names for one in self.named(name)]

    def named(self, name: str) -> list[Defined]:
        """The definitions of that name."""
        if name not in self._made:
            self._made[name] = [
                _defined(source, f.node, f.body, f.params, f.template, name, f.is_kernel)
                for source in self.sources
                for f in source.functions().get(name, ())
            ]
        return self._made[name]

    def choose(self, name: str, owner: str | None, count: int) -> Defined | None:
        """The one that such a call means: of the struct `owner`, or a free function; None where several could be."""
        fitting = [d for d in self.named(name) if d.takes(count) and (owner is None or d.owner == owner)]
        return fitting[0] if fitting and (len(fitting) == 1 or _alike(fitting)) else None

    def _structs(self, source: SourceFile) -> None:
        stack: list[Node] = [source.root]
        while stack:
            node = stack.pop()
            if node.type in _STRUCTS:
                name = node.child_by_field_name("name")
                body = node.child_by_field_name("body")
                if name is not None and body is not None:
                    _, plain, _ = last_name(source.clean_text(name))
                    self.members.setdefault(plain, {}).update(_fields(convert(body, source.clean)))
            if node.type not in ("compound_statement", "expression_statement", "declaration"):
                stack.extend(node.named_children)


def _alike(found: list[Defined]) -> bool:
    """Specialisations of one struct, and copies of one header, are one definition for our purposes."""
    owners = {d.owner for d in found}
    return len(owners) == 1 and (owners != {""} or len({d.body.text for d in found}) == 1)


def _fields(body: Syn) -> dict[str, str]:
    found: dict[str, str] = {}
    for kid in body.kids:
        declared = kid.get("type")
        if kid.type == "field_declaration" and declared is not None:
            for one in kid.lists.get("declarator", []):
                if one.type == "field_identifier":
                    found[one.text] = declared.text
    return found


def _defined(
    source: SourceFile, node: Node, body: Node, params: Node, template: Node | None, name: str, kernel: bool
) -> Defined:
    owner, around = "", node.parent
    while around is not None:
        if around.type in _STRUCTS:
            named = around.child_by_field_name("name")
            owner = last_name(source.clean_text(named))[1] if named is not None else "?"
            break
        around = around.parent
    parameters = [
        (parameter_name(p), p.get("default_value") is not None)
        for p in convert(params, source.clean).kids
        if p.type.endswith("parameter_declaration")
    ]
    flags: list[tuple[str, str]] = []
    if template is not None:
        listed = template.child_by_field_name("parameters")
        for kid in convert(listed, source.clean).kids if listed is not None else []:
            default = kid.get("default_value") or kid.get("default_type")
            flags.append((parameter_name(kid), default.text if default is not None else ""))
    return Defined(name, owner, source, convert(body, source.clean), parameters, flags, kernel, source.clean_text(body))


def parameter_name(parameter: Syn) -> str:
    """The name that is declared, '' for none."""
    names = [n.text for n in parameter.walk() if n.type == "identifier"]
    if parameter.type.startswith("type_parameter") or parameter.type.startswith("optional_type"):
        names = [n.text for n in parameter.walk() if n.type == "type_identifier"][:1]
    default = parameter.get("default_value")
    if default is not None:
        inside = {id(n) for n in default.walk()}
        names = [n.text for n in parameter.walk() if n.type == "identifier" and id(n) not in inside]
    return names[-1] if names else ""
