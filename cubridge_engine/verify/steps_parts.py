"""The operations of a program at which its steps are judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..ir.nodes import (
    NOWHERE,
    Copy,
    For,
    Kernel,
    Map,
    Mask,
    Mma,
    Op,
    Origin,
    RowMap,
    RowReduce,
    Score,
    StoreRow,
    StoreTile,
)
from ..transfer.semantics import kv_loop_of, state_names, walk_ops
from ..transfer.structure import NotAttention

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Parts:
    """Each is None where the program has no such operation. `last` is the last operation of a trip; `late_scores` the
    last change of the scores where one follows the maximum. `acc`, `l` and `m` are names of the O tile and of rows.
    """

    loop: For
    last: Op
    qk: Mma
    exp: Map
    pv: Mma | None
    score: Score | None
    score_origin: Origin
    late_scores: Op | None
    rows: int  # Br
    acc: str
    m: str
    l: str  # noqa: E741 - the field's own name for it
    exp_origin: Origin  # the statement that takes the exponential
    m_origin: Origin
    l_origin: Origin  # what writes l last in a trip
    l_first: bool  # l is complete before P V
    correction: RowMap | None
    rescale: Map | None
    store_tile: StoreTile | None
    store_row: StoreRow | None
    copy_k: Copy | None
    ops: tuple[Op, ...]  # of the whole program


def parts_of(kernel: Kernel) -> Parts:
    """The parts of a softmax program with one KV loop. Raises NotAttention."""
    loop = kv_loop_of(kernel)
    if sum(isinstance(op, For) and op.role == "kv_loop" for op in walk_ops(kernel.body)) > 1:
        raise NotAttention("it has more than one loop over key tiles")
    inside = list(walk_ops(loop.body))
    products = [op for op in inside if isinstance(op, Mma)]
    qk = [op for op in products if op.role == "qk"]
    pv = [op for op in products if op.role == "pv"]
    exps = [op for op in inside if isinstance(op, Map) and op.role == "exp"]
    if not qk or len(exps) != 1 or not loop.body:
        raise NotAttention("its products or its exponential are not one per trip")
    m, l = state_names(kernel, loop)  # noqa: E741
    tile = qk[-1].acc
    at_max = next((n for n, op in enumerate(inside) if isinstance(op, RowReduce) and op.role == "row_max"), len(inside))
    changes = [(n, op) for n, op in enumerate(inside) if isinstance(op, Score | Mask) and op.tile == tile]
    late = [op for n, op in changes if n > at_max]
    writes = [(n, op) for n, op in enumerate(inside) if l in (getattr(op, "row", ""), getattr(op, "dst", ""))]
    everywhere = list(walk_ops(kernel.body))
    score: Score | None = _last(Score, inside)
    start = next((op for op in everywhere if isinstance(op, RowMap) and op.row == m), None)
    return Parts(
        loop=loop,
        last=loop.body[-1],
        qk=qk[-1],
        exp=exps[0],
        pv=pv[-1] if pv else None,
        score=score,
        score_origin=NOWHERE if score is None else own_statement(score, everywhere),
        late_scores=late[-1] if late else None,
        rows=kernel.Br,
        acc=pv[-1].acc if pv else "",
        m=m,
        l=l,
        exp_origin=own_statement(exps[0], everywhere),
        m_origin=start.origin if start is not None else NOWHERE,
        l_origin=_origin(writes[-1][1]) if writes else NOWHERE,
        l_first=bool(writes and pv) and writes[-1][0] < inside.index(pv[-1]),
        correction=next((op for op in inside if isinstance(op, RowMap) and op.role == "correction"), None),
        rescale=next((op for op in inside if isinstance(op, Map) and pv and op.dst == op.src == pv[-1].acc), None),
        store_tile=_last(StoreTile, everywhere),
        store_row=_last(StoreRow, everywhere),
        copy_k=next((op for op in inside if isinstance(op, Copy) and op.tensor == "k"), None),
        ops=tuple(everywhere),
    )


def own_statement(op: Map | Score | Mask, ops: Sequence[Op]) -> Origin:
    """Where `op` is computed: a statement of its own before the one that stores it, if there is one. `ops` are those of
    the program: a statement that they come from too is not the operation's own. A mask shares its statements with the
    score that it masks.
    """
    spans = [_origin(other).span for other in ops if other is not op]
    if not isinstance(op, Mask):
        before = next((n for n, other in enumerate(ops) if other is op), 0)
        for n, other in enumerate(ops):
            if n < before or isinstance(other, RowMap | Mask):
                spans += _origin(other).also
    others = {(span.path, span.line) for span in spans if span is not None}
    at = op.origin.span
    own = [
        span
        for span in op.origin.also
        if at is not None and span.start < at.start and (span.path, span.line) not in others
    ]
    return Origin(max(own, key=lambda span: span.start), op.origin.provenance) if own else op.origin


def _last(kind: type[Any], ops: list[Op]) -> Any:
    return next((op for op in reversed(ops) if isinstance(op, kind)), None)


def _origin(op: Op) -> Origin:
    found: Origin = getattr(op, "origin", NOWHERE)
    return found


def reference_rows(values: Array, judged: Array, weight: Array | None = None) -> Array:
    """For each row of [CTAs, rows, columns] the value at its judged element of largest weight (the first, without
    weights); NaN for a row without one.
    """
    if values.shape[2] == 0:
        return np.full(values.shape[:2], np.nan)
    order = np.where(judged, 1.0 if weight is None else weight, -np.inf)
    at = order.argmax(axis=2)
    picked = np.take_along_axis(values, at[..., None], axis=2)[..., 0]
    return np.where(judged.any(axis=2), picked, np.nan)
