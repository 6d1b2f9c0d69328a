"""Lowering: carry the edits of a transfer into the user's own text, as small hunks in the file's own style."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import PurePath
from typing import Protocol, TypeVar

from ..diagnostics import Diagnostic, make
from ..ir.anchors import Anchors
from ..ir.nodes import Kernel, Param
from ..source import SourceFile
from ..transfer.model import (
    Edit,
    HeadEdit,
    InverseEdit,
    MaskEdit,
    NormaliserEdit,
    PagedEdit,
    ParamEdit,
    RangeEdit,
    ScoreEdit,
    StateEdit,
    Step,
    TransferResult,
    WalkEdit,
)
from .bounds import at_loop
from .context import CannotLower, Job
from .cuda_expr import NotInScope
from .elements import at_mask_site, at_score_sites
from .header import header_lines
from .hunks import Hunk, apply_hunks, merge
from .names import Hoisted, Scopes
from .normaliser import at_normaliser
from .pages import at_pages
from .params import Added, at_interface, carrier_of, source_name
from .state import at_head, at_inverse, at_state
from .style import NameMaker, Style
from .walk import at_walk, left_without_use

_E = TypeVar("_E", bound=Edit)


class LiftedLike(Protocol):
    """What lowering needs of a lifted kernel."""

    @property
    def kernel(self) -> Kernel | None: ...
    @property
    def anchors(self) -> Anchors: ...


@dataclass(frozen=True, slots=True)
class Lowered:
    """The adapted text, and the hunks that make it. `text` is None when a diagnostic is an error.

    `header_lines` carry no level: the caller knows it after verifying, and puts them in with ``header.with_header``.
    """

    hunks: tuple[Hunk, ...] = ()
    text: bytes | None = None
    params_added: tuple[str, ...] = ()
    bindings: dict[str, float | int] = field(default_factory=dict, hash=False)
    header_lines: tuple[str, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()


def lower(lifted: LiftedLike, result: TransferResult, source: SourceFile, *, spec: str = "") -> Lowered:
    """Print the edits of `result` into `source`. `spec` is the spec's file name for the header. Never raises."""
    kernel = lifted.kernel
    if kernel is None or result.target is None:
        return Lowered(diagnostics=result.diagnostics)
    job = _job(kernel, lifted.anchors, result, source)
    new = [p.name for _, e in result.edits if isinstance(e, ParamEdit) for p in e.params]
    clash = next((name for name in new if name in identifiers(source)), None)
    if clash is not None:
        return Lowered(diagnostics=(make("CB408", kernel.origin.span, name=clash),))
    try:
        hunks = _all_hunks(job)
    except CannotLower as problem:
        return Lowered(diagnostics=(problem.diagnostic,))
    except NotInScope as problem:
        return Lowered(diagnostics=(_out_of_scope(kernel, job, result, problem),))
    try:
        text = apply_hunks(source.data, hunks)
    except ValueError:
        twice = next((b for a, b in pairwise(hunks) if b.start < a.end), hunks[0])
        return Lowered(diagnostics=(make("CB407", source.span_of(twice.start, twice.end), start=twice.start),))
    lines = header_lines(PurePath(spec).name, "", result.binding_texts, result.operands)
    return Lowered(hunks, text, tuple(new), result.bindings, lines)


def identifiers(source: SourceFile) -> frozenset[str]:
    """Every identifier of the file's code (comments and strings apart): names that a new parameter must not take."""
    return Style(source.code.decode("utf-8", "replace")).identifiers


def _out_of_scope(kernel: Kernel, job: Job, result: TransferResult, problem: NotInScope) -> Diagnostic:
    words = {"h": "the head", "b": "the batch", "hk": "the KV head"}
    rule = _rule_of(result, problem)
    if problem.name in words and not words.keys() & job.anchors.setup_names.text.keys():
        return make("CB411", kernel.origin.span, rule=rule, what=words[problem.name], kernel=kernel.name)
    return make("CB402", kernel.origin.span, name=problem.name, rule=rule)


