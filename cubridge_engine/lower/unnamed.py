"""Helper functions and constants of the file that an edit took the last mention of."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator

from tree_sitter import Node

from ..source import SourceFile
from .context import Job
from .dead import Dead
from .deleting import deletions
from .liveness import Range

_WORD = re.compile(rb"[A-Za-z_]\w*")
_CONSTANTS = frozenset({"declaration", "field_declaration"})


def unnamed(job: Job, gone: list[Range], named: Collection[str]) -> list[Range]:
    """Ranges to delete: definitions of functions and ``constexpr`` constants whose name now stands nowhere else.
    `gone` are the ranges that are deleted or replaced; `named` what the new text uses.
    """
    lost = list(gone)
    defined = _definitions(job.source)
    found: list[Node] = []
    while True:
        left = _names_outside(job.source, lost)
        dropped = {w for start, end in lost for w in _words(job.source.code[start:end])}
        more = [
            node
            for name, nodes in defined.items()
            if name in dropped and name not in named and left[name] == sum(n for _, n in nodes)
            for node, _ in nodes
            if node not in found and not any(a <= node.start_byte and node.end_byte <= b for a, b in lost)
        ]
        if not more:
            return deletions(job, Dead(tuple(found), (), ())) if found else []
        found += more
        lost += [(n.start_byte, n.end_byte) for n in more]


def _definitions(source: SourceFile) -> dict[str, list[tuple[Node, int]]]:
    """Name -> its definitions, each with how often the name stands in it."""
    found: dict[str, list[tuple[Node, int]]] = {}
    for listed in source.functions().values():
        for f in listed:
            if not f.is_kernel:
                node = f.template or f.node
                found.setdefault(f.name, []).append((node, _count(source, node, f.name)))
    for node in _constants(source.root):
        declarator = node.child_by_field_name("declarator")
        while declarator is not None and declarator.type not in ("identifier", "field_identifier"):
            declarator = declarator.child_by_field_name("declarator")
        if declarator is not None and len(node.children_by_field_name("declarator")) == 1:
            name = source.clean_text(declarator)
            found.setdefault(name, []).append((node, _count(source, node, name)))
    return found


def _constants(root: Node) -> Iterator[Node]:
    """``constexpr`` declarations outside functions."""
    for node in root.named_children:
        words = [c.text or b"" for c in node.children if c.type == "type_qualifier"]
        if node.type in _CONSTANTS and b"constexpr" in words:
            yield node if root.type != "template_declaration" else root
        elif node.type != "function_definition":
            yield from _constants(node)


def _count(source: SourceFile, node: Node, name: str) -> int:
    return _words(source.code[node.start_byte : node.end_byte]).count(name)


def _names_outside(source: SourceFile, lost: list[Range]) -> Counter[str]:
    """How often each name stands in the code (directives too) that stays."""
    code = bytearray(source.code)
    for start, end in lost:
        code[start:end] = b" " * (end - start)
    found = Counter(_words(bytes(code)))
    for macro in source.macros.values():
        found.update(_words(macro.body.encode()))
    return found


def _words(code: bytes) -> list[str]:
    return [w.decode() for w in _WORD.findall(code)]
