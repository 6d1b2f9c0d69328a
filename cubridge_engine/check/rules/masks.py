"""Masks, tile guards and key ranges held against each other on small problems, element by element.

Every problem has tails and lengths that differ; a witness names the first element. What goes wrong only where
Sq != Sk may be a case that the kernel is not made for: then it is a warning.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...diagnostics import Related, Severity, Span
from ...ir.evaluate import UnboundName, evaluate
from ...ir.expr import Const, free_vars
from ...ir.nodes import For, Kernel, Map, Mask, Mma, Op, RowMap, RowReduce, Score, StoreTile
from ...ir.validate import iterate
from .. import repairs
from ..model import Finding, Fix
from ..problems import Problem, full_keys, operands, problems
from ..rowwise import COLUMNS, Rows, Tile, Undecided, run_masks, run_rows
from ..subject import Subject, finding
from ..text_places import bound_of, condition_of, guard_of

Array = NDArray[Any]
_LOW = -1e3  # a score that low has no weight beside any other


@dataclass(frozen=True, slots=True)
class _Case:
    """What is wrong at one element: the code, the operation, and the element."""

    code: str
    op: Op | None
    problem: Problem
    i: int
    j: int

    @property
    def equal(self) -> bool:
        """True when the lengths are equal."""
        return self.problem.sizes["Sq"] == self.problem.sizes["Sk"]


@dataclass(slots=True)
class _Seen:
    """The masks of one query tile on one problem, and the rows that are stored."""

    problem: Problem
    rows: Rows
    valid: Array  # [Br, 1]
    sk: int
    kernel: Kernel


def masks(subject: Subject) -> Iterator[Finding]:
    """CB863, CB864, CB865."""
    kernel = subject.kernel
    if kernel is None or not any(isinstance(op, Mma) and op.role == "pv" for op in iterate(kernel.body)):
        return
    found: dict[str, _Case] = {}
    for seen in _all_seen(kernel):
        for case in _cases(seen):
            known = found.get(case.code)
            if known is None or (case.equal and not known.equal):
                found[case.code] = case
    if "CB863" in found and "CB865" in found and found["CB863"].op is found["CB865"].op:
        del found["CB865"]  # one guard, one finding
    if {"CB863", "CB864"} <= set(found) and not found["CB863"].equal and not found["CB864"].equal:
        # Guard and range are of one mind, where lengths differ, and the mask of another.
        del found["CB864"]
        found["CB863"] = replace(found["CB863"], code="CB848")
    for case in found.values():
        yield _finding(subject, case)


def _all_seen(kernel: Kernel) -> Iterator[_Seen]:
    tensors = operands(kernel)
    if tensors is None:
        return
    for problem in problems(kernel):
        sq, sk = problem.sizes["Sq"], problem.sizes["Sk"]
        tiles = -(-sq // kernel.Br)
        for q_tile in sorted({0, tiles // 2, tiles - 1}):
            try:
                rows = run_masks(kernel, problem, tensors, q_tile)
            except (Undecided, UnboundName, ValueError):
                return
            i = rows.q0 + np.arange(kernel.Br).reshape(-1, 1)
            yield _Seen(problem, rows, i < sq, sk, kernel)


def _cases(seen: _Seen) -> Iterator[_Case]:
    normalised = any(isinstance(op, RowReduce) for op in iterate(seen.kernel.body))
    q0 = seen.rows.q0
    for tile in seen.rows.tiles:
        j = tile.first + np.arange(tile.raw.shape[1]).reshape(1, -1)
        attended, kept = tile.attended() & seen.valid, tile.kept()
        beyond = attended & (j >= seen.sk)
        if beyond.any() and normalised and not full_keys(seen.kernel):
            i, c = _first(beyond)
            guard = _untested(tile, i, c)
            code = "CB863" if guard is not None else "CB865"
            yield _Case(code, guard or _tail_op(seen.kernel), seen.problem, q0 + i, tile.first + c)
        missed = attended & ~kept & (j < seen.sk)
        if missed.any():
            i, c = _first(missed)
            yield _Case("CB863", _untested(tile, i, c), seen.problem, q0 + i, tile.first + c)
    yield from _outside(seen)


def _first(where: Array) -> tuple[int, int]:
    """The first element (row, column) that is true."""
    row, column = np.unravel_index(int(np.argmax(where)), where.shape)
    return int(row), int(column)


def _untested(tile: Tile, i: int, c: int) -> Mask | None:
    """The mask that would leave this element out, were it tested here."""
    return next((t.op for t in tile.tests if not t.keep[i, c] and not t.tested[i, c]), None)


def _tail_op(kernel: Kernel) -> Op | None:
    """Where the end of the keys should be masked: the mask, else the product that makes the scores."""
    ops = list(iterate(kernel.body))
    masked = [op for op in ops if isinstance(op, Mask)]
    ends = [op for op in masked if "Sk" in free_vars(op.keep)]
    scores = [op for op in ops if isinstance(op, Score)]
    products = [op for op in ops if isinstance(op, Mma) and op.role == "qk"]
    return next(iter([*ends, *masked, *scores, *products]), None)


def _outside(seen: _Seen) -> Iterator[_Case]:
    """Keys that the masks keep and no trip of the loop visits."""
    visited = {t.first for t in seen.rows.tiles}
    masks_ = [op for op in iterate(seen.kernel.body) if isinstance(op, Mask)]
    j = np.arange(seen.sk).reshape(1, -1)
    i = seen.rows.q0 + np.arange(seen.kernel.Br).reshape(-1, 1)
    hidden = np.ones((1, seen.sk), dtype=bool)
    for first in visited:
        hidden[0, max(first, 0) : max(first + seen.kernel.Bc, 0)] = False
    if not hidden.any():
        return
    env = _environment(seen)
    kept = np.broadcast_to(seen.valid & hidden, (seen.kernel.Br, seen.sk)).copy()
    for op in masks_:
        try:
            kept &= np.asarray(evaluate(op.keep, {**env, "i": i, "j": j}, operands(seen.kernel) or {}), dtype=bool)
        except UnboundName:
            return
    if kept.any():
        row, column = _first(kept)
        loop = next((op for op in iterate(seen.kernel.body) if isinstance(op, For) and op.role == "kv_loop"), None)
        yield _Case("CB864", loop, seen.problem, seen.rows.q0 + row, column)


def _environment(seen: _Seen) -> dict[str, Any]:
    env: dict[str, Any] = {**seen.problem.values, **seen.problem.sizes, "D": seen.kernel.D, "b": 0, "h": 0, "hk": 0}
    env |= {"q0": seen.rows.q0, "qt": seen.rows.q0 // seen.kernel.Br}
    for p in seen.kernel.params:
        if p.role in seen.problem.sizes:
            env.setdefault(p.name, seen.problem.sizes[p.role])
        elif p.role == "group":
            env.setdefault(p.name, 1)
    return env


def _fix(subject: Subject, case: _Case, span: Span | None) -> Fix | None:
    """The other strictness of the one comparison with the length, or a quotient rounded up."""
    kernel = subject.kernel
    if kernel is None or span is None:
        return None
    if case.code == "CB865":
        lengths = frozenset(p.name for p in kernel.params if p.role == "Sk")
        conditions = [s.condition for s in subject.lifted.anchors.mask]
        return repairs.stricter(subject, conditions[0], lengths) if len(conditions) == 1 else None
    return repairs.rounded_up(subject, span) if case.code == "CB864" else None


_WORDS = {
    "CB863": "row {i} still sees the masked key {j} at {sizes}",
    "CB864": "row {i} never meets key {j} at {sizes}",
    "CB848": "key {j} for row {i} at {sizes}",
    "CB865": "row {i} sees key {j} at {sizes}",
}


def _finding(subject: Subject, case: _Case) -> Finding:
    kernel = subject.kernel
    assert kernel is not None
    origin = getattr(case.op, "origin", kernel.origin)
    span: Span | None = origin.span
    related: tuple[Related, ...] = ()
    if case.code == "CB864":
        span, related = bound_of(subject, span, case.problem.flags)
    elif case.code == "CB863" and span is not None:
        span = guard_of(subject, span)
    elif isinstance(case.op, Mask) and len(subject.lifted.anchors.mask) == 1:
        span = subject.lifted.anchors.mask[0].condition
    elif isinstance(case.op, Mask) and span is not None:
        span = condition_of(subject, span, case.op.origin.also)
    witness = _WORDS[case.code].format(i=case.i, j=case.j, sizes=case.problem.words())
    severity = None if case.equal or case.code == "CB848" else Severity.WARNING
    fix = _fix(subject, case, span)
    return finding(
        case.code, span, "range" if case.code == "CB864" else "mask", related=related, severity=severity,
        fix=fix,
        confidence="certain" if case.equal else "likely", witness=witness,
    )  # fmt: skip


def fills(subject: Subject) -> Iterator[Finding]:
    """CB849: masked scores that are set to a number which other scores may have."""
    kernel = subject.kernel
    if kernel is None or not any(isinstance(op, RowReduce) and op.role == "row_max" for op in iterate(kernel.body)):
        return
    for op in iterate(kernel.body):
        if isinstance(op, Mask) and isinstance(op.fill, Const) and op.fill.value > _LOW:
            sites = [s.fill for s in subject.lifted.anchors.mask]
            fix = repairs.replaced("Set it to -INFINITY", sites[0], "-INFINITY") if len(sites) == 1 else None
            span = sites[0] if len(sites) == 1 else op.origin.span
            yield finding("CB849", span, "mask", fix=fix, fill=f"{op.fill.value:g}")
            return


# ---- NaN


def nan_rows(subject: Subject) -> Iterator[Finding]:
    """CB866, CB867: rows whose first tile, or every tile, is masked."""
    kernel = subject.kernel
    if kernel is None or not any(isinstance(op, Map) and op.role == "exp" for op in iterate(kernel.body)):
        return
    tensors = operands(kernel)
    if tensors is None:
        return
    said = subject.contract.empty_rows if subject.contract is not None else ""
    found: dict[str, Finding] = {}
    tried: set[tuple[bool, bool, bool]] = set()
    for seen in _all_seen(kernel):
        attended = [np.any(t.attended() & seen.valid, axis=1) for t in seen.rows.tiles]
        some = np.any(attended, axis=0) if attended else np.zeros(kernel.Br, dtype=bool)
        late = some & ~np.all(attended, axis=0) if attended else some
        empty = ~some & seen.valid[:, 0]
        kind = (bool(late.any()), bool(empty.any()), bool(seen.rows.tiles))
        if kind[:2] == (False, False) or kind in tried:
            continue
        tried.add(kind)
        for code, rows in (("CB866", late), ("CB867", empty)):
            if code not in found and rows.any() and not (code == "CB867" and said in ("nan", "undefined")):
                made = _nan_of(subject, kernel, seen, tensors, rows, code)
                if made is not None:
                    found[code] = made
    if "CB866" in found:
        found.pop("CB867", None)
    yield from found.values()


def _nan_of(subject: Subject, kernel: Kernel, seen: _Seen, tensors: Any, rows: Array, code: str) -> Finding | None:
    def scores(i: Array, j: Array) -> Array:
        return np.sin(12.9898 * i + 78.233 * j)

    def values(j: Array) -> Array:
        return np.ones((j.shape[0], COLUMNS))

    try:
        done = run_rows(kernel, seen.problem, tensors, seen.rows.q0 // kernel.Br, scores, values)
    except (Undecided, UnboundName, ValueError, KeyError):
        return None
    if done.o is None:
        return None
    wrong = [int(r) for r in np.flatnonzero(rows) if np.isnan(done.o[r]).any() and int(r) in done.nan_at]
    if not wrong:
        return None
    op = _source_of(kernel, done, wrong[0])
    sizes = seen.problem.words()
    row = seen.rows.q0 + wrong[0]
    words = f"row {row} at {sizes}"
    origin = getattr(op, "origin", kernel.origin)
    return finding(code, origin.span, "softmax", fix=_inverse(subject, code), witness=words)


def _inverse(subject: Subject, code: str) -> Fix | None:
    """The guard of 1 / l, where the text has that."""
    site = subject.lifted.anchors.epilogue
    if code != "CB867" or site is None or site.inverse is None or site.guarded:
        return None
    return repairs.guarded_inverse(subject, site.inverse)


def _source_of(kernel: Kernel, done: Rows, row: int) -> Op:
    """The operation that made the NaN of a row: for a product with infinity, the one that divided by 0."""
    op = done.nan_at[row]
    if isinstance(op, StoreTile):
        for name in free_vars(op.expr) & done.vectors.keys():
            if not np.isfinite(done.vectors[name][row]).all():
                made = [o for o in iterate(kernel.body) if isinstance(o, RowMap) and o.row == name]
                return made[-1] if made else op
    return op
