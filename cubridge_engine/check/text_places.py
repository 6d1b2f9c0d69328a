"""Which lines of the text are responsible for a bound or a guard: definitions followed backwards."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from ..diagnostics import Related, Span
from .subject import Subject

_STATEMENTS = ("declaration", "expression_statement")
_VALUES = {"init_declarator": ("declarator", "value"), "assignment_expression": ("left", "right")}


def condition_of(subject: Subject, span: Span, also: Sequence[Span]) -> Span:
    """Of the statements that make a masked score, the one with the condition."""
    root = subject.source.root
    for place in sorted((span, *also), key=lambda s: -s.start):  # the nearest before the score is kept
        stack = [root.descendant_for_byte_range(place.start, max(place.end - 1, place.start))]
        while stack:
            node = stack.pop()
            if node is None or node.end_byte <= place.start or node.start_byte >= place.end:
                continue
            if node.type in ("if_statement", "conditional_expression"):
                condition = node.child_by_field_name("condition")
                return subject.source.span(condition) if condition is not None else place
            stack.extend(node.named_children)
    return span


def weight_of(subject: Subject, span: Span | None) -> Span | None:
    """Where the exponential of the weights is written."""
    site = subject.lifted.anchors.softmax
    return site.weights[0].exponential if site is not None and len(site.weights) == 1 else span


def guard_of(subject: Subject, span: Span) -> Span:
    """The condition on the tile, where the text has one around the mask."""
    guards = [site.guard for site in subject.lifted.anchors.mask if site.guard is not None]
    return next((g for g in guards if g.line <= span.line), span)


def bound_of(subject: Subject, span: Span | None, flags: Mapping[str, int]) -> tuple[Span | None, tuple[Related, ...]]:
    """Where the end of the loop comes from: the statement of a switch or a division behind the loop's bound."""
    site = subject.lifted.anchors.kv_loop
    if site is None:
        return span, ()
    slices = bound_statements(subject, site.hi)
    if not slices:
        return site.hi, ()
    inside = [s for s in slices if any(flag and _named_around(subject, s, name) for name, flag in flags.items())]
    return (inside or slices)[0], (Related(site.hi, "the loop ends here"),)


def _named_around(subject: Subject, span: Span, name: str) -> bool:
    """True when an ``if`` around a statement, or the statement, names `name`."""
    node = subject.source.root.descendant_for_byte_range(span.start, max(span.end - 1, span.start))
    while node is not None and node.type != "function_definition":
        branch = node.type in ("if_statement", "conditional_expression")
        condition = node.child_by_field_name("condition") if branch else None
        if condition is not None and name in subject.source.clean_text(condition):
            return True
        node = node.parent
    return name in subject.text(span)


def bound_statements(subject: Subject, bound: Span) -> list[Span]:
    """The statements of the kernel's body that give the names in `bound` their values, the nearest first."""
    function = subject.function
    if function is None:
        return []
    source = subject.source
    wanted = _identifiers(source.code[bound.start : bound.end])
    found: list[Span] = []
    done: set[str] = set()
    while wanted:
        name = wanted.pop()
        if name in done:
            continue
        done.add(name)
        for start, end, text in _definitions(subject, name):
            if end <= bound.end:
                found.append(source.span_of(start, end))
                wanted |= _identifiers(text) - done
    return sorted(found, key=lambda s: -s.start)


def _identifiers(code: bytes) -> set[str]:
    return {m.decode("ascii", "replace") for m in re.findall(rb"[A-Za-z_]\w*", code)}


def _definitions(subject: Subject, name: str) -> Iterator[tuple[int, int, bytes]]:
    """Declarations and assignments of a variable in the kernel's body: byte range, and text of the value."""
    function = subject.function
    assert function is not None
    stack = [function.body]
    while stack:
        node = stack.pop()
        stack.extend(node.named_children)
        fields = _VALUES.get(node.type)
        if fields is None:
            continue
        target, value = (node.child_by_field_name(f) for f in fields)
        if target is None or value is None or subject.source.clean_text(target).strip("*& ") != name:
            continue
        whole = node.parent if node.parent is not None and node.parent.type in _STATEMENTS else node
        yield whole.start_byte, whole.end_byte, subject.source.code[value.start_byte : value.end_byte]


def slot_of_loop(subject: Subject) -> Span | None:
    """The one statement in the loop over keys that works out a pipeline slot (``t % 2``, ``t & 1``); None for none, or
    several.
    """
    loop = subject.lifted.anchors.kv_loop
    if loop is None:
        return None
    node = subject.source.root.descendant_for_byte_range(loop.span.start, max(loop.span.end - 1, loop.span.start))
    while node is not None and node.type not in ("for_statement", "while_statement"):
        node = node.parent
    body = node.child_by_field_name("body") if node is not None else None
    found: list[Span] = []
    stack = list(body.named_children) if body is not None else []
    while stack:
        node = stack.pop()
        if node.type == "init_declarator" and (value := node.child_by_field_name("value")) is not None:
            text = subject.source.clean_text(value)
            if re.search(r"[%&^]", text) and re.search(rf"\b{re.escape(loop.iv)}\b", text):
                found.append(subject.source.span(node.parent or node))
        elif node.type != "for_statement":
            stack.extend(node.named_children)
    return found[0] if len(found) == 1 else None
