"""Barriers and shuffles that not all of their threads come to, from what execution met."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...diagnostics import Related
from ...lift.observed import Meeting, Shuffle
from .. import repairs
from ..model import Finding
from ..subject import Subject, every, finding


def barriers(subject: Subject) -> Iterator[Finding]:
    """CB854 and CB855: a barrier of the block inside a branch that threads part at, or behind one that ends some."""
    seen: set[int] = set()
    for step in every(subject.observed.steps):
        if not isinstance(step, Meeting) or step.scope != "cta" or step.named or not step.proven or not step.splits:
            continue
        at = step.place.site
        around = [s for s in step.splits if s[0] <= at[0] and at[1] <= s[1]]
        split = around[-1] if around else step.splits[0]
        if split[0] in seen:
            continue
        seen.add(split[0])
        condition = _condition(subject, split)
        if around or (step.place.callee is not None and _covers(step, split)):
            related = (Related(subject.source.span_of(*_head(subject, split)), "the branch"),)
            yield finding("CB854", subject.span(step.place), "barrier", related=related, condition=condition)
        else:
            related = (Related(subject.span(step.place), "the barrier"),)
            span = subject.source.span_of(*_head(subject, split))
            yield finding("CB855", span, "barrier", related=related, condition=condition)


def _covers(step: Meeting, split: tuple[int, int]) -> bool:
    """True when the barrier is inside the branch, in a device function."""
    callee = step.place.callee
    return callee is not None and split[0] <= callee[0] and callee[1] <= split[1]


def _condition(subject: Subject, split: tuple[int, int]) -> str:
    """The text of a branch's condition, in quotes."""
    node = subject.source.root.descendant_for_byte_range(split[0], max(split[1] - 1, split[0]))
    while node is not None and node.child_by_field_name("condition") is None:
        node = node.parent
    condition = node.child_by_field_name("condition") if node is not None else None
    if condition is None:
        return "its condition"
    condition = condition.child_by_field_name("value") or condition
    return f"`{' '.join(subject.source.text(condition).split())}`"


def _head(subject: Subject, split: tuple[int, int]) -> tuple[int, int]:
    """The first line of a branch, which is what is shown."""
    data = subject.source.data
    end = data.find(b"\n", split[0], split[1])
    return split[0], split[1] if end < 0 else end


def shuffles(subject: Subject) -> Iterator[Finding]:
    """CB860: lanes that execute a shuffle and are not in its mask, or are in it and do not come."""
    threads = subject.observed.threads
    if not threads.size:
        return
    seen: set[int] = set()
    for step in every(subject.observed.steps):
        if not isinstance(step, Shuffle) or step.active is None or step.place.site[0] in seen:
            continue
        named = (step.mask >> (threads % 32)) & 1 == 1
        problem = ""
        if bool((step.active & ~named).any()):
            lane = int(threads[step.active & ~named][0] % 32)
            problem = f"leaves out lane {lane}, which executes it"
        else:
            warps = np.unique(threads[step.active] // 32)
            absent = np.isin(threads // 32, warps) & named & ~step.active
            if bool(absent.any()):
                problem = f"names lane {int(threads[absent][0] % 32)}, which does not come to it"
        if problem:
            seen.add(step.place.site[0])
            related: tuple[Related, ...] = ()
            mask = f"0x{step.mask:x}"
            span = subject.span(step.place)
            if step.place.callee is not None:  # the mask stands in the device function
                related = (Related(span, "called here"),)
                span = subject.source.span_of(*step.place.callee)
            fix = repairs.whole_warp(subject, span, step.mask) if bool(step.active.all()) else None
            yield finding("CB860", span, "warp", related=related, fix=fix, mask=mask, problem=problem)
