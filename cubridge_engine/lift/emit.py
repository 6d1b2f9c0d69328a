"""From a trace to the body of a CuIR kernel: blocks of events become operations in program order."""

from __future__ import annotations

import dataclasses
from typing import Any

from ..ir.expr import NEG_INF, Call, Const, Expr, Var, free_vars
from ..ir.nodes import Alloc, Barrier, CpCommit, CpWait, For, If, LaneReduce, Let, Mask, Op, Opaque, RowMap, RowReduce
from . import emit_tiles, in_place
from .addresses import MemoryError_
from .emit_copies import copy_jobs
from .emit_groups import row_jobs, store_jobs, tile_jobs
from .jobs import Job
from .loops import uses
from .memory import Buffer
from .rewrite import NotExpressible
from .shape_types import Element, Row, look
from .state import Content, Emission, lane_of, layout_of
from .trace import Assign, Branch, Loop, Sync, Unknown
from .values import Node, Poly, Value


def emit_block(e: Emission, items: list[Any]) -> tuple[Op, ...]:
    """The operations of a block, in program order."""
    outer, e.ops = e.ops, []
    jobs = [
        *_structure_jobs(e, items),
        *copy_jobs(e, items),
        *tile_jobs(e, items),
        *row_jobs(e, items),
        *store_jobs(e, items),
    ]
    places: dict[int, Job] = {}
    for job in sorted(jobs, key=lambda j: j.order):
        before = len(e.ops)
        try:
            job.run()
        except (NotExpressible, MemoryError_) as why:
            del e.ops[before:]
            e.failures.append((job.place, str(why)))
            e.emit(Opaque((), job.writes, str(why), e.origin(job.place)))
            job.recover()
        places |= {id(op): job for op in e.ops[before:] if isinstance(op, RowReduce)}
    result = tuple(e.ops)
    e.ops = outer
    return fold_maximum(fold_copy(only_quads(e, merge_lanes(result), places)))


def fold_copy(ops: tuple[Op, ...]) -> tuple[Op, ...]:
    """``r = m; r = max(r, rowmax(S))`` is the row maximum that starts at m, if nothing between reads r or changes m."""
    for at, op in enumerate(ops):
        if not (isinstance(op, RowMap) and op.role == "other" and isinstance(op.expr, Var) and op.expr.name != op.row):
            continue
        old = op.expr
        for later, other in enumerate(ops[at + 1 :], at + 1):
            if isinstance(other, RowReduce) and other.dst == op.row and other.init == Var(op.row):
                folded = dataclasses.replace(other, init=old)
                return fold_copy((*ops[:at], *ops[at + 1 : later], folded, *ops[later + 1 :]))
            changed = isinstance(other, RowMap | RowReduce | LaneReduce) and _target(other) in (op.row, old.name)
            if changed or op.row in _names(other) or isinstance(other, For | If | Opaque):
                break
    return ops


def _target(op: RowMap | RowReduce | LaneReduce) -> str:
    return op.dst if isinstance(op, RowReduce) else op.row


def fold_maximum(ops: tuple[Op, ...]) -> tuple[Op, ...]:
    """``t = rowmax(S); n = max(m, t)`` is the row maximum that starts at m, if nothing else reads t."""
    result = list(ops)
    for at, op in enumerate(ops):
        if not (isinstance(op, RowReduce) and op.role == "row_max" and op.init == NEG_INF):
            continue
        lanes = ops[at + 1] if at + 1 < len(ops) else None
        after = at + 2 if isinstance(lanes, LaneReduce) else at + 1
        fold = ops[after] if after < len(ops) else None
        if not isinstance(fold, RowMap) or any(isinstance(x, Opaque) for x in ops):
            continue
        start = _other_maximum(fold.expr, op.dst)
        read = fold.row != op.dst and any(op.dst in _names(x) for x in ops[after + 1 :])
        if start is None or read:
            continue
        result[at] = dataclasses.replace(op, dst=fold.row, init=start)
        if isinstance(lanes, LaneReduce):
            result[at + 1] = dataclasses.replace(lanes, row=fold.row)
        return fold_maximum(tuple(x for k, x in enumerate(result) if k != after))
    return tuple(result)


