"""The edits of one place that would undo the faults people make: what `trials` tries where wrong numbers have no line.

A table of small functions, each for one kind of fault. Whether an edit makes the kernel right is decided by execution
alone, so that they may propose much; what cannot be compiled or changes nothing costs little.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from tree_sitter import Node

from ..compile import Contract
from ..source import Function, SourceFile
from .model import Edit
from .scopes import LOOPS, Scope, around, every_node, root_name
from .variants import Candidate, Place

MOST = 320  # candidates of one kernel
_SKIP = ("template_argument_list", "gnu_asm_expression", "static_assert_declaration", "array_declarator")
_EXP = {"exp2f": "__expf", "__expf": "exp2f", "expf": "exp2f", "exp": "exp2", "exp2": "exp"}
_LOG = {"log2f": "logf", "logf": "log2f", "__logf": "log2f", "__log2f": "logf"}
_EXTREMES = {"fmaxf": "fminf", "fminf": "fmaxf", "max": "min", "min": "max"}
_STRICT = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
_TURNED = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}
_LOG2E, _LN2 = "1.4426950408889634f", "0.6931471805599453f"
_UNITS = (
    "the exponent is in another unit than the exponential: exp2 takes the scaled scores times log2(e), exp does not"
)


@dataclass(slots=True)
class Code:
    """One function under repair, and what the tables below ask of it."""

    source: SourceFile
    function: Function
    contract: Contract
    scope: Scope = field(init=False)
    nodes: list[Node] = field(init=False)

    def __post_init__(self) -> None:
        self.scope = Scope(self.source, self.function)
        self.nodes = [n for n in every_node(self.function.body) if not _within(n, self.function.body)]

    def text(self, node: Node) -> str:
        """One line, without comments."""
        return " ".join(self.source.code[node.start_byte : node.end_byte].decode("utf-8", "replace").split())

    def of(self, *types: str) -> Iterator[Node]:
        """The nodes of some types."""
        return (n for n in self.nodes if n.type in types)

    def operator(self, node: Node) -> str:
        """That of a binary or an assignment expression."""
        found = node.child_by_field_name("operator")
        return found.type if found is not None else ""

    def sides(self, node: Node) -> tuple[Node, Node] | None:
        """Left and right."""
        left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
        return None if left is None or right is None else (left, right)

    def named(self, role: str) -> str:
        """The parameter of a role; '' where this function has none."""
        found = next((p.name for p in self.contract.leaves if p.role == role), "")
        return found if any(d.name == found for d in self.scope.declared) else ""

    def calls(self, names: dict[str, str] | str) -> Iterator[tuple[Node, str, list[Node]]]:
        """Calls of functions by name (a table) or by the beginning of it: node, name, arguments."""
        for node in self.of("call_expression"):
            called, given = node.child_by_field_name("function"), node.child_by_field_name("arguments")
            if called is None or given is None:
                continue
            name = self.text(called)
            if name in names if isinstance(names, dict) else name.startswith(names):
                yield node, name, list(given.named_children)

    def replaced(
        self, family: str, node: Node, new: str, why: str, part: Node | None = None, to: str = ""
    ) -> Candidate:
        """`node` becomes `new`; in the text `part` of it becomes `to`, where only that changes."""
        edit = Edit(self.source.span(node), new) if part is None else Edit(self.source.span(part), to)
        old = self.text(node)
        title = f"Write `{_short(new)}` in the place of `{_short(old)}`"
        return Candidate(family, (Place(node.start_byte, node.end_byte, new),), (edit,), title, why)

    def with_part(self, family: str, node: Node, part: Node, to: str, why: str) -> Candidate:
        """`node` with another text for `part`."""
        code = self.source.code
        before, after = code[node.start_byte : part.start_byte], code[part.end_byte : node.end_byte]
        new = " ".join((before.decode("utf-8", "replace") + to + after.decode("utf-8", "replace")).split())
        return self.replaced(family, node, new, why, part, to)

    def constant_loop(self, node: Node) -> bool:
        """True for the condition of a loop whose end the text fixes: tiles are gone through whole, and the compiler
        unrolls them only where their ends stay fixed.
        """
        sides = self.sides(node)
        if sides is None or node.parent is None or node.parent.type not in LOOPS:
            return False
        known = self.scope.at(node.start_byte)
        return not any(self.text(n) in known for n in every_node(sides[1]) if n.type == "identifier")

    def corrections(self, place: int) -> list[str]:
        """Variables that hold ``exp(a - b)`` at a byte: what moves a state to another maximum."""
        found: list[str] = []
        for name, d in self.scope.at(place).items():
            value = self.text(d.value) if d.value is not None else ""
            if re.match(r"(?:__)?exp2?f?\(", value) and "-" in value:
                found.append(name)
        return found


def _within(node: Node, body: Node) -> bool:
    parent: Node | None = node
    while parent is not None and parent.start_byte >= body.start_byte:
        if parent.type in _SKIP or parent.type.startswith("preproc"):
            return True
        parent = parent.parent
    return False


def _short(text: str) -> str:
    return text if len(text) <= 72 else f"{text[:34]} ... {text[-34:]}"


# ---- the table: one function for one kind of fault


def _comparisons(c: Code) -> Iterator[Candidate]:
    for node in c.of("binary_expression"):
        at = node.child_by_field_name("operator")
        if at is None or at.type not in _STRICT:
            continue
        if c.constant_loop(node):
            continue
        new = _STRICT[at.type]
        yield c.with_part(
            "mask", node, at, new, "the comparison is off by one: a key or a row at the end is treated wrongly"
        )
        branch = around(node, "if_statement", "conditional_expression", *LOOPS)
        if branch is not None and branch.type in ("if_statement", "conditional_expression"):
            words = "the comparison is the wrong way round: the smaller one is kept, so that m is no maximum"
            yield c.with_part("maximum", node, at, _TURNED[at.type], words)


def _diagonals(c: Code) -> Iterator[Candidate]:
    sq, sk = c.named("Sq"), c.named("Sk")
    if not sq or not sk or not any("causal" in mask for mask in c.contract.masks):
        return
    why = "the causal mask is for another diagonal: j <= i + Sk - Sq lets the last row see the last key"
    for node in c.of("binary_expression"):
        sides = c.sides(node)
        looped = node.parent is not None and node.parent.type in LOOPS
        if c.operator(node) in _STRICT and sides is not None and not looped and around(node, *LOOPS) is not None:
            for sign in "+-":
                to = f"{c.text(sides[1])} {sign} ({sk} - {sq})"
                yield c.with_part("mask", node, sides[1], to, why)


def _functions(c: Code) -> Iterator[Candidate]:
    tables = (
        ("unit", _EXP, _UNITS),
        ("lse", _LOG, "the logarithm is in another unit than the maximum, so that the LSE mixes units"),
        ("maximum", _EXTREMES, "the smaller one is taken in the place of the larger one: m is no maximum"),
    )
    for family, table, why in tables:
        for node, name, _ in c.calls(table):
            called = node.child_by_field_name("function")
            if called is not None:
                yield c.with_part(family, node, called, table[name], why)


def _exponents(c: Code) -> Iterator[Candidate]:
    factors: dict[str, None] = {}
    for _, _, args in c.calls(_EXP):
        for node in itertools.chain.from_iterable(map(every_node, args)):
            if node.type == "binary_expression" and c.operator(node) == "*":
                factors |= {
                    c.text(s): None for s in (c.sides(node) or ()) if s.type in ("identifier", "number_literal")
                }
    for _, _, args in c.calls(_EXP):
        known = c.scope.at(args[0].start_byte) if args else {}
        for factor in (*factors, _LOG2E, _LN2):
            if args and not (factor.isidentifier() and factor not in known):
                yield c.replaced("unit", args[0], f"({c.text(args[0])}) * {factor}", _UNITS)
        sides = c.sides(args[0]) if args and args[0].type == "binary_expression" else None
        if sides is not None and c.operator(args[0]) == "-" and sides[1].type == "identifier":
            top = c.text(sides[1])
            why = f"{top} is still -inf for a row without a key, and -inf - (-inf) is NaN"
            yield c.with_part("empty", args[0], sides[1], f"({top} == -INFINITY ? 0.f : {top})", why)


def _scales(c: Code) -> Iterator[Candidate]:
    scale = c.named("scale") or c.named("scale_log2")
    names = {scale, _LOG2E}
    twice = "the scale is multiplied in twice"
    for node in c.of("binary_expression", "assignment_expression"):
        sides = c.sides(node)
        if sides is None or c.operator(node) not in ("*", "*="):
            continue
        factor = c.text(sides[1])
        known = factor in names or re.fullmatch(r"\w*(LOG2E|log2e)\w*", factor) is not None
        if known or (sides[1].type == "identifier" and c.scope.floating(factor, node.start_byte)):
            yield c.replaced(
                "scale", node, c.text(sides[0]), twice if known else f"the factor {factor} is one too many"
            )
    uses = [n for n in c.of("identifier") if scale and c.text(n) == scale]
    for factor, why in (
        (_LOG2E, f"scores without log2(e) go into exp2: {_UNITS}"),
        (_LN2, f"log2(e) is one too many: {_UNITS}"),
    ):
        if uses:
            new = f"({scale} * {factor})"
            places = tuple(Place(n.start_byte, n.end_byte, new) for n in uses)
            edits = tuple(Edit(c.source.span(n), new) for n in uses)
            yield Candidate("unit", places, edits, f"Pass `{new}` for the scale", why)


def _logs(c: Code) -> Iterator[Candidate]:
    for node, _, _ in c.calls(_LOG):
        total = node.parent
        if total is None or total.type != "binary_expression" or c.operator(total) != "+":
            continue
        for factor, unit in ((_LN2, "log2"), (_LOG2E, "natural logarithms")):
            why = f"the LSE is left in units of {unit}"
            yield c.replaced("lse", total, f"({c.text(total)}) * {factor}", why)


def _sums(c: Code) -> Iterator[Candidate]:
    """A part of a sum that the correction is missing from."""
    why = "{0} is not rescaled: the correction {1}, which brings it to the maximum of the others, is missing"
    for node in c.of("binary_expression"):
        sides = c.sides(node)
        if c.operator(node) != "+" or sides is None or not _numbers(c, node):
            continue
        texts = [c.text(s) for s in sides]
        names = c.corrections(node.start_byte)
        for side, text in zip(sides, texts, strict=True):
            for name in names:
                if not re.search(rf"\b{name}\b", text):
                    yield c.with_part(
                        "correction", node, side, f"{text} * {name}", why.format(f"`{_short(text)}`", name)
                    )
        for one, two in itertools.permutations(names, 2):
            if not re.search(rf"\b({one}|{two})\b", c.text(node)):
                new, words = f"{texts[0]} * {one} + {texts[1]} * {two}", f"`{_short(texts[0])}`"
                yield c.replaced("correction", node, new, why.format(words, one))
    for node in c.of("assignment_expression"):
        sides = c.sides(node)
        if (
            c.operator(node) != "+="
            or sides is None
            or not c.scope.floating(root_name(c.source, sides[0]), node.start_byte)
        ):
            continue
        left, right = (c.text(s) for s in sides)
        for name in c.corrections(node.start_byte):
            if not re.search(rf"\b{name}\b", right):
                yield c.replaced(
                    "correction", node, f"{left} += ({right}) * {name}", why.format(f"`{_short(right)}`", name)
                )
                yield c.replaced(
                    "correction", node, f"{left} = {left} * {name} + ({right})", why.format(f"`{left}`", name)
                )


def _numbers(c: Code, node: Node) -> bool:
    """True for a sum of numbers, as far as the text says: it is no index, and one of its names is a float."""
    if around(node, "subscript_argument_list") is not None:
        return False
    names = {root_name(c.source, n) for n in every_node(node) if n.type in ("identifier", "subscript_expression")}
    return any(c.scope.floating(name, node.start_byte) for name in names if name)


def _factors(c: Code) -> Iterator[Candidate]:
    """The correction of another row, or a number in its place."""
    statements: dict[tuple[int, int], list[tuple[Node, Node]]] = {}
    for node in c.of("assignment_expression"):
        sides = c.sides(node)
        if c.operator(node) == "*=" and sides is not None:
            block = around(node, "compound_statement")
            key = (block.start_byte if block is not None else 0, c.source.span(node).line)
            statements.setdefault(key, []).append((node, sides[1]))
    for group in statements.values():
        for name in c.corrections(group[0][0].start_byte):
            others = [(n, f) for n, f in group if c.text(f) != name and f.type in ("identifier", "number_literal")]
            for count in range(1, min(len(others), 4) + 1):
                for chosen in itertools.combinations(others[:4], count):
                    yield _exchanged(c, chosen, name)


def _exchanged(c: Code, chosen: tuple[tuple[Node, Node], ...], name: str) -> Candidate:
    parts = [c.with_part("correction", node, factor, name, "") for node, factor in chosen]
    what = ", ".join(f"`{c.text(s[0])}`" for node, _ in chosen if (s := c.sides(node)) is not None)
    why = f"the factor of {what} is `{c.text(chosen[0][1])}`, where the correction that rescales its row is {name}"
    places = tuple(p for part in parts for p in part.places)
    edits = tuple(e for part in parts for e in part.edits)
    return Candidate("correction", places, edits, f"Multiply {what} by `{name}`", why)


def _states(c: Code) -> Iterator[Candidate]:
    """A state of the loop that keeps what it began with."""
    for d in c.scope.declared:
        body = d.loop.child_by_field_name("body") if d.loop is not None else None
        if body is None or d.value is None or not d.plain:
            continue
        for node in every_node(d.value):
            name = c.text(node) if node.type == "identifier" else ""
            old = c.scope.at(d.node.start_byte).get(name)
            if old is None or old.loop == d.loop or not old.plain or old.type != d.type or not old.floating:
                continue
            if not any(_inside(n, body) for n in c.scope.assigned.get(name, ())):
                why = f"{name} never becomes {d.name}: every tile starts from the maximum before the first one"
                yield replace(_at_end(c, "state", body, f"{name} = {d.name};", why), at=c.source.span(d.node))
    for d in c.scope.declared:
        if not d.plain or d.value is None or c.text(d.value) != "0" or d.name in c.scope.assigned:
            continue
        uses = [n for n in c.of("subscript_argument_list") if re.search(rf"\b{d.name}\b", c.text(n))]
        loops = [loop for n in uses if (loop := _outermost(n, d.end, d.start)) is not None]
        body = loops[0].child_by_field_name("body") if loops else None
        if body is not None:
            why = f"{d.name} never changes: every tile is read from the same buffer, also where the next one was copied"
            yield replace(_at_end(c, "stage", body, f"{d.name} ^= 1;", why), at=c.source.span(uses[0]))


def _outermost(node: Node, end: int, start: int) -> Node | None:
    found, at = None, around(node, *LOOPS)
    while at is not None and at.start_byte > start and at.end_byte <= end:
        found, at = at, around(at, *LOOPS)
    return found


def _inside(node: Node, body: Node) -> bool:
    return body.start_byte <= node.start_byte and node.end_byte <= body.end_byte


def _at_end(c: Code, family: str, body: Node, statement: str, why: str) -> Candidate:
    end = body.end_byte - 1
    line = c.source.line_start(c.source.span_of(end, end).line)
    last = body.named_children[-1].start_byte if body.named_children else body.start_byte
    indent = c.source.data[c.source.line_start(c.source.span_of(last, last).line) : last]
    words = indent.decode("utf-8", "replace") if not indent.strip() else "  "
    edit = Edit(c.source.span_of(line, line), f"{words}{statement}\n")
    if c.source.data[line:end].strip():
        edit = Edit(c.source.span_of(end, end), f"{statement} ")
    return Candidate(family, (Place(end, end, statement),), (edit,), f"Insert `{statement}`", why)


Table = Callable[[Code], Iterator[Candidate]]
NUMBERS: tuple[Table, ...] = (
    _functions, _comparisons, _sums, _factors, _states, _exponents, _logs, _scales, _diagonals
)  # fmt: skip
