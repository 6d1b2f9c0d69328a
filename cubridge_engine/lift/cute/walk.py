"""Going through a function with what each tensor holds: statements, branches, loops, expressions.

A branch that is not decided by a template argument is gone through both ways, and a tensor may hold either afterwards.
A loop is gone through twice where a product is in it, so that what it leaves meets what it begins with.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from ...diagnostics import Span
from ...source import SourceFile
from .. import budget
from ..syntax import Syn
from . import kinds
from .find import Definitions
from .kinds import NONE, Cell, Kinds, Target, Value
from .table import CONVERTERS, NEGATIVE

MAX_STATEMENTS = 12_000
_OBJECT = re.compile(r"^(?:\w+\s*::\s*)*(\w+)\s*<.*>\s*(\w+)\s*(?:\(.*\)|\{.*\})?\s*;$", re.S)
_LOOPS = ("for_statement", "while_statement", "do_statement", "for_range_loop")
_STORED = {"On": "store", "lse": "lse"}  # what an element is that goes to global memory -> the step
_FACTORS = frozenset({"corr", "em"})
_BLOCKS = ("compound_statement", "else_clause", "switch_statement", "case_statement", "labeled_statement")
_WRAPPERS = ("parenthesized_expression", "condition_clause", "cast_expression", "type_descriptor", "else_clause")


@dataclass(slots=True, eq=False)
class Struct:
    """An object of a user's struct, or a lambda (`body` with its `scope`)."""

    kind: str
    fields: dict[str, Value] = field(default_factory=dict[str, Value])
    body: Syn | None = None
    scope: Scope | None = None


