"""What goes with an edit: statements whose variables nothing needs any more, calls of functions that are left empty,
functions that nobody calls any more, and the parameters and arguments that only these had.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from tree_sitter import Node

from .liveness import LISTED, LOOPS, NO_CODE, Callee, Range, Uses, Variable, has_call, is_inside


@dataclass(frozen=True)
class Dead:
    """Statements and functions to remove (outermost ones), parts to take out of lists that stay (declarators,
    parameters, arguments, operands), and the variables that are gone with them, by name.
    """

    statements: tuple[Node, ...]
    parts: tuple[Node, ...]
    variables: tuple[Variable, ...]

    @property
    def names(self) -> frozenset[str]:
        """The names that nothing has any more."""
        return frozenset(v.name for v in self.variables)


def dead_code(
    uses: Uses, removed: Iterable[Node], replaced: Iterable[Range], named: Mapping[str, Collection[int]]
) -> Dead:
    """What is without use once the statements `removed` are gone and the ranges `replaced` hold other text. `named` are
    the names that new text uses, with the places of that text.
    """
    before = uses.live((), {})
    useless = set(uses.definitions) - before  # and so it stays: what it reads must stay too
    gone = list(removed)
    changed = list(replaced)
    while True:
        going = _Going({(n.start_byte, n.end_byte) for n in gone})
        members = [n for n in gone if n.type == "field_declaration"]
        statements = [*going.outermost(uses.bodies), *_unused_functions(uses, gone, named), *members]
        ranges = [(n.start_byte, n.end_byte) for n in statements]
        live = uses.live([*ranges, *changed], named, useless)
        dead = {v for v in before - live if v.holds != "other"}
        whole, parts = _definitions(uses, dead)
        more = [n for n in (*whole, *_empty_calls(uses, going, gone)) if n not in gone]
        if not more:
            kept = {v.name for v in live}
            told = (v for v in dead if v.name not in kept and not _counts(v, uses))
            parts = [p for p in parts if not is_inside(p, ranges)]
            return Dead(tuple(_outer(statements)), tuple(parts), tuple(sorted(told, key=lambda v: v.start)))
        gone += more


def _counts(variable: Variable, uses: Uses) -> bool:
    """True for a variable of a loop's header: its name says nothing about what is gone."""
    root = uses.bodies[0]
    while root.parent is not None:
        root = root.parent
    node = root.descendant_for_byte_range(variable.start, variable.start + 1)
    while node is not None and node.type != "declaration":
        node = node.parent
    return node is not None and node.parent is not None and node.parent.type in LOOPS


def _outer(nodes: list[Node]) -> list[Node]:
    """Those that lie in no other one."""
    found: list[Node] = []
    for node in sorted(nodes, key=lambda n: (n.start_byte, -n.end_byte)):
        if not found or node.start_byte >= found[-1].end_byte:
            found.append(node)
    return found


# ---- variables


def _definitions(uses: Uses, dead: set[Variable]) -> tuple[list[Node], list[Node]]:
    """(statements, single parts of lists) that define dead variables."""
    whole: list[Node] = []
    parts: list[Node] = []
    lost = {(n.start_byte, n.end_byte) for v in dead for n in uses.definitions[v]}
    for node in (n for variable in dead for n in uses.definitions[variable]):
        parent = node.parent
        if node.type == "expression_statement" or parent is None:
            whole.append(node)
        elif parent.type in LISTED:
            alone = parent.type == "gnu_asm_output_operand_list" and _all_lost(parent.named_children, lost)
            statement = parent.parent.parent if alone and parent.parent is not None else None
            if statement is not None:
                whole.append(statement)
            else:
                parts.append(node)
        elif _all_lost(parent.children_by_field_name("declarator"), lost):
            whole.append(parent)
        else:
            parts.append(node)
    return whole, parts


def _all_lost(nodes: list[Node], lost: set[Range]) -> bool:
    return all((n.start_byte, n.end_byte) in lost for n in nodes)


# ---- functions


def _empty_calls(uses: Uses, going: _Going, gone: list[Node]) -> list[Node]:
    """Calls, as statements, of functions of which nothing is left."""
    found: list[Node] = []
    for callee in uses.callees.values():
        if not going.takes_all(callee.body) or not _lost_something(callee, gone):
            continue
        found += [c.parent for c in uses.calls.get(callee.name, ()) if c.parent is not None and _is_statement(c)]
    return found


def _lost_something(callee: Callee, gone: list[Node]) -> bool:
    body = callee.body
    return any(body.start_byte < n.start_byte and n.end_byte < body.end_byte for n in gone)


def _is_statement(call: Node) -> bool:
    return call.parent is not None and call.parent.type == "expression_statement"


def _unused_functions(uses: Uses, gone: list[Node], named: Collection[str]) -> list[Node]:
    """The definitions of functions all of whose calls are gone, and that new text does not call."""
    found: list[Node] = []
    while True:
        ranges = [(n.start_byte, n.end_byte) for n in (*gone, *found)]
        more = [
            callee.definition
            for name, callee in uses.callees.items()
            if callee.definition not in found
            and name not in named
            and uses.calls.get(name)
            and all(is_inside(c, ranges) for c in uses.calls[name])
        ]
        if not more:
            return found
        found += more


@dataclass(frozen=True)
class _Going:
    """Which statements consist of removed ones only."""

    gone: set[Range]

    def outermost(self, bodies: Iterable[Node]) -> list[Node]:
        """The largest statements of these bodies that do."""
        found: list[Node] = []

        def visit(node: Node) -> None:
            if self.takes(node):
                found.append(node)
                return
            for child in node.named_children:
                visit(child)

        for body in bodies:
            for child in body.named_children:
                visit(child)
        return found

    def takes_all(self, body: Node) -> bool:
        """True when nothing of a block is left."""
        code = [c for c in body.named_children if c.type not in NO_CODE]
        return bool(code) and all(self.takes(c) for c in code)

    def takes(self, node: Node | None) -> bool:
        if node is None:
            return False
        if (node.start_byte, node.end_byte) in self.gone and node.type != "compound_statement":
            return True
        if node.type == "compound_statement":
            return self.takes_all(node)
        if node.type in LOOPS:
            return self.takes(node.child_by_field_name("body"))
        if node.type == "if_statement":
            other = node.child_by_field_name("alternative")
            other = other.named_children[0] if other is not None and other.type == "else_clause" else other
            quiet = not has_call(node.child_by_field_name("condition"))
            taken = self.takes(node.child_by_field_name("consequence"))
            return quiet and taken and (other is None or self.takes(other))
        return False
