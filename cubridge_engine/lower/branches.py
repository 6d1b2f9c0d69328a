"""The branch that a vote was.

ptxas moves the wait for a wgmma to the top of its basic block, and then serialises the products (C7513), so a kernel
that overlaps its products keeps a branch between the exponentials and that wait. Where the vote on doing a tile again
was this branch, the wait that stands in the same place elsewhere in the kernel, for a barrier that is long complete,
takes over.
"""

from __future__ import annotations

from collections.abc import Iterator

from tree_sitter import Node

from ..transfer.model import Step
from .context import Job
from .hunks import Hunk
from .liveness import NO_CODE, Callee, Uses, called_name


def instead_of_vote(job: Job, uses: Uses, vote: Node, step: Step) -> list[Hunk]:
    """Before what follows a call of the vote's function: the wait that stands before the same statement elsewhere."""
    home = next((c for c in uses.callees.values() if _holds(c.body, vote)), None)
    hunks: list[Hunk] = []
    for call in uses.calls.get(home.name, ()) if home is not None else ():
        following = _next(call.parent)
        wait = _wait_before_same(job, uses, following) if following is not None else None
        if following is None or wait is None:
            continue
        end = job.source.data.find(b"\n", wait.end_byte)
        text = job.text(wait.start_byte, end).rstrip()
        start = following.start_byte
        hunks.append(job.hunk(start, start, f"{text}{job.style.newline}{job.line_indent(start)}", step))
    return hunks


def _wait_before_same(job: Job, uses: Uses, statement: Node) -> Node | None:
    text = job.text(statement.start_byte, statement.end_byte)
    around = statement
    while around.parent is not None and around.type != "function_definition":
        around = around.parent
    for node in _statements(around):
        same = node != statement and job.text(node.start_byte, node.end_byte) == text
        before = _previous(node) if same else None
        if before is not None and _is_wait(job, uses, before):
            return before
    return None


def _is_wait(job: Job, uses: Uses, statement: Node) -> bool:
    """True for a call of a function that is one asm with a loop in it."""
    call = statement.named_children[0] if statement.named_children else None
    name = called_name(call) if call is not None and call.type == "call_expression" else None
    callee: Callee | None = uses.callees.get(job.text(name.start_byte, name.end_byte)) if name is not None else None
    code = [c for c in callee.body.named_children if c.type not in NO_CODE] if callee is not None else []
    inner = code[0].named_children[0] if len(code) == 1 and code[0].named_children else None
    return inner is not None and inner.type == "gnu_asm_expression" and b"bra " in (inner.text or b"")


def _statements(node: Node) -> Iterator[Node]:
    for child in node.named_children:
        if child.type == "expression_statement":
            yield child
        else:
            yield from _statements(child)


def _next(statement: Node | None) -> Node | None:
    found = statement.next_named_sibling if statement is not None else None
    while found is not None and found.type in NO_CODE:
        found = found.next_named_sibling
    return found


def _previous(statement: Node) -> Node | None:
    found = statement.prev_named_sibling
    while found is not None and found.type in NO_CODE:
        found = found.prev_named_sibling
    return found


def _holds(body: Node, node: Node) -> bool:
    return body.start_byte < node.start_byte and node.end_byte < body.end_byte