def _other_maximum(expr: Expr, row: str) -> Expr | None:
    if isinstance(expr, Call) and expr.op == "max" and Var(row) in expr.args:
        other = expr.args[0] if expr.args[1] == Var(row) else expr.args[1]
        return other if isinstance(other, Var) and other.name != row else None
    return None


def _names(op: Op) -> set[str]:
    """Names of row vectors that an operation reads."""
    if isinstance(op, For | If):
        inner = [*op.body, *(op.orelse if isinstance(op, If) else ())]
        return set[str]().union(*(_names(x) for x in inner))
    found = {op.row} if isinstance(op, LaneReduce) else set[str]()
    for attribute in ("expr", "init", "cond", "keep", "guard"):
        value = getattr(op, attribute, None)
        if isinstance(value, Expr):
            found |= free_vars(value)
    return found


def merge_lanes(ops: tuple[Op, ...]) -> tuple[Op, ...]:
    """A reduction spread over 2, 8, 16 or 32 lanes and closed at once is a reduction over the row."""
    result: list[Op] = []
    for op in ops:
        last = result[-1] if result else None
        if (
            isinstance(op, LaneReduce)
            and isinstance(last, RowReduce)
            and last.dst == op.row
            and last.lanes not in (1, 4)
            and (last.role == "row_max" or last.init == Const(0.0))
        ):
            result[-1] = dataclasses.replace(last, lanes=1)
            continue
        result.append(op)
    return tuple(result)


def only_quads(e: Emission, ops: tuple[Op, ...], jobs: dict[int, Job]) -> tuple[Op, ...]:
    """A sum that the threads of a row keep apart has a place in CuIR where they are the quad of an mma fragment."""
    result: list[Op] = []
    for op in ops:
        if isinstance(op, RowReduce) and op.lanes not in (1, 4):
            job = jobs[id(op)]
            kept = op.role.removeprefix("row_")
            why = f"{op.lanes} threads share a row, and each keeps a {kept} of its own from tile to tile"
            e.failures.append((job.place, why))
            op = Opaque((), job.writes, why, op.origin)
        result.append(op)
    return tuple(result)


# ---- structure
# ------------------------------------------------------------------------------------------------------------


def _structure_jobs(e: Emission, items: list[Any]) -> list[Job]:
    jobs: list[Job] = []
    for item in _merged(items):
        if isinstance(item, Sync):
            jobs.append(Job(item.order, item.place, lambda item=item: _sync(e, item)))
        elif isinstance(item, Unknown):
            jobs.append(Job(item.order, item.place, lambda item=item: _unknown(e, item)))
        elif isinstance(item, Loop):
            jobs.append(Job(item.order, item.place, lambda item=item: _loop(e, item), ("o",)))
        elif isinstance(item, Branch):
            jobs.append(Job(item.order, item.place, lambda item=item: _branch(e, item), ("S",)))
    if items is not e.machine.trace.items:
        return jobs
    loads = [x for x in items if isinstance(x, Assign)]
    first = next((x for x in loads if isinstance(n := look(x.value), Node) and n.op in ("frag",)), None)
    if first is not None:
        jobs.append(Job(first.order, first.place, lambda: emit_tiles.preload(e, loads)))
    direct = next((x for x in loads if x.cells.dims and isinstance(e.shapes.element(x.value), Element)), None)
    found = e.shapes.element(direct.value) if direct is not None else None
    if (
        direct is not None
        and found is not None
        and found.direct is not None
        and found.tensor == e.problem.tensors.get("q")
    ):
        jobs.append(Job(direct.order, direct.place, lambda: emit_tiles.copy_direct(e, direct, found), ("S",)))
    return jobs


