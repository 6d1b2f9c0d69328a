"""What an edit leaves without use: local variables of one function, their definitions, and the loops around these.

Only what the edit itself made useless is found: a variable that nothing read before is the author's business.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from tree_sitter import Node

Range = tuple[int, int]
_LOOPS = ("for_statement", "while_statement", "do_statement")
_SCOPES = frozenset({"compound_statement", "for_statement", "if_statement", "while_statement", "lambda_expression"})
_NO_CODE = frozenset({"comment", "preproc_call", "preproc_directive", ";"})


@dataclass(frozen=True, slots=True)
class Variable:
    """A local variable; `start` is the byte of its name where it is declared. `holds` is 'value' (assigned by name),
    'array' (assigned by element), 'pointer' (assigned by name; a store through it is seen by others) or 'other'.
    """

    name: str
    start: int
    holds: str


@dataclass(frozen=True, slots=True)
class Read:
    """One use of a variable. `owner` is the variable whose definition it stands in; None: it has an effect."""

    variable: Variable
    node: Node
    owner: Variable | None


@dataclass
class Uses:
    """Declarations, definitions and reads of the locals of one function body."""

    body: Node
    reads: list[Read] = field(default_factory=list[Read])
    definitions: dict[Variable, list[Node]] = field(default_factory=dict[Variable, list[Node]])

    def variable_at(self, start: int) -> Variable | None:
        """The variable whose name is read, assigned or declared at byte `start`."""
        for variable, nodes in self.definitions.items():
            if variable.start == start or any(_target(n) is not None and _begin(n) == start for n in nodes):
                return variable
        return next((r.variable for r in self.reads if r.node.start_byte == start), None)

    def live(
        self, removed: Iterable[Range], named: Collection[str] = (), kept: Collection[Variable] = ()
    ) -> set[Variable]:
        """Variables that something with an effect depends on, without the removed ranges; `named` are used by name, and
        `kept` stay whatever reads them.
        """
        ranges = list(removed)
        reads = [r for r in self.reads if not _inside(r.node, ranges)]
        found = {r.variable for r in reads if r.owner is None} | {v for v in self.definitions if v.name in named}
        found |= set(kept)
        while True:
            more = {r.variable for r in reads if r.owner in found} - found
            if not more:
                return found
            found |= more


def uses_of(body: Node, text: bytes) -> Uses:
    """Read the body of a function (a compound statement); `text` is the file that the tree was made from."""
    uses = Uses(body)
    _Reader(uses, text).visit(body, {}, None)
    return uses


class _Reader:
    """Walks a body with its scopes."""

    def __init__(self, uses: Uses, text: bytes) -> None:
        self.uses = uses
        self.text = text

    def visit(self, node: Node, scope: dict[str, Variable], owner: Variable | None) -> None:
        if node.type == "declaration":
            self.declaration(node, scope)
        elif node.type == "expression_statement" and self.assignment(node, scope):
            pass
        elif node.type == "identifier":
            variable = scope.get(self.word(node))
            if variable is not None:
                self.uses.reads.append(Read(variable, node, owner))
        elif node.type == "field_expression":
            argument = node.child_by_field_name("argument")
            if argument is not None:
                self.visit(argument, scope, owner)
        else:
            inner = dict(scope) if node.type in _SCOPES else scope
            for child in node.named_children:
                self.visit(child, inner, owner)

    def word(self, node: Node) -> str:
        return self.text[node.start_byte : node.end_byte].decode("utf-8", "replace")

    def declaration(self, node: Node, scope: dict[str, Variable]) -> None:
        shared = b"__shared__" in self.text[node.start_byte : node.end_byte]
        for declarator in node.children_by_field_name("declarator"):
            name, holds = _declared(declarator)
            if name is None:
                self.visit_all(declarator, scope, None)
                continue
            variable = Variable(self.word(name), name.start_byte, "other" if shared else holds)
            self.uses.definitions.setdefault(variable, []).append(declarator)
            scope[variable.name] = variable
            self.visit_parts(declarator, scope, variable, name)

    def visit_parts(self, node: Node, scope: dict[str, Variable], owner: Variable, name: Node) -> None:
        """Array sizes and the initial value: everything of a declarator but the name."""
        for child in node.named_children:
            if child == name:
                continue
            if child.start_byte <= name.start_byte < child.end_byte:
                self.visit_parts(child, scope, owner, name)
            else:
                self.visit(child, scope, owner)

    def visit_all(self, node: Node, scope: dict[str, Variable], owner: Variable | None) -> None:
        for child in node.named_children:
            self.visit(child, scope, owner)

    def assignment(self, statement: Node, scope: dict[str, Variable]) -> bool:
        """Record ``v = ..``, ``v[..] += ..`` or ``++v`` of a local; False when the statement is something else."""
        expression = statement.named_children[0] if statement.named_children else None
        target = _target(expression) if expression is not None else None
        if expression is None or target is None:
            return False
        name = target
        while name.type == "subscript_expression":
            name = name.child_by_field_name("argument") or name.named_children[0]
        variable = scope.get(self.word(name)) if name.type == "identifier" else None
        if variable is None or variable.holds not in (("value", "pointer") if name == target else ("array",)):
            return False
        self.uses.definitions.setdefault(variable, []).append(statement)
        for part in (target, expression.child_by_field_name("right")):
            if part is not None and part != name:
                self.visit_parts(part, scope, variable, name) if part == target else self.visit(part, scope, variable)
        return True


def _target(node: Node) -> Node | None:
    """What a statement or expression assigns."""
    if node.type == "expression_statement":
        return _target(node.named_children[0]) if node.named_children else None
    if node.type == "assignment_expression":
        return node.child_by_field_name("left")
    return node.child_by_field_name("argument") if node.type == "update_expression" else None


def _begin(node: Node) -> int:
    target = _target(node)
    return -1 if target is None else target.start_byte


def _declared(declarator: Node) -> tuple[Node | None, str]:
    """(name, what the variable holds) of a declarator."""
    holds = "value"
    node: Node | None = declarator
    while node is not None and node.type != "identifier":
        if node.type == "array_declarator":
            holds = "array" if holds != "pointer" else "other"
        elif node.type == "pointer_declarator":
            holds = "pointer" if holds == "value" else "other"
        elif node.type not in ("init_declarator", "parenthesized_declarator"):
            return None, "other"
        node = node.child_by_field_name("declarator") or next(
            (c for c in node.named_children if c.type.endswith("declarator") or c.type == "identifier"), None
        )
    return node, holds


def _inside(node: Node, ranges: list[Range]) -> bool:
    return any(start <= node.start_byte and node.end_byte <= end for start, end in ranges)


# ---- what goes -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Dead:
    """Statements to remove (outermost ones), declarators to take out of declarations that stay, and the names of the
    variables that are gone with them.
    """

    statements: tuple[Node, ...]
    declarators: tuple[Node, ...]
    names: frozenset[str]


def dead_code(uses: Uses, removed: Iterable[Node], replaced: Iterable[Range], named: Collection[str]) -> Dead:
    """What is without use once the statements `removed` are gone and the ranges `replaced` hold other text, which uses
    the names `named`.
    """
    before = uses.live(())
    useless = set(uses.definitions) - before  # and so it stays: what it reads must stay too
    gone = list(removed)
    changed = list(replaced)
    while True:
        statements = _outermost(uses.body, {(n.start_byte, n.end_byte) for n in gone})
        live = uses.live([*((n.start_byte, n.end_byte) for n in statements), *changed], named, useless)
        dead = {v for v in before - live if v.holds != "other"}
        whole, parts = _definitions(uses.definitions, dead)
        more = [n for n in whole if n not in gone]
        if not more:
            kept = {v.name for v in live}
            names = frozenset(v.name for v in dead if not _counts(v, uses.body))
            return Dead(tuple(statements), tuple(parts), names - kept)
        gone += more


def _counts(variable: Variable, body: Node) -> bool:
    """True for a variable of a loop's header: its name says nothing about what is gone."""
    node = body.descendant_for_byte_range(variable.start, variable.start + 1)
    while node is not None and node.type != "declaration":
        node = node.parent
    return node is not None and node.parent is not None and node.parent.type in _LOOPS


