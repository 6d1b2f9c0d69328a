"""Edits of single expressions: initial row state, KV head, the division by the row sum."""

from __future__ import annotations

from tree_sitter import Node

from ..diagnostics import make
from ..ir.anchors import StateSite
from ..ir.expr import Expr, free_vars
from ..transfer.model import HeadEdit, InverseEdit, StateEdit, Step
from .context import CannotLower, Job
from .cuda_expr import float_literal, print_cuda
from .hoist import hoist
from .hunks import Hunk
from .liveness import arguments_of

_DIVISIONS = frozenset({"__fdividef", "__fdiv_rn", "fdividef"})


def at_state(job: Job, step: Step, edit: StateEdit) -> list[Hunk]:
    """The initial value of m or l, at every site."""
    sites = [s for s in job.anchors.state if s.role == edit.role]
    if not sites:
        raise job.missing(f"the initial value of {edit.role}", step)
    return [job.replace(s.value, ", ".join([_value(job, edit.value, s)] * s.copies), step) for s in sites]


def _value(job: Job, value: Expr, site: StateSite) -> str:
    row = site.names.text.get("row")
    if row is None and "i" in free_vars(value):
        raise CannotLower(make("CB410", site.statement, role=site.role))
    extra: dict[str, str] = {} if row is None else {"i": row}
    setup = job.anchors.setup_offset
    if site.at_setup and setup is not None and setup <= site.statement.start:
        value = hoist(value, job.scopes, extra, "sink")
    return print_cuda(value, job.scopes.at(site.names, extra))


def at_head(job: Job, step: Step, edit: HeadEdit) -> list[Hunk]:
    """The KV head expression."""
    site = job.anchors.head
    if site is None:
        raise job.missing("the KV head", step)
    return [job.replace(site.value, print_cuda(edit.expr, job.scopes.at(site.names)), step)]


def at_inverse(job: Job, step: Step, edit: InverseEdit) -> list[Hunk]:
    """The test for an empty row around 1/l, removed or added."""
    site = job.anchors.epilogue
    if site is None or site.inverse is None:
        raise job.missing("the division by the row sum", step)
    node = job.source.root.descendant_for_byte_range(site.inverse.start, site.inverse.end)
    old = job.text(site.inverse.start, site.inverse.end)
    if not edit.guarded:
        branch = _dividing_branch(job, node)
        if branch is None:
            raise job.missing("the division by the row sum", step)
        return [job.replace(site.inverse, branch, step)]
    total = divisor_text(job, node)
    if total is None:
        raise job.missing("the row sum that is divided by", step)
    zero = float_literal(0.0, job.style.float_suffix)
    return [job.replace(site.inverse, f"{total} == {zero} ? {zero} : {old}", step)]


def _dividing_branch(job: Job, node: Node | None) -> str | None:
    """Text of the branch of a conditional expression that divides."""
    while node is not None and node.type == "parenthesized_expression" and node.named_children:
        node = node.named_children[0]
    if node is None or node.type != "conditional_expression":
        return None
    for name in ("consequence", "alternative"):
        branch = node.child_by_field_name(name)
        if branch is not None and divisor_text(job, branch) is not None:
            return job.source.text(branch)
    return None


def division_called(job: Job, node: Node) -> str | None:
    """The function of a call that divides its first argument by its second."""
    name = node.child_by_field_name("function") if node.type == "call_expression" else None
    text = job.source.text(name) if name is not None else ""
    return text if text in _DIVISIONS and len(arguments_of(node)) == 2 else None


def divisor_text(job: Job, node: Node | None) -> str | None:
    """The text of what is divided by, in an expression."""
    if node is None:
        return None
    if node.type == "binary_expression" and any(c.type == "/" for c in node.children):
        right = node.child_by_field_name("right")
        return None if right is None else job.source.text(right)
    division = division_called(job, node)
    if division is not None:
        return job.source.text(arguments_of(node)[1])
    for child in node.named_children:
        found = divisor_text(job, child)
        if found is not None:
            return found
    return None
