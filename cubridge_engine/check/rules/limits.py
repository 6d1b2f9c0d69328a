"""Row limits of loads and stores, held against the lengths of their tensors."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...diagnostics import Related
from ...ir.evaluate import UnboundName, evaluate
from ...ir.expr import Expr
from ...ir.nodes import Copy, Kernel, StoreRow, StoreTile
from ...ir.validate import iterate
from ..model import Finding
from ..subject import Subject, finding

_LENGTHS = {"B": 1, "H": 1, "Hkv": 1, "Sq": 1009, "Sk": 2003}


def limits(subject: Subject) -> Iterator[Finding]:
    """CB873: stores whose row limit is not the number of queries; O and the log-sum-exp are one finding."""
    kernel = subject.kernel
    if kernel is None:
        return
    ops = list(iterate(kernel.body))
    predicated = any(isinstance(op, Copy) and op.tensor == "q" and op.limit is not None for op in ops)
    stores = [op for op in ops if isinstance(op, StoreTile | StoreRow)]
    wrong = [(op, what) for op in stores if (what := _wrong(kernel, op.limit, predicated))]
    if not wrong:
        return
    first, what = wrong[0]
    related = tuple(Related(op.origin.span, "and here") for op, _ in wrong[1:] if op.origin.span is not None)
    size = _named(kernel, "Sq")
    yield finding("CB873", first.origin.span, "memory", related=related, what=f"rows of the output {what}", size=size)


def _wrong(kernel: Kernel, limit: Expr | None, predicated: bool) -> str:
    """What is wrong with the limit of a store; `predicated`: the loads of Q have one."""
    if limit is None:
        return "beyond its end are stored: the last tile of queries is not predicated" if predicated else ""
    env = {**_LENGTHS, **{p.name: _LENGTHS[p.role] for p in kernel.params if p.role in _LENGTHS}}
    try:
        rows = int(np.asarray(evaluate(limit, env)).flat[0])
    except UnboundName:
        return ""
    if rows == _LENGTHS["Sk"]:
        return f"are stored up to {_named(kernel, 'Sk')}, the number of keys"
    return ""


def _named(kernel: Kernel, role: str) -> str:
    """What the kernel calls a length."""
    return next((p.name for p in kernel.params if p.role == role), role)
