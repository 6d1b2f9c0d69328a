"""What an edit leaves without use: variables, their definitions, the loops around these, and functions left empty.

Only what the edit itself made useless is found: a variable that nothing read before is the author's business. Calls of
functions of the file are looked into where `called.py` says how: a variable that is passed by reference lives as long
as the parameter does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from tree_sitter import Node

Range = tuple[int, int]
LOOPS = ("for_statement", "while_statement", "do_statement")
_SCOPES = frozenset({"compound_statement", "for_statement", "if_statement", "while_statement", "lambda_expression"})
NO_CODE = frozenset({"comment", "preproc_call", "preproc_directive", ";"})
LISTED = frozenset({"parameter_list", "argument_list", "gnu_asm_output_operand_list"})


@dataclass(frozen=True, slots=True)
class Variable:
    """A local variable, a parameter or a member; `start` is the byte of its name where it is declared. `holds` is
    'value' (assigned by name), 'array' (assigned by element), 'pointer' (assigned by name; a store through it is seen
    by others) or 'other'.
    """

    name: str
    start: int
    holds: str


@dataclass(frozen=True, slots=True)
class Callee:
    """A function whose calls are looked into: its parameters by position (where declared, as variables, whether they
    are references) and `result`, which stands for what it returns. `quiet`: a call does nothing but give a value.
    """

    name: str
    definition: Node  # with its template header
    body: Node
    places: tuple[Node, ...]
    params: tuple[Variable, ...]
    references: tuple[bool, ...]
    result: Variable
    quiet: bool


@dataclass(frozen=True, slots=True)
class Read:
    """One use of a variable. `owner` is the variable whose definition it stands in; None: it has an effect. `passed`:
    it is the whole argument of a call that is looked into.
    """

    variable: Variable
    node: Node
    owner: Variable | None
    passed: bool = False


@dataclass
class Uses:
    """Declarations, definitions and reads of the variables of function bodies, and the calls among them."""

    bodies: tuple[Node, ...]
    reads: list[Read] = field(default_factory=list[Read])
    definitions: dict[Variable, list[Node]] = field(default_factory=dict[Variable, list[Node]])
    callees: Mapping[str, Callee] = field(default_factory=dict[str, Callee])
    calls: dict[str, list[Node]] = field(default_factory=dict[str, list[Node]])

    def variable_at(self, start: int) -> Variable | None:
        """The variable whose name is read, assigned or declared at byte `start`."""
        for variable, nodes in self.definitions.items():
            if variable.start == start or any(_target(n) is not None and _begin(n) == start for n in nodes):
                return variable
        return next((r.variable for r in self.reads if r.node.start_byte == start), None)

    def same_value(self, variable: Variable) -> set[Variable]:
        """`variable`, the variables that a call sets to it, and the parameters that are given nothing else."""
        found = {variable}
        passed = [r for r in self.reads if r.passed]
        while True:
            more = {r.owner for r in passed if r.variable in found and self._only_given(r.owner, found)}
            more |= {r.variable for r in passed if r.owner in found and self._set_by(r.variable, found)}
            new = {v for v in more if v is not None} - found
            if not new:
                return found
            found |= new

    def _only_given(self, param: Variable | None, found: set[Variable]) -> bool:
        """True for a parameter that every call passes a variable of `found`."""
        home = next((c for c in self.callees.values() if param in c.params), None)
        if home is None or param is None:
            return False
        place = home.params.index(param)
        given = [arguments_of(c)[place] for c in self.calls.get(home.name, ())]
        passed = {r.node.id for r in self.reads if r.passed and r.owner == param and r.variable in found}
        return bool(given) and all(n.id in passed for n in given)

    def _set_by(self, variable: Variable, found: set[Variable]) -> bool:
        """True where a variable gets its value from a reference parameter among `found`, and from nothing else."""
        params = {p for c in self.callees.values() for p in c.params}
        givers = {r.variable for r in self.reads if r.passed and r.owner == variable and r.variable in params}
        set_here = [n for n in self.definitions.get(variable, ()) if _target(n) is not None]
        return not set_here and bool(givers & found) and variable not in params

    def live(
        self, removed: Iterable[Range], named: Mapping[str, Collection[int]], kept: Collection[Variable] = ()
    ) -> set[Variable]:
        """Variables that something with an effect depends on, without the removed ranges; `named` are used by name in
        new text at these places, and `kept` stay whatever reads them.
        """
        ranges = list(removed)
        reads = [r for r in self.reads if not is_inside(r.node, ranges)]
        found = {r.variable for r in reads if r.owner is None} | set(kept)
        found |= {v for v in self.definitions if any(self._may_mean(v, at) for at in named.get(v.name, ()))}
        while True:
            more = {r.variable for r in reads if r.owner in found} - found
            if not more:
                return found
            found |= more

    def _may_mean(self, variable: Variable, at: int) -> bool:
        """True when text at `at` can name `variable`: a member, or a variable of the same function."""
        functions = [b.parent for b in self.bodies if b.parent is not None]
        home = next((f for f in functions if f.start_byte <= variable.start < f.end_byte), None)
        return home is None or home.start_byte <= at < home.end_byte


def uses_of(body: Node, text: bytes) -> Uses:
    """Read the body of a function (a compound statement) alone; `text` is the file that the tree was made from."""
    uses = Uses((body,))
    Reader(uses, text).visit(body, {}, None)
    return uses


class Reader:
    """Walks a body with its scopes."""

    def __init__(self, uses: Uses, text: bytes, result: Variable | None = None) -> None:
        self.uses = uses
        self.text = text
        self.result = result

    def visit(self, node: Node, scope: dict[str, Variable], owner: Variable | None) -> None:
        if node.type == "declaration":
            self.declaration(node, scope)
        elif node.type == "expression_statement" and self.statement(node, scope):
            pass
        elif node.type == "identifier":
            variable = scope.get(self.word(node))
            if variable is not None:
                self.uses.reads.append(Read(variable, node, owner))
        elif node.type == "field_expression":
            argument = node.child_by_field_name("argument")
            if argument is not None:
                self.visit(argument, scope, owner)
        elif node.type == "call_expression" and (callee := self.callee(node)) is not None:
            self.value_of(node, callee, scope, owner)
        else:
            owner = self.result if node.type == "return_statement" else owner
            inner = dict(scope) if node.type in _SCOPES else scope
            for child in node.named_children:
                self.visit(child, inner, owner)

    def word(self, node: Node) -> str:
        return self.text[node.start_byte : node.end_byte].decode("utf-8", "replace")

    # ---- calls that are looked into

    def callee(self, call: Node) -> Callee | None:
        """The function of a call, if its calls are looked into."""
        name = called_name(call)
        return self.uses.callees.get(self.word(name)) if name is not None else None

    def value_of(self, call: Node, callee: Callee, scope: dict[str, Variable], owner: Variable | None) -> None:
        """A call for its value. What has other effects stays, with all that it is given."""
        if owner is not None and not (callee.quiet and not any(callee.references)):
            self.uses.reads.append(Read(owner, call, None))
            owner = None
        self.uses.calls.setdefault(callee.name, []).append(call)
        self.uses.reads.append(Read(callee.result, call, owner))
        for param, argument in zip(callee.params, arguments_of(call), strict=True):
            self.uses.reads.append(Read(param, argument, None))
            self.visit(argument, scope, owner)

    def call(self, call: Node, callee: Callee, scope: dict[str, Variable]) -> None:
        """A call as a statement: an argument is there for its parameter."""
        self.uses.calls.setdefault(callee.name, []).append(call)
        for param, reference, argument in zip(callee.params, callee.references, arguments_of(call), strict=True):
            variable = scope.get(self.word(argument)) if argument.type == "identifier" else None
            self.uses.definitions.setdefault(param, []).append(argument)
            if variable is not None:
                self.uses.reads.append(Read(variable, argument, param, passed=True))
            if reference and variable is not None:
                self.uses.reads.append(Read(param, argument, variable, passed=True))
            elif reference or has_call(argument):
                self.uses.reads.append(Read(param, argument, None))
            if variable is None:
                self.visit(argument, scope, None if reference or has_call(argument) else param)

    # ---- definitions

    def statement(self, node: Node, scope: dict[str, Variable]) -> bool:
        """Record a statement that defines a variable or calls a function; False when it is something else."""
        inner = node.named_children[0] if node.named_children else None
        if inner is not None and inner.type == "call_expression" and (callee := self.callee(inner)) is not None:
            self.call(inner, callee, scope)
            return True
        if inner is not None and inner.type == "gnu_asm_expression" and self.pins(inner, scope):
            return True
        return self.assignment(node, scope)

    def pins(self, asm: Node, scope: dict[str, Variable]) -> bool:
        """An asm without instructions ties variables to their place in the program, and nothing else."""
        code, inputs = asm.child_by_field_name("assembly_code"), asm.child_by_field_name("input_operands")
        outputs = asm.child_by_field_name("output_operands")
        if code is None or self.word(code) != '""' or outputs is None or (inputs is not None and inputs.named_children):
            return False
        for operand in outputs.named_children:
            value = operand.child_by_field_name("value")
            name = value
            while name is not None and name.type == "subscript_expression":
                name = name.child_by_field_name("argument")
            variable = scope.get(self.word(name)) if name is not None and name.type == "identifier" else None
            if value is None or name is None or variable is None or variable.holds not in ("value", "array"):
                self.visit(operand, scope, None)
                continue
            self.uses.definitions.setdefault(variable, []).append(operand)
            if name != value:
                self.visit_parts(value, scope, variable, name)
        return True

    def declaration(self, node: Node, scope: dict[str, Variable]) -> None:
        shared = b"__shared__" in self.text[node.start_byte : node.end_byte]
        for declarator in node.children_by_field_name("declarator"):
            name, holds = declared(declarator)
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


def called_name(call: Node) -> Node | None:
    """The name in a call: of a function, a template, or a method."""
    name = call.child_by_field_name("function")
    if name is not None and name.type == "field_expression":
        name = name.child_by_field_name("field")
    while name is not None and name.type in ("template_function", "template_method"):
        name = name.child_by_field_name("name")
    return name if name is not None and name.type in ("identifier", "field_identifier") else None


def arguments_of(call: Node) -> list[Node]:
    """The arguments of a call."""
    listed = call.child_by_field_name("arguments")
    return [n for n in listed.named_children if n.type != "comment"] if listed is not None else []


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


def declared(declarator: Node) -> tuple[Node | None, str]:
    """(name, what the variable holds) of a declarator."""
    holds = "value"
    node: Node | None = declarator
    while node is not None and node.type not in ("identifier", "field_identifier"):
        if node.type == "array_declarator":
            holds = "array" if holds != "pointer" else "other"
        elif node.type == "pointer_declarator":
            holds = "pointer" if holds == "value" else "other"
        elif node.type not in ("init_declarator", "parenthesized_declarator"):
            return None, "other"
        node = node.child_by_field_name("declarator") or next(
            (c for c in node.named_children if c.type.endswith("declarator") or c.type.endswith("identifier")), None
        )
    return node, holds


def is_inside(node: Node, ranges: list[Range]) -> bool:
    """True when a node lies in one of the ranges."""
    return any(start <= node.start_byte and node.end_byte <= end for start, end in ranges)


def has_call(node: Node | None) -> bool:
    """True when an expression calls something: it may have an effect."""
    return node is not None and (node.type == "call_expression" or any(has_call(c) for c in node.named_children))