@dataclass(slots=True, eq=False)
class Scope:
    """Names of one function in one call. `flags`: template parameters that are known."""

    source: SourceFile
    chain: tuple[Span, ...] = ()
    names: dict[str, Value] = field(default_factory=dict[str, Value])
    flags: dict[str, str] = field(default_factory=dict[str, str])
    this: Struct | None = None
    outer: Scope | None = None
    returned: list[Value] = field(default_factory=list[Value])

    def find(self, name: str) -> Value | None:
        """What a name stands for."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            if scope.this is not None and name in scope.this.fields:
                return scope.this.fields[name]
            scope = scope.outer
        return None


@dataclass(frozen=True, slots=True)
class Event:
    """A step of attention at a statement; `chain`: the calls that lead there, outermost first, then the statement."""

    step: str
    chain: tuple[Span, ...]
    holds: str = ""
    origins: tuple[Kinds, ...] = ()
    loops: tuple[Span, ...] = ()


class TooLarge(Exception):
    """More statements than a kernel has."""


class Walk:
    """One reading of one function. `call` is the effect of a call (`calls.py`)."""

    def __init__(self, definitions: Definitions, call: Callable[[Walk, Syn, Scope, Target], Value]) -> None:
        self.definitions = definitions
        self.events: list[Event] = []
        self.unknown: dict[str, Span] = {}  # calls that were given a tensor and are not known
        self.stack: list[object] = []
        self.products = 0
        self._call = call
        self._cells: list[Cell] = []
        self._loops: list[Span] = []
        self._statements = 0

    # --- cells and events ---

    def cell(self, space: str = "", origin: Kinds = NONE, content: Kinds = NONE) -> Value:
        """New storage."""
        made = Cell(content, space, origin)
        self._cells.append(made)
        return Value(content, (made,), origin=origin)

    def now(self, value: Value) -> Value:
        """A value with what its storage holds now."""
        if not value.cells:
            return value
        held = NONE.union(*(c.kinds for c in value.cells))
        return replace(value, kinds=held, origin=NONE.union(*(c.origin for c in value.cells)))

    def put(self, value: Value, content: Kinds, origin: Kinds | None = None) -> None:
        """Write all elements."""
        for one in value.cells:
            one.kinds = content if len(value.cells) == 1 else one.kinds | content
            if origin is not None:
                one.origin = origin

    def note(self, step: str, at: Syn, scope: Scope, holds: str = "", origins: tuple[Kinds, ...] = ()) -> None:
        """A step was done at `at`."""
        chain = (*scope.chain, scope.source.span_of(at.start, at.end))
        self.events.append(Event(step, chain, holds, origins, tuple(self._loops)))

    def both(self, ways: Iterable[Callable[[], object]]) -> list[object]:
        """Each from the same state; afterwards every cell holds what any of them leaves."""
        before = [(c.kinds, c.origin) for c in self._cells]
        ends: list[list[tuple[Kinds, Kinds]]] = []
        results: list[object] = []
        for way in ways:
            for one, (held, origin) in zip(self._cells, before, strict=False):
                one.kinds, one.origin = held, origin
            results.append(way())
            ends.append([(c.kinds, c.origin) for c in self._cells])
        for number, one in enumerate(self._cells):
            there = [end[number] for end in ends if number < len(end)]
            one.kinds = NONE.union(*(k for k, _ in there)) if there else one.kinds
            one.origin = NONE.union(*(o for _, o in there)) if there else one.origin
        return results

    # --- statements ---

    def run(self, node: Syn, scope: Scope) -> None:
        """One statement."""
        self._statements += 1
        if self._statements > MAX_STATEMENTS:
            raise TooLarge
        budget.spend()
        if node.type == "if_statement":
            self._if(node, scope)
        elif node.type in _LOOPS:
            self._loop(node, scope)
        elif node.type == "declaration":
            self._declare(node, scope)
        elif node.type == "return_statement":
            scope.returned += [self.evaluate(kid, scope, Target()) for kid in node.kids]
        elif node.type == "expression_statement" and self._declared_object(node, scope):
            pass
        elif node.type == "expression_statement" or node.type.endswith(("_expression", "_literal")):
            for kid in node.kids if node.type == "expression_statement" else [node]:
                self.evaluate(kid, scope, Target())
        elif node.type in _BLOCKS:
            for kid in node.kids:
                self.run(kid, scope)

    def _if(self, node: Syn, scope: Scope) -> None:
        condition, then, other = node.get("condition"), node.get("consequence"), node.get("alternative")
        known = self.truth(condition, scope)
        if condition is not None:
            self.evaluate(condition, scope, Target())
        ways = [way for way, taken in ((then, known is not False), (other, known is not True)) if taken]
        if len(ways) == 1:
            if ways[0] is not None:
                self.run(ways[0], scope)
            return
        self.both([(lambda w=way: self.run(w, scope) if w is not None else None) for way in ways])

    def _loop(self, node: Syn, scope: Scope) -> None:
        body = node.get("body")
        start = node.get("initializer")
        if start is not None:
            self.run(start, scope)
        if body is None:
            return
        self._loops.append(scope.source.span_of(node.start, body.start))
        products = self.products
        self.run(body, scope)
        if self.products > products:
            self.run(body, scope)
        self._loops.pop()

    def _declare(self, node: Syn, scope: Scope) -> None:
        declared = node.get("type")
        for one in node.lists.get("declarator", []):
            name, value = one.get("declarator"), one.get("value")
            plain = one if name is None else name
            at = next((n for n in plain.walk() if n.type == "identifier"), None)
            if at is None:
                continue
            owner = declared.text.split("<")[0].split("::")[-1].strip() if declared is not None else ""
            if owner in self.definitions.members or owner in CONVERTERS:
                scope.names[at.text] = self.struct(owner)
                continue
            slot = self.cell()
            scope.names[at.text] = slot
            if value is None:
                continue
            found = self.evaluate(value, scope, Target(slot.cells[0]))
            storage = found.thing is not None or (found.cells and _is_tensor(found, declared))
            if storage:
                scope.names[at.text] = found
            else:
                self.put(slot, found.kinds, found.origin)
                self._made(found, node, scope)

    def _declared_object(self, node: Syn, scope: Scope) -> bool:
        """``Softmax<2 * size<1>(o)> softmax;``, which the grammar takes for comparisons."""
        found = _OBJECT.match(node.text)
        if found is None or found.group(1) not in self.definitions.members:
            return False
        scope.names[found.group(2)] = self.struct(found.group(1))
        return True

    def struct(self, kind: str) -> Value:
        """A new object with its members."""
        made = Struct(kind)
        for name in self.definitions.members.get(kind, {}):
            made.fields[name] = self.cell("r")
        return Value(thing=made)

    # --- expressions ---

    def evaluate(self, node: Syn, scope: Scope, target: Target) -> Value:
        """The value of an expression, and what it does on the way."""
        kind = node.type
        if kind in ("identifier", "field_identifier"):
            return self.now(scope.find(node.text) or Value())
        if kind == "call_expression":
            return self._call(self, node, scope, target)
        if kind in ("assignment_expression", "update_expression"):
            return self._assign(node, scope)
        if kind == "binary_expression":
            return self._binary(node, scope, target)
        if kind == "conditional_expression":
            return self._choice(node, scope, target)
        if kind in ("subscript_expression", "pointer_expression"):
            base = node.get("argument")
            return self.evaluate(base, scope, target) if base is not None else Value()
        if kind == "field_expression":
            return self._member(node, scope, target)
        if kind == "unary_expression":
            inner = node.get("argument")
            value = self.evaluate(inner, scope, target) if inner is not None else Value()
            value = kinds.negated(value) if node.op == "-" else value
            return Value(value.kinds, made=value.made, literal=node.text)
        if kind == "lambda_expression":
            return Value(thing=Struct("", body=node, scope=scope))
        if kind in _WRAPPERS or kind == "comma_expression":
            return kinds.union([self.evaluate(kid, scope, target) for kid in node.kids])
        return Value(literal=node.text if kind.endswith("literal") else "")

    def _member(self, node: Syn, scope: Scope, target: Target) -> Value:
        base, name = node.get("argument"), node.get("field")
        held = self.evaluate(base, scope, target) if base is not None else Value()
        owner = scope.this if base is not None and base.text in ("this", "(*this)") else held.thing
        if isinstance(owner, Struct) and name is not None and name.text in owner.fields:
            return self.now(owner.fields[name.text])
        return Value(held.kinds, held.cells, held.made, held.origin)

    def _choice(self, node: Syn, scope: Scope, target: Target) -> Value:
        condition, then, other = node.get("condition"), node.get("consequence"), node.get("alternative")
        if then is None or other is None:
            return Value()
        known = self.truth(condition, scope)
        if known is not None:
            return self.evaluate(then if known else other, scope, target)
        chosen = _larger(condition, then, other)
        if chosen is not None:
            both = [self.evaluate(way, scope, Target()) for way in (then, other)]
            return kinds.maximum(both, target.cell) if chosen else kinds.lost(both)
        ways: list[Value] = []
        self.both([(lambda w=way: ways.append(self.evaluate(w, scope, target))) for way in (then, other)])
        value = kinds.union(ways)
        if value.kinds == frozenset({"S"}) and any(NEGATIVE.match(way.text) for way in (then, other)):
            value = replace(value, made=value.made | {"mask"})
        return replace(value, cells=()) if any(not w.cells for w in ways) else value

    def _binary(self, node: Syn, scope: Scope, target: Target) -> Value:
        left, right = node.get("left"), node.get("right")
        if left is None or right is None:
            return Value()
        a, b = self.evaluate(left, scope, target), self.evaluate(right, scope, target)
        storage = a if a.cells and a.cells[0].space in ("g", "s") else b
        if node.op == "+" and storage.cells and storage.cells[0].space in ("g", "s") and not (a.kinds | b.kinds):
            held = storage.cells[0]  # a pointer and an offset: other elements of that memory
            return self.cell(held.space, held.origin if held.space == "g" else NONE)
        return operated(node.op, a, b, target.cell)

    def _assign(self, node: Syn, scope: Scope) -> Value:
        left, right = node.get("left"), node.get("right")
        if left is None or right is None:
            return Value()
        place = self.evaluate(left, scope, Target())
        into = place.cells[0] if place.cells else None
        if NEGATIVE.match(right.text) and "S" in place.kinds:
            if place.kinds == frozenset({"S"}):
                self.note("mask", node, scope, "S, masked")
            return place
        value = self.evaluate(right, scope, Target(into))
        if node.op != "=":
            value = replace(operated(node.op[:-1], place, value, into), cells=())
        self._made(value, node, scope)
        if into is not None and into.space == "g" and len(value.kinds) == 1:
            stored = _STORED.get(next(iter(value.kinds)))
            if stored:
                self.note(stored, node, scope)
        self.put(place, value.kinds, value.origin | place.origin if node.op != "=" else value.origin)
        return self.now(place)

    def _made(self, value: Value, node: Syn, scope: Scope) -> None:
        for step in sorted(value.made) if "?" not in value.kinds else ():  # of what is lost nothing is said
            self.note(step, node, scope)

    def truth(self, node: Syn | None, scope: Scope) -> bool | None:
        """A condition that template arguments decide."""
        if node is None:
            return None
        if node.type in _WRAPPERS and len(node.kids) == 1:
            return self.truth(node.kids[0], scope)
        if node.type in ("true", "false"):
            return node.type == "true"
        if node.type == "identifier":
            return {"true": True, "false": False}.get(self.flag(node.text, scope))
        sides = [self.truth(kid, scope) for kid in node.kids]
        if node.type == "unary_expression" and node.op == "!" and sides[0] is not None:
            return not sides[0]
        if node.op == "&&":
            return False if False in sides else True if all(sides) else None
        if node.op == "||":
            return True if True in sides else False if all(s is False for s in sides) else None
        return None

    def flag(self, name: str, scope: Scope) -> str:
        """A template argument as text, '' where it is not known."""
        at: Scope | None = scope
        while at is not None:
            if name in at.flags:
                return at.flags[name]
            at = at.outer
        return ""


def operated(op: str, a: Value, b: Value, target: Cell | None) -> Value:
    """A binary operator on two values."""
    if op == "*":
        for one, factor in ((a, b), (b, a)):
            if target is not None and target in one.cells and not one.kinds and factor.kinds <= _FACTORS:
                return Value(made=factor.made)  # O and l of the first trip: zeros stay what they are
        return kinds.multiplied(a, b)
    if op == "/":
        return kinds.divided(a, b)
    if op in ("+", "-"):
        return kinds.added(a, b, target, minus=op == "-")
    return Value(made=a.made | b.made)


def _larger(condition: Syn | None, then: Syn, other: Syn) -> bool | None:
    """``x > y ? x : y``: True for the larger of the two, False for the smaller, None for another choice."""
    while condition is not None and condition.type in _WRAPPERS and len(condition.kids) == 1:
        condition = condition.kids[0]
    left, right = (condition.get("left"), condition.get("right")) if condition is not None else (None, None)
    if condition is None or left is None or right is None or condition.op not in (">", ">=", "<", "<="):
        return None
    if {left.text, right.text} != {then.text, other.text}:
        return None
    return (then.text == left.text) == condition.op.startswith(">")


def _is_tensor(found: Value, declared: Syn | None) -> bool:
    """Whether a declaration names storage: not a number that is copied out of it."""
    words = declared.text.split() if declared is not None else []
    return not any(w in ("float", "int", "bool", "double", "half", "const float") for w in words)