def _merged(items: list[Any]) -> list[Any]:
    """A uniform condition inside element loops is one branch, not one per element."""
    result: list[Any] = []
    known: dict[tuple[Any, int], Branch] = {}
    for item in items:
        if isinstance(item, Branch) and isinstance(item.condition, Node):
            key = (item.place, item.condition.uid)
            if key in known:
                known[key].then.extend(item.then)
                known[key].orelse.extend(item.orelse)
                continue
            item = known[key] = dataclasses.replace(item, then=list(item.then), orelse=list(item.orelse))
        result.append(item)
    return result


def _sync(e: Emission, item: Sync) -> None:
    origin = e.origin(item.place)
    if item.what == "commit":
        e.emit(CpCommit(origin))
    elif item.what == "wait":
        signal = None if item.signal is None else e.writer.uniform(item.signal)
        e.emit(CpWait(item.pending, signal, origin))
    else:
        e.emit(Barrier(item.scope, origin))


def _unknown(e: Emission, item: Unknown) -> None:
    last = e.ops[-1] if e.ops else None
    if isinstance(last, Opaque) and last.origin.span == e.source.span_of(*item.place.site):
        return
    e.failures.append((item.place, item.why))
    e.emit(Opaque((), item.writes or ("o",), item.why, e.origin(item.place)))


def _branch(e: Emission, item: Branch) -> None:
    condition = e.writer.uniform(item.condition)
    before = dict(e.current)
    then = emit_block(e, item.then)
    after_then, e.current = e.current, dict(before)
    orelse = emit_block(e, item.orelse)
    for name in {*after_then, *e.current}:
        left, right = after_then.get(name), e.current.get(name)
        if left is not right and left is not None and right is not None:
            e.current[name] = Content(set(), item.condition, left, right)
        elif right is None and left is not None:
            e.current[name] = left
    if not then and not orelse:
        return
    if then and not orelse and all(isinstance(op, Mask) for op in then):
        span = item.condition_range
        for op in then:
            assert isinstance(op, Mask)
            guard = condition if op.guard is None else Call("and", (condition, op.guard))
            guarded = dataclasses.replace(op, guard=guard)
            e.emit(guarded)
            e.sites.append(("guard", (op, guarded, span)))
        return
    e.emit(If(condition, then, orelse, e.origin(item.place)))


def _loop(e: Emission, loop: Loop) -> None:
    origin = e.origin(loop.place)
    is_kv = loop is e.kv_loop
    iv = "t" if is_kv else e.fresh_name("u")
    w = e.writer
    w.names[loop.iv] = Var(iv)
    w.bounds = True
    lo, hi = w.uniform(loop.lo), w.uniform(loop.hi)
    w.bounds = False
    if is_kv:
        lo, hi = w.key_bound(lo), w.key_bound(hi)
    outer = (w.kv0, w.iv, w.iv_name)
    w.iv, w.iv_name = loop.iv, iv
    entered = _enter(e, loop)
    lets: list[Op] = []
    if is_kv:
        kv0 = first_column(e, loop)
        w.kv0 = None
        lets.append(Let("kv0", w.uniform(kv0), origin))
        w.kv0 = e.body_kv0 = kv0
    body = emit_block(e, loop.items)
    _leave(e, loop, entered)
    w.kv0, w.iv, w.iv_name = outer
    e.emit(For(iv, lo, hi, loop.step, "kv_loop" if is_kv else "other", (*lets, *body), origin))
    if is_kv:
        e.steps["kv_loop"] = origin


def _enter(e: Emission, loop: Loop) -> dict[str, list[Any]]:
    """Names of the loop-carried values inside the loop."""
    groups: dict[str, list[Any]] = {}
    for carried in loop.carried:
        name = e.state_names.get((carried.cells.oid, carried.index))
        if name is not None and e.is_used(carried):
            groups.setdefault(name, []).append(carried)
    for name, members in groups.items():
        # From the second trip on, a state may hold what a reduction over four lanes left.
        lanes = None if name in e.tiles or name not in e.lanes else 4 if e.lane_count == 4 else 1
        if lanes == 4 and all(c.shared and not _by_quads(e, c) for c in members):
            lanes = 1
        e.hold(name, [c.node for c in members], lanes=lanes)
    return groups


