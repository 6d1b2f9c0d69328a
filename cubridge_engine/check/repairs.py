"""Quick fixes as data: the edits for a finding, worked out on the syntax tree. None where there is not one way.

Whether an edit does what it should is not decided here: see `fixes.verified`.
"""

from __future__ import annotations

import re

from tree_sitter import Node

from ..diagnostics import Span
from ..source import SourceFile
from .model import Edit, Fix
from .subject import Subject

_LITERAL = re.compile(rb"(?<![\w.])\d+(?![\w.])")


def smaller_wait(subject: Subject, wait: Span) -> Fix | None:
    """Let a wait leave one group fewer in flight: its only number goes down by one."""
    found = list(_LITERAL.finditer(subject.source.data, wait.start, wait.end))
    if len(found) != 1 or int(found[0].group()) < 1:
        return None
    number = int(found[0].group()) - 1
    span = subject.source.span_of(found[0].start(), found[0].end())
    return Fix(f"Leave {number} groups in flight", (Edit(span, str(number)),))


def wait_before(subject: Subject, barrier: Span, like: Span | None) -> Fix | None:
    """Insert a wait for all groups before a barrier, in the words of another wait of the kernel."""
    text = 'asm volatile("cp.async.wait_group 0;\\n" ::: "memory");'
    if like is not None:
        words = subject.source.data[like.start : like.end]
        if len(_LITERAL.findall(words)) == 1:
            text = _LITERAL.sub(b"0", words).decode("utf-8", "replace").rstrip(";") + ";"
    return Fix("Insert a wait for the copies", (_line_before(subject.source, barrier.start, text),))


def barrier_after(subject: Subject, statement: Span) -> Fix:
    """Insert a barrier behind a statement."""
    end = subject.source.index.line_end(statement.end_line)
    indent = _indent(subject.source, statement.start)
    edit = Edit(subject.source.span_of(end, end), f"{_newline(subject.source)}{indent}__syncthreads();")
    return Fix("Insert __syncthreads()", (edit,))


def barrier_between(subject: Subject, first: Span, second: Span, call: str = "__syncthreads") -> Fix | None:
    """Insert a barrier between two accesses: before the statement of the second one, in the innermost block that holds
    both; at the end of the loop where the second one is that of the next trip.
    """
    source = subject.source
    a, b = (source.root.descendant_for_byte_range(s.start, max(s.end - 1, s.start)) for s in (first, second))
    block = _common_block(a, second)
    if block is None or b is None:
        return None
    title = f"Insert {call}()"
    if first.start >= second.start:
        if block.type != "compound_statement" or _loop_of(block) is None:
            return None
        end = block.end_byte - 1
        inner = _indent(source, block.named_children[-1].start_byte if block.named_children else block.start_byte)
        return Fix(title, (_line_before(source, end, f"{call}();", inner),))
    statement = next(
        (n for n in block.named_children if n.start_byte <= second.start and second.end <= n.end_byte), None
    )
    if statement is None or (statement.start_byte <= first.start and first.end <= statement.end_byte):
        return None
    indent = _indent(source, statement.start_byte)
    before = statement.prev_named_sibling
    while before is not None and before.type.startswith("preproc") and before.start_byte > first.end:
        statement, before = before, before.prev_named_sibling
    return Fix(title, (_line_before(source, statement.start_byte, f"{call}();", indent),))


def barriers_before(subject: Subject, access: Span, most: int, call: str = "__syncthreads") -> list[Fix]:
    """A barrier before each statement of the blocks around an access, up to its own; the nearest first."""
    source = subject.source
    node = source.root.descendant_for_byte_range(access.start, max(access.end - 1, access.start))
    found: list[Fix] = []
    while node is not None and node.type != "function_definition" and len(found) < most:
        if node.type == "compound_statement":
            for child in reversed(node.named_children):
                if child.start_byte <= access.start and not child.type.startswith(
                    ("preproc", "comment", "declaration")
                ):
                    line = _line_before(source, child.start_byte, f"{call}();", _indent(source, child.start_byte))
                    found.append(Fix(f"Insert {call}()", (line,)))
        node = node.parent
    return found[:most]