def _rule_of(result: TransferResult, problem: NotInScope) -> str:
    """The last rule that made an edit with that name in it, for the message."""
    for step, edit in reversed(result.edits):
        if problem.name in repr(edit):
            return step.rule
    return "lowering"


def _job(kernel: Kernel, anchors: Anchors, result: TransferResult, source: SourceFile) -> Job:
    assert result.target is not None
    style = Style(source.data.decode("utf-8", "replace"))
    operands = {o.name: o for o in result.operands}
    kinds = {"bool": "bool", "int32": "int", "int64": "int"}
    types = {o.name: kinds.get(o.dtype, "float") for o in operands.values()}
    types |= {"q0": "int", "kv0": "int", "Br": "int", "Bc": "int", "lane": "int", "qt": "int"}
    types |= {p.name: "int" for p in result.target.params if p.role.startswith(("stride", "flag"))}
    new = {p.name for p in result.target.params} - {p.name for p in kernel.params}
    hoisted = Hoisted(NameMaker(style.identifiers | new))
    spelling = {p.name: source_name(source, p) for p in kernel.params}
    for param in result.target.params if anchors.carrier is not None else ():
        carrier = carrier_of(anchors, kernel, param.ctype)
        if param.name in new and carrier is not None:
            spelling[param.name] = f"{carrier.prefix}{param.name}"
    scopes = Scopes(result.target, style, operands, types, anchors.setup_names, hoisted, spelling)
    return Job(source, anchors, result, scopes, style)


def _all_hunks(job: Job) -> tuple[Hunk, ...]:
    hunks: list[Hunk] = []
    walk = _only(job, WalkEdit)
    if walk is not None:
        hunks += at_walk(job, *walk)  # first: it brings names that the tests use
    score = _only(job, ScoreEdit)
    mask = _only(job, MaskEdit)
    hunks += at_score_sites(job, score, mask)
    if mask is not None:
        hunks += at_mask_site(job, *mask)
    paged = _only(job, PagedEdit)
    if paged is not None:
        hunks += at_pages(job, *paged)
    params: list[tuple[Param, Step]] = []
    for step, edit in job.result.edits:
        if isinstance(edit, RangeEdit):
            hunks += at_loop(job, step, edit)
        elif isinstance(edit, StateEdit):
            hunks += at_state(job, step, edit)
        elif isinstance(edit, HeadEdit):
            hunks += at_head(job, step, edit)
        elif isinstance(edit, InverseEdit):
            hunks += at_inverse(job, step, edit)
        elif isinstance(edit, ParamEdit):
            params += [(p, step) for p in edit.params]
    hunks += at_interface(job, Added(tuple(params)))
    hunks = [*_setup(job, score, mask), *hunks]
    normaliser = _only(job, NormaliserEdit)
    if normaliser is not None:
        hunks += at_normaliser(job, *normaliser, hunks)  # last: what the others use stays
    elif walk is not None:
        hunks += left_without_use(job, walk[0], hunks)
    return merge(hunks)


def _only(job: Job, kind: type[_E]) -> tuple[Step, _E] | None:
    """The one edit of a kind, with its step."""
    found = [(step, edit) for step, edit in job.result.edits if isinstance(edit, kind)]
    return found[0] if found else None


def _setup(job: Job, score: tuple[Step, ScoreEdit] | None, mask: tuple[Step, MaskEdit] | None) -> list[Hunk]:
    """The declarations of hoisted values, one line each."""
    lines = job.scopes.hoisted.lines
    if not lines:
        return []
    step = score[0] if score else mask[0] if mask else job.result.steps[-1]
    at = job.anchors.setup_offset
    if at is None:
        raise job.missing("a place before the loop for values computed once", step)
    text = "".join(f"{job.anchors.setup_indent}{line.text}{job.style.newline}" for line in lines)
    return [job.hunk(at, at, text, step)]