def _by_quads(e: Emission, carried: Any) -> bool:
    """True for a row value that four threads hold, as the quads of a fragment or the threads of a row do."""
    info = e.shapes.info(carried.after)
    return isinstance(info, Row) and int(lane_of(info.i).max()) == 3


def _leave(e: Emission, loop: Loop, groups: dict[str, list[Any]]) -> None:
    for name, members in groups.items():
        for carried in members:
            if carried.after is carried.node:
                continue
            try:
                held = e.name_of(carried.after)
            except NotExpressible:
                held = None
            if held != name:
                why = f"the value of {name} after a trip is held elsewhere"
                e.failures.append((loop.place, why))
                e.emit(Opaque((), (name,), why, e.origin(loop.place)))
                break
        e.hold(name, [c.result for c in members])


def first_column(e: Emission, loop: Loop) -> Value:
    """The first key of the tile that a trip works on: what the copy into the slot that it reads has brought."""
    buffer, slot, order, direct = _key_read(e, loop)
    store = e.machine.store
    if buffer is None:
        return direct
    for wave in buffer.waves:
        part = wave.parts[0]
        if not uses(part.access.row0, loop.iv):
            continue
        start = min(int(p.address[p.active].min()) for p in wave.parts)
        written = e.memory.slot_of(buffer, start, part.slot)
        for shift in (0, -1, -2, -3, -4, -5):
            if shift == 0 and part.event.order > order:
                continue

            def moved(n: Node, shift: int = shift) -> Value | None:
                if n.op == "floordiv" and n.args[0] is loop.iv and n.args[1] == loop.step:
                    return store.add(n, shift)  # the number of the trip, by which a ring is counted
                return store.add(n, shift * loop.step) if n is loop.iv else None

            if _same(store.substitute(written, moved), slot):
                return store.substitute(part.access.row0, moved)
    raise NotExpressible("no copy brings the K tile that the loop reads")


def _key_read(e: Emission, loop: Loop) -> tuple[Buffer | None, Value, int, Value]:
    from .memory import events_of

    for event in events_of(loop.items):
        value = getattr(event, "value", None)
        found = e.shapes.contraction(value) if isinstance(value, Node) else None
        if found is None and isinstance(value, Node):
            found = next((c for c in (e.shapes.contraction(a) for a in value.args) if c is not None), None)
        if found is not None and found.role == "qk":
            right = found.right
            if right.buffer is None:
                return None, 0, event.order, right.direct.row0
            return right.buffer, right.slot, event.order, 0
    raise NotExpressible("no product of Q and K in the loop")


def _same(a: Value, b: Value) -> bool:
    if isinstance(a, Poly) and isinstance(b, Poly):
        return a.key == b.key
    return a is b or (isinstance(a, int) and isinstance(b, int) and a == b)


# ---- copies
# ---------------------------------------------------------------------------------------------------------------


# ---- tiles
# ----------------------------------------------------------------------------------------------------------------


# ---- rows
# -----------------------------------------------------------------------------------------------------------------


# ---- stores
# ---------------------------------------------------------------------------------------------------------------


# ---- allocations
# -----------------------------------------------------------------------------------------------------------


def allocations(e: Emission) -> list[Op]:
    """Alloc for shared buffers and register tiles."""
    p = e.problem
    result: list[Op] = []
    for buffer in e.memory.buffers:
        name = e.buffer_names.get(id(buffer))
        if name is None:
            continue
        dtype = "float32" if buffer.element == 4 else "io"
        origin = e.origin(buffer.waves[0].parts[0].event.place)
        result.append(
            Alloc(name, buffer.slots, buffer.rows, buffer.columns, dtype, "shared", layout_of(buffer), origin)
        )
    result.extend(in_place.allocations(e))
    for name in sorted(e.tiles):
        columns = p.Dv if name.startswith("O") else p.Bc
        result.append(Alloc(name, 1, p.Br, columns, "float32", "register", "fragment" if e.q_register else "row"))
    return result