def _definitions(definitions: Mapping[Variable, list[Node]], dead: set[Variable]) -> tuple[list[Node], list[Node]]:
    """(statements, single declarators) that define dead variables."""
    whole: list[Node] = []
    parts: list[Node] = []
    lost = {n.start_byte for v in dead for n in definitions[v]}
    for variable in dead:
        for node in definitions[variable]:
            parent = node.parent
            if node.type == "expression_statement" or parent is None:
                whole.append(node)
            elif all(d.start_byte in lost for d in parent.children_by_field_name("declarator")):
                whole.append(parent)
            else:
                parts.append(node)
    return whole, parts


def _outermost(body: Node, gone: set[Range]) -> list[Node]:
    """The largest statements that consist of removed ones only."""
    found: list[Node] = []

    def visit(node: Node) -> None:
        if is_gone(node):
            found.append(node)
            return
        for child in node.named_children:
            visit(child)

    def is_gone(node: Node | None) -> bool:
        if node is None:
            return False
        if (node.start_byte, node.end_byte) in gone and node.type != "compound_statement":
            return True
        if node.type == "compound_statement":
            code = [c for c in node.named_children if c.type not in _NO_CODE]
            return bool(code) and all(is_gone(c) for c in code)
        if node.type in _LOOPS:
            return is_gone(node.child_by_field_name("body"))
        if node.type == "if_statement":
            other = node.child_by_field_name("alternative")
            other = other.named_children[0] if other is not None and other.type == "else_clause" else other
            quiet = not _calls(node.child_by_field_name("condition"))
            return quiet and is_gone(node.child_by_field_name("consequence")) and (other is None or is_gone(other))
        return False

    for child in body.named_children:
        visit(child)
    return found


def _calls(node: Node | None) -> bool:
    """True when an expression calls something: it may have an effect."""
    return node is not None and (node.type == "call_expression" or any(_calls(c) for c in node.named_children))
