"""The same for places: indices, lanes, heads, lengths, strides, and what a state starts with."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tree_sitter import Node

from .candidates import Code, Table
from .model import Edit
from .scopes import LOOPS, around, every_node, root_name
from .variants import Candidate, Place

_LENGTHS = ("Sq", "Sk")
_TENSORS = "qkv"
_MOST_INDICES = 3  # other indices of an array that are tried at one place


def _selections(c: Code) -> Iterator[Candidate]:
    """The two cases of a condition, in all of a statement that have the same one."""
    groups: dict[tuple[int, str], list[Node]] = {}
    for node in c.of("conditional_expression"):
        condition = node.child_by_field_name("condition")
        statement = around(node, "declaration", "expression_statement", "return_statement")
        if condition is not None and statement is not None:
            groups.setdefault((statement.start_byte, c.text(condition)), []).append(node)
    why = "the two cases of `{0}` are exchanged: the value of the other lane, row or key is taken"
    for (_, condition), nodes in groups.items():
        places: list[Place] = []
        edits: list[Edit] = []
        for node in nodes:
            cases = node.child_by_field_name("consequence"), node.child_by_field_name("alternative")
            if cases[0] is None or cases[1] is None:
                continue
            first, second = c.text(cases[0]), c.text(cases[1])
            places.append(Place(node.start_byte, node.end_byte, f"{condition} ? {second} : {first}"))
            edits += [Edit(c.source.span(cases[0]), second), Edit(c.source.span(cases[1]), first)]
        title = f"Exchange the two cases of `{condition}`"
        yield Candidate("lane", tuple(places), tuple(edits), title, why.format(condition))


def _indices(c: Code) -> Iterator[Candidate]:
    """An array at an index that stands at it elsewhere."""
    uses: dict[str, dict[str, list[Node]]] = {}
    for node in c.of("subscript_expression"):
        array, index = node.child_by_field_name("argument"), node.child_by_field_name("indices")
        if array is None or index is None or array.type != "identifier" or len(index.named_children) != 1:
            continue
        inner = index.named_children[0]
        uses.setdefault(c.text(array), {}).setdefault(c.text(inner), []).append(inner)
    for array, texts in uses.items():
        for text, nodes in texts.items():
            for node in nodes:
                known = c.scope.at(node.start_byte)
                beside = _counters_beside(c, node) if node.type == "binary_expression" else []
                wanted = dict.fromkeys([*beside, *texts])
                others = [t for t in wanted if t != text and all(n in known for n in re.findall(r"[A-Za-z_]\w*", t))]
                for other in others[:_MOST_INDICES]:
                    why = f"{array} is used for another row: at `{text}`, where `{other}` is its index elsewhere"
                    yield c.replaced("index", node, other, why)


def _counters_beside(c: Code, node: Node) -> list[str]:
    """The whole numbers that the statement around an index names."""
    statement = around(node, "declaration", "expression_statement")
    known = c.scope.at(node.start_byte)
    if statement is None:
        return []
    names = [c.text(n) for n in every_node(statement) if n.type == "identifier"]
    return [n for n in dict.fromkeys(names) if n in known and known[n].type == "int" and known[n].plain]


def _offsets(c: Code) -> Iterator[Candidate]:
    """A small part of an index that is one too many."""
    for node in c.of("binary_expression"):
        sides = c.sides(node)
        if sides is None or c.operator(node) not in ("^", "%", "+", "-"):
            continue
        if sides[1].type != "number_literal":
            continue
        shuffled = around(node, "call_expression")
        called = shuffled.child_by_field_name("function") if shuffled is not None else None
        of_lanes = called is not None and c.text(called).startswith("__shfl")
        why = (
            "the shuffle takes the value (P, or what is combined) of another lane"
            if of_lanes
            else f"`{c.text(sides[1])}` moves the index to another row, column or key"
        )
        yield c.replaced("lane" if of_lanes else "index", node, c.text(sides[0]), why)


def _distances(c: Code) -> Iterator[Candidate]:
    """The lanes that a shuffle reaches, and steps through a tile."""
    lanes = "the shuffles reach other lanes than those that share a row, so that a sum or a maximum is of other lanes"
    for node, _, args in c.calls("__shfl"):
        for arg in args[2:3]:
            if arg.type == "number_literal" and c.text(arg).isdigit():
                for number in ("1", "2", "4", "8", "16"):
                    if number != c.text(arg):
                        yield c.with_part("lane", node, arg, number, lanes)
    for node in c.of("init_declarator"):
        value = node.child_by_field_name("value")
        loop = around(node, "for_statement")
        if value is None or loop is None or value.type != "number_literal" or not c.text(value).isdigit():
            continue
        header = c.text(loop).split("{")[0]
        if ">>= 1" in header or "/= 2" in header or "<<= 1" in header:
            for number in (int(c.text(value)) * 2, int(c.text(value)) // 2):
                yield c.replaced("lane", value, str(number), lanes)
    for node in c.of("binary_expression"):
        sides = c.sides(node)
        if sides is None or c.operator(node) != "*":
            continue
        for side in sides:
            if side.type == "number_literal" and re.fullmatch(r"\d+", c.text(side)) and int(c.text(side)) > 1:
                for number in (int(c.text(side)) * 2, int(c.text(side)) // 2):
                    why = f"the step `{c.text(side)}` is not that of the tile: other rows of K or V are read"
                    yield c.with_part("step", node, side, str(number), why)


def _quotients(c: Code) -> Iterator[Candidate]:
    """Lengths that are rounded down, and the map from heads to KV heads."""
    h, hkv = c.named("H"), c.named("Hkv")
    for node in c.of("binary_expression"):
        sides = c.sides(node)
        if sides is None or c.operator(node) not in ("/", "%"):
            continue
        if around(node, *LOOPS) is not None:  # there it takes an index apart
            continue
        a, b = (c.text(s) for s in sides)
        if c.operator(node) == "/":
            why = "it is rounded down: the keys of the rest are in no tile of the range"
            yield c.replaced("range", node, f"({a} + {b} - 1) / {b}", why)
        if h and sides[1].type == "identifier" and (hkv or c.operator(node) == "%"):
            why = "the KV head of head h is h // (H / Hkv): heads of one group share it"
            yield c.replaced("head", node, f"{a} / ({h} / {hkv or b})", why)
            if hkv != b:
                yield c.replaced("head", node, f"{a} / ({h} / {b})", why)


def _parameters(c: Code) -> Iterator[Candidate]:
    """A length or a stride in the place of another."""
    pairs: dict[str, list[tuple[str, str]]] = {}
    for one, two in (_LENGTHS, _LENGTHS[::-1]):
        pairs.setdefault(c.named(one), []).append((c.named(two), f"the length of {two[1].upper()}"))
    for part in ("row", "h", "b"):
        for x in _TENSORS:
            others = [(c.named(f"stride:{y}.{part}"), f"the stride of {y.upper()}") for y in _TENSORS if y != x]
            pairs.setdefault(c.named(f"stride:{x}.{part}"), []).extend(others)
    for node in c.of("identifier"):
        for other, words in pairs.get(c.text(node), ()):
            if other and c.text(node):
                why = f"the offset is made with `{c.text(node)}`, where {words} belongs"
                yield c.replaced("stride", node, other, why)


def _arguments(c: Code) -> Iterator[Candidate]:
    """Neighbouring arguments that are exchanged."""
    for node in c.of("argument_list"):
        known = c.scope.at(node.start_byte)
        for one, two in zip(node.named_children, node.named_children[1:], strict=False):
            first, second = c.text(one), c.text(two)
            same = one.type == two.type == "identifier" and first in known and second in known
            if not same or first == second or known[first].type != known[second].type:
                continue
            places = (Place(one.start_byte, one.end_byte, second), Place(two.start_byte, two.end_byte, first))
            edits = (Edit(c.source.span(one), second), Edit(c.source.span(two), first))
            why = f"{first} and {second} are exchanged (their strides, tiles or rows with them)"
            yield Candidate("stride", places, edits, f"Exchange `{first}` and `{second}`", why)


def _starts(c: Code) -> Iterator[Candidate]:
    """A maximum that starts at 0, and a sum that starts elsewhere."""
    why = (
        "{0} starts at {1}, not at its initial -inf: a row whose scores all lie below underflows, or masked keys count"
    )
    for node in c.of("init_declarator"):
        value, inner = node.child_by_field_name("value"), node.child_by_field_name("declarator")
        name = root_name(c.source, inner)
        if value is None or not name or not re.fullmatch(r"-?\d*\.?\d*(e\d+)?f?", c.text(value)):
            continue
        if c.scope.floating(name, node.end_byte):
            yield c.replaced("start", value, "-INFINITY", why.format(name, c.text(value)))


PLACES: tuple[Table, ...] = (
    _selections, _indices, _offsets, _distances, _quotients, _parameters, _arguments, _starts
)  # fmt: skip