def stricter(subject: Subject, condition: Span, names: frozenset[str]) -> Fix | None:
    """The other strictness for the only comparison in `condition` whose side is one of `names` alone."""
    source = subject.source
    root = source.root.descendant_for_byte_range(condition.start, max(condition.end - 1, condition.start))
    found: list[Node] = []
    stack = [root] if root is not None else []
    while stack:
        node = stack.pop()
        stack.extend(node.named_children)
        if node.type != "binary_expression" or not (condition.start <= node.start_byte <= condition.end):
            continue
        operator = node.child_by_field_name("operator")
        sides = [node.child_by_field_name(f) for f in ("left", "right")]
        words = {source.clean_text(s) for s in sides if s is not None}
        if operator is not None and operator.type in _OTHER and words & names:
            found.append(operator)
    if len(found) != 1:
        return None
    new = _OTHER[found[0].type]
    return Fix(f"Compare with {new}", (Edit(source.span(found[0]), new),))


_OTHER = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}


def rounded_up(subject: Subject, statement: Span) -> Fix | None:
    """``x / n`` as ``(x + n - 1) / n``, where it is the only quotient of a statement."""
    source = subject.source
    root = source.root.descendant_for_byte_range(statement.start, max(statement.end - 1, statement.start))
    found: list[Node] = []
    stack = [root] if root is not None else []
    while stack:
        node = stack.pop()
        stack.extend(node.named_children)
        operator = node.child_by_field_name("operator") if node.type == "binary_expression" else None
        if operator is not None and operator.type == "/" and statement.start <= node.start_byte <= statement.end:
            found.append(node)
    if len(found) != 1:
        return None
    left, right = (found[0].child_by_field_name(f) for f in ("left", "right"))
    if left is None or right is None or right.type not in ("identifier", "number_literal"):
        return None
    x, n = source.text(left), source.text(right)
    return Fix("Round the number of tiles up", (Edit(source.span(found[0]), f"({x} + {n} - 1) / {n}"),))


def whole_warp(subject: Subject, statement: Span, mask: int) -> Fix | None:
    """The mask of all lanes in the place of `mask`, where the statement writes it once as a number."""
    found = list(re.finditer(rb"\b0[xX][0-9a-fA-F]+[uU]?\b", subject.source.data[statement.start : statement.end]))
    same = [m for m in found if int(m.group().rstrip(b"uU"), 16) == mask]
    if len(same) != 1:
        return None
    start = statement.start + same[0].start()
    span = subject.source.span_of(start, start + len(same[0].group()))
    return replaced("Name the whole warp", span, "0xffffffffu")


def guarded_inverse(subject: Subject, inverse: Span) -> Fix | None:
    """``1 / l`` as ``l == 0 ? 0 : 1 / l``."""
    source = subject.source
    node = source.root.descendant_for_byte_range(inverse.start, max(inverse.end - 1, inverse.start))
    while node is not None and not (node.type == "binary_expression" and node.end_byte >= inverse.end):
        node = node.parent
    operator = node.child_by_field_name("operator") if node is not None else None
    divisor = node.child_by_field_name("right") if node is not None else None
    if node is None or divisor is None or operator is None or operator.type != "/":
        return None
    if node.start_byte != inverse.start or divisor.type not in ("identifier", "subscript_expression"):
        return None
    text = f"{source.text(divisor)} == 0.f ? 0.f : {source.text(node)}"
    return replaced("Give 0 where the row sum is 0", source.span(node), text)


def replaced(title: str, span: Span, text: str) -> Fix:
    """One place gets another text."""
    return Fix(title, (Edit(span, text),))


# ---- places


def _common_block(node: Node | None, other: Span) -> Node | None:
    """The innermost block or loop body around `node` that holds the other place too."""
    while node is not None:
        if node.type == "compound_statement" and node.start_byte <= other.start and other.end <= node.end_byte:
            return node
        node = node.parent
    return None


def _loop_of(block: Node) -> Node | None:
    parent = block.parent
    return parent if parent is not None and parent.type in ("for_statement", "while_statement") else None


def _indent(source: SourceFile, at: int) -> str:
    start = source.data.rfind(b"\n", 0, at) + 1
    line = source.data[start:at]
    return (line[: len(line) - len(line.lstrip())] if line.strip() else line).decode("utf-8", "replace")


def _newline(source: SourceFile) -> str:
    return "\r\n" if b"\r\n" in source.data[:4096] else "\n"


def _line_before(source: SourceFile, at: int, text: str, indent: str | None = None) -> Edit:
    """A line of its own before the line of byte `at`."""
    start = source.data.rfind(b"\n", 0, at) + 1
    if source.data[start:at].strip():  # something stands before it on its line
        return Edit(source.span_of(at, at), f"{text} ")
    indent = _indent(source, at) if indent is None else indent
    return Edit(source.span_of(start, start), f"{indent}{text}{_newline(source)}")
