"""Copies of Q, K and V into shared memory."""

from __future__ import annotations

from typing import Any

from ..ir.expr import Const, Expr, Var
from ..ir.nodes import Copy
from .jobs import Job
from .memory import Wave
from .problem import head_map, head_of
from .rewrite import NotExpressible
from .state import Emission
from .trace import BoxCopy
from .values import Node, Poly, Value, same


def copy_jobs(e: Emission, items: list[Any]) -> list[Job]:
    here = {id(x) for x in items}
    jobs: list[Job] = []
    for wave in e.memory.waves:
        event = wave.parts[0].event
        if id(event) in here:
            jobs.append(Job(event.order, event.place, lambda wave=wave: _copy(e, wave)))
    return jobs


def _copy(e: Emission, wave: Wave) -> None:
    part = wave.parts[0]
    buffer = next((b for b in e.memory.buffers if wave in b.waves), None)
    if buffer is None:
        raise NotExpressible("a copy into a buffer that is not understood")
    role = next((r for r, t in e.problem.tensors.items() if t == wave.tensor), None)
    if role is None:
        raise NotExpressible("a copy of a tensor that no matrix product uses")
    start = min(int(p.address[p.active].min()) for p in wave.parts)
    slot = e.writer.uniform(e.memory.slot_of(buffer, start, part.slot))
    covered = {(r, c) for p in wave.parts for r, c in _elements(p)}
    if len(covered) != wave.rows * wave.columns:
        raise NotExpressible(f"a copy of {len(covered)} of {wave.rows * wave.columns} elements of the tile")
    limits = {None if p.limit is None else _uid(p.limit) for p in wave.parts}
    if len(limits) != 1:
        raise NotExpressible("a copy whose parts have different row limits")
    row0 = e.writer.uniform(part.access.row0)
    limit = None if part.limit is None else _limit(e, role, part.limit)
    vector = part.count * e.memory.element_sizes.get(wave.tensor, 2)
    head = _head(e, role, part.access.base)
    table, page = _pages(e, wave.tensor)
    e.emit(
        Copy(
            e.buffer_names[id(buffer)],
            slot,
            role,
            row0,
            wave.rows,
            limit,
            part.is_async,
            vector,
            head,
            table=table,
            page=page,
            signal=e.writer.uniform(part.event.signal) if isinstance(part.event, BoxCopy) else None,
            origin=e.origin(part.event.place),
        )
    )
    e.sites.append(("copy", (role, wave)))
    e.steps.setdefault(f"load_{role}", e.origin(part.event.place))


def _pages(e: Emission, tensor: int) -> tuple[str, int]:
    """The table that a copy looks its rows up in, and the rows of a page."""
    pages = e.memory.pages.get(tensor)
    found = [e.memory.pages.get(position) for role, position in e.problem.tensors.items() if role in ("k", "v")]
    kinds = {None if p is None else (p.table, p.size, p.batch) for p in found}
    if len(kinds) > 1:
        raise NotExpressible("K and V that do not lie in the same pages")
    if pages is None:
        return "", 0
    if pages.batch is not e.problem.b:
        raise NotExpressible("a table of pages whose row is not the batch")
    e.writer.operand_strides[pages.table] = (e.writer.uniform(pages.stride), Const(1))
    return e.writer.param_names[pages.table], pages.size


def _limit(e: Emission, role: str, limit: Value) -> Expr:
    expr = e.writer.uniform(limit)
    if e.problem.shared_length and role in ("k", "v") and expr == Var("Sq"):
        return Var("Sk")
    return expr


def _elements(part: Any) -> list[tuple[int, int]]:
    rows, columns = part.access.row[part.active].tolist(), part.access.column[part.active].tolist()
    return [(r, c + k) for r, c in zip(rows, columns, strict=True) for k in range(part.count)]


def _head(e: Emission, role: str, base: Value) -> Expr | None:
    """The head that a copy reads, when it is not the one the grid map says."""
    expected = e.problem.h if role == "q" else e.problem.hk
    other, _ = head_of(e.machine.store, base, e.problem.b)
    if other == 0 or other is expected or same(other, expected):
        return None
    saved = e.problem.hk
    e.problem.hk = other
    expr = head_map(e.problem)
    e.problem.hk = saved
    return expr


def _uid(value: Value) -> Any:
    return value.uid if isinstance(value, Node) else value.key if isinstance(value, Poly) else value
