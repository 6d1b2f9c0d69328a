"""Loops whose trip count is not a number: executed once, with a symbolic variable and loop-carried values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from . import dispatch, listed, once, places, reinterpreted, rotation
from .machine import Machine, Scope, tracked, value_kind
from .syntax import Syn
from .trace import Carried, Loop
from .values import Cells, Node, NotUnderstood, Ptr, Value, is_uniform, non_negative, same
from .walking import walk

Execute = Callable[[Machine, Syn, Scope], "str | None"]
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "!=": "!="}


@dataclass(slots=True)
class _Body:
    syn: Syn
    update: Syn | None
    scope: Scope
    execute: Execute

    def run(self, m: Machine) -> None:
        """One trip."""
        signal = self.execute(m, self.syn, self.scope)
        if signal in ("break", "return"):
            raise NotUnderstood(f"{signal} out of a loop")
        if self.update is not None:
            dispatch.evaluate(m, self.update, self.scope)


@dataclass(slots=True)
class _Step:
    """How an integer or pointer element changes per trip."""

    cells: Cells
    index: int
    before: Value
    phi: Value
    after: Value
    counted_from: Value = 0  # of the loop variable


def symbolic(
    m: Machine, syn: Syn, scope: Scope, condition: Syn, update: Syn | None, body_syn: Syn, execute: Execute
) -> None:
    """Execute a loop with a symbolic trip count. What cannot be treated becomes an Unknown event."""
    body = _Body(body_syn, update, scope, execute)
    try:
        written = _written(m, body)
        steps = _steps(m, body, written)
        if m.rehearsal:
            # Someone rehearses a loop around this one: only what is written matters.
            _forget(m, written)
            return
        _execute(m, syn, condition, body, written, steps)
    except NotUnderstood as why:
        m.unknown(syn, str(why))


def _forget(m: Machine, written: list[tuple[Cells, int]]) -> None:
    for cells, index in written:
        value = cells.values[index]
        kind = value_kind(value)
        m.write(cells, index, value if isinstance(value, Ptr) else m.store.fresh("after", (), None, kind, False))


def _rehearse(m: Machine, body: _Body) -> dict[tuple[int, int], tuple[Cells, int, Value]]:
    """Run one trip for its writes only; returns them with the old values (the cells keep the new ones)."""
    born = m.oid
    was, order, epoch, top = m.rehearsal, m.order, m.epoch, m.shared_top
    m.rehearsal = True
    m.logs.append({})
    try:
        body.run(m)
    finally:
        log = m.logs.pop()
        m.rehearsal, m.order, m.epoch, m.shared_top = was, order, epoch, top
    return {k: v for k, v in log.items() if v[0].oid <= born}


def _undo(log: dict[tuple[int, int], tuple[Cells, int, Value]]) -> None:
    for cells, index, old in log.values():
        cells.values[index] = old


def _written(m: Machine, body: _Body) -> list[tuple[Cells, int]]:
    log = _rehearse(m, body)
    _undo(log)
    # A rehearsal runs inner loops twice only: an array that is written anywhere counts as written everywhere.
    arrays = {c.oid: c for c, _, _ in log.values()}
    return [(c, i) for c in arrays.values() for i in range(len(c.values))]


def _steps(m: Machine, body: _Body, written: list[tuple[Cells, int]]) -> dict[tuple[int, int], _Step]:
    """Rehearse with symbols in the integer and pointer elements, to see how they change."""
    counters = [
        (c, i)
        for c, i in written
        if (value_kind(c.values[i]) in ("int", "bool") or isinstance(c.values[i], Ptr)) and not tracked(c, c.values[i])
    ]
    if not counters:
        return {}
    saved = [(c, i, c.values[i]) for c, i in counters]
    phis: list[Value] = []
    for cells, index, before in saved:
        phi: Value = m.store.fresh("phi", (), (cells.oid, index), "int", is_uniform(before))
        if isinstance(before, Ptr):
            phi = Ptr(before.space, before.root, phi, before.ctype, before.dims)
        phis.append(phi)
        cells.values[index] = phi
    m.thorough = _counts_inside(body.syn, {c.name for c, _ in counters})
    log = _rehearse(m, body)
    m.thorough = False
    after = [c.values[i] for c, i in counters]
    _undo(log)
    for cells, index, before in saved:
        cells.values[index] = before
    found: dict[tuple[int, int], _Step] = {}
    registers = {c.oid for (c, _), end in zip(counters, after, strict=True) if tracked(c, end)}
    for (cells, index, before), phi, end in zip(saved, phis, after, strict=True):
        if isinstance(before, int) and cells.oid in registers:
            # An accumulator kept in integer registers: its start is a float's bits.
            m.write(cells, index, reinterpreted.bits_as_float(before))
        else:
            found[(cells.oid, index)] = _Step(cells, index, before, phi, end)
    return found


def _counts_inside(body: Syn, names: set[str]) -> bool:
    """True when an inner loop changes one of these variables: its end value then takes all trips to know."""
    for loop in body.walk():
        if loop.type not in ("for_statement", "while_statement"):
            continue
        inner = loop.get("body")
        for node in inner.walk() if inner is not None else ():
            target = node.get("left") if node.type == "assignment_expression" else None
            target = node.get("argument") if node.type == "update_expression" else target
            if target is not None and target.text in names:
                return True
    return False


def _increment(m: Machine, step: _Step) -> Value | None:
    """``after - phi`` when that is the same on every trip."""
    if isinstance(step.phi, Ptr):
        if not isinstance(step.after, Ptr):
            return None
        difference = m.store.add(step.after.offset, step.phi.offset, -1)
    elif value_kind(step.after) == "int":
        difference = m.store.add(step.after, step.phi, -1)
    else:
        return None
    return None if any(n.op == "phi" for n in walk([difference])) else difference


def _condition(
    m: Machine, condition: Syn, scope: Scope, steps: dict[tuple[int, int], _Step]
) -> tuple[_Step, str, Syn, Syn]:
    """The loop variable, the comparison with it on the left, the bound's syntax, and that of the variable: its name, or
    a sum of it and something else.
    """
    while condition.type == "parenthesized_expression":
        condition = condition.kids[0]
    left, right = condition.get("left"), condition.get("right")
    if condition.type != "binary_expression" or left is None or right is None or condition.op not in _MIRRORED:
        raise NotUnderstood("a loop condition that is no comparison")
    for side, other, op in ((left, right, condition.op), (right, left, _MIRRORED[condition.op])):
        name = side.get("left") if side.type == "binary_expression" and side.op == "+" else side
        found = scope.find(name.text) if name is not None and name.type == "identifier" else None
        if isinstance(found, Cells) and (found.oid, 0) in steps:
            return steps[(found.oid, 0)], op, other, side
    raise NotUnderstood("a loop condition without a counter")


def _execute(
    m: Machine,
    syn: Syn,
    condition: Syn,
    body: _Body,
    written: list[tuple[Cells, int]],
    steps: dict[tuple[int, int], _Step],
) -> None:
    counter, op, bound_syn, name = _condition(m, condition, body.scope, steps)
    ahead = name.get("right") if name.type == "binary_expression" else None  # ``t + n <= end``
    name = places.child(name, "left") if ahead is not None else name
    step = _increment(m, counter)
    if not isinstance(step, int) or step == 0:
        raise NotUnderstood("a loop whose counter does not move by a constant")
    lo = counter.before
    bound = dispatch.evaluate(m, bound_syn, body.scope)
    if ahead is not None:
        bound = m.store.add(bound, dispatch.evaluate(m, ahead, body.scope), -1)
    if op == "<=":
        bound = m.store.add(bound, 1)
    elif op == ">=":
        bound = m.store.add(bound, -1)
    if (op in ("<", "<=")) != (step > 0) and op != "!=":
        raise NotUnderstood("a loop that runs away from its bound")
    turned = _turned(m, body, written, steps)
    if turned is not None:
        bound = m.store.add(bound, step)  # the tile before the loop is one of the loop
    first_tile, last_tile = lo, m.store.add(bound, -step)
    counter.counted_from = listed.first_position(m, counter.phi, last_tile, step)
    if counter.counted_from != 0:
        lo, bound = (m.store.add(x, counter.counted_from, -1) for x in (lo, bound))
    descending_from_zero = step < 0 and isinstance(bound, int) and bound >= -1
    iv = m.store.fresh("iv" if non_negative(lo) or descending_from_zero else "iv_any", (), m.next_order(), "int", True)
    loop = Loop(m.order, m.place(syn), iv, lo, bound, step, syntax=syn, name=name.text)
    loop.hi_range = (bound_syn.start, bound_syn.end)
    loop.counted_from = counter.counted_from
    loop.lo_range = _initial_range(syn, name.text)
    if turned is not None:
        _unrotated(m, loop, body, written, steps, counter, turned)
        return
    behind = _conditional(m, steps, counter, first_tile, last_tile, step) if m.producing else {}
    _set_counters(m, steps, counter, iv, lo, step)
    for key, (before, _) in behind.items():
        m.write_quietly(steps[key].cells, steps[key].index, before)
    for cells, index in written:
        before = cells.values[index]
        if (cells.oid, index) not in steps:
            node = m.store.fresh("phi", (), (loop.order, cells.oid, index), _carried_kind(cells, before), False)
            loop.carried.append(Carried(cells, index, before, node))
            cells.values[index] = node
    outer, first_epoch = m.items, m.epoch
    m.items = loop.items
    m.observer.mark(m, "loop")
    try:
        body.run(m)
    finally:
        m.items = outer
        m.observer.mark(m, "close")
    loop.epochs = (first_epoch, m.epoch)
    for carried in loop.carried:
        carried.after = carried.cells.values[carried.index]
    tile = m.store.add(iv, counter.counted_from)
    for carried in loop.carried:
        carried.result = m.store.fresh("after", (carried.node,), None, carried.node.kind, False)
        set_once = once.sides(carried.after, carried.node) if m.producing else None
        if set_once is not None and once.in_one_trip(m, set_once[0], tile, first_tile, last_tile, step):
            m.write_quietly(carried.cells, carried.index, set_once[1])
        else:
            m.write_quietly(carried.cells, carried.index, carried.result)
    for key, entry in steps.items():
        left = behind[key][1] if key in behind else m.store.fresh("after", (), None, "int", is_uniform(entry.before))
        m.write_quietly(entry.cells, entry.index, left)
    m.record(loop)


def _conditional(
    m: Machine, steps: dict[tuple[int, int], _Step], counter: _Step, first: Value, last: Value, step: int
) -> dict[tuple[int, int], tuple[Value, Value]]:
    """Counters of a producer that move in one trip only: their values before it, and behind the loop. Those that move
    in all trips but the last are made to move in every trip: nothing reads them after the last.
    """
    found: dict[tuple[int, int], tuple[Value, Value]] = {}
    for key, entry in steps.items():
        parts = once.sides(entry.after, entry.phi)
        if parts is None or isinstance(entry.phi, Ptr):
            continue
        if once.more_to_come(parts[0], counter.phi, last, step):
            entry.after = parts[1]
        elif once.in_one_trip(m, parts[0], counter.phi, first, last, step):
            phi = entry.phi
            before = entry.before
            found[key] = before, m.store.substitute(parts[1], lambda n, p=phi, b=before: b if n is p else None)
    return found


def _turned(
    m: Machine, body: _Body, written: list[tuple[Cells, int]], steps: dict[tuple[int, int], _Step]
) -> rotation.Rotation | None:
    """The rotation of a consumer's software-pipelined loop; None for other loops."""
    if m.roles is None or m.producing or m.rotation is not None:
        return None
    return rotation.watch(m, lambda: _undo(_rehearse(m, body)), written, set(steps))


def _unrotated(
    m: Machine,
    loop: Loop,
    body: _Body,
    written: list[tuple[Cells, int]],
    steps: dict[tuple[int, int], _Step],
    counter: _Step,
    turned: rotation.Rotation,
) -> None:
    """Execute a rotated loop as the plain one."""

    def counters(at: Value) -> None:
        _set_counters(m, steps, counter, at, loop.lo, loop.step)

    def rehearse() -> None:
        m.thorough = True
        try:
            _rehearse(m, body)
        finally:
            m.thorough = False

    states = [(c, i) for c, i in written if (c.oid, i) not in steps]
    turn = rotation.Turn(lambda: body.run(m), rehearse, counters, loop.step)
    try:
        rotation.unrotated(m, loop, turned, turn, states, m.work.mark if m.work is not None else 0)
    except NotUnderstood:
        m.rotation = None
        raise
    for carried in loop.carried:
        carried.result = m.store.fresh("after", (carried.node,), None, carried.node.kind, False)
        m.write_quietly(carried.cells, carried.index, carried.result)
    counters(m.store.add(loop.hi, -loop.step))
    m.record(loop)


def _carried_kind(cells: Cells, before: Value) -> str:
    kind = value_kind(before)
    return (
        kind
        if kind in ("float", "reg", "wide", "bool")
        else "float"
        if cells.ctype.kind in ("float", "half", "bf16")
        else "reg"
    )


def _initial_range(syn: Syn, name: str) -> tuple[int, int] | None:
    initializer = syn.get("initializer")
    if initializer is None:
        return None
    for kid in initializer.walk():
        if kid.type == "init_declarator" and (d := kid.get("declarator")) is not None and d.text == name:
            value = kid.get("value")
            return (value.start, value.end) if value is not None else None
        if kid.type == "assignment_expression" and (d := kid.get("left")) is not None and d.text == name:
            value = kid.get("right")
            return (value.start, value.end) if value is not None else None
    return None


def _set_counters(
    m: Machine, steps: dict[tuple[int, int], _Step], counter: _Step, iv: Value, lo: Value, step: int
) -> None:
    """Give every counter its closed form over the loop variable."""
    travelled = m.store.add(iv, lo, -1)
    for entry in steps.values():
        value: Value
        increment = _increment(m, entry)
        if entry is counter:
            value = m.store.add(iv, entry.counted_from) if entry.counted_from != 0 else iv
        elif increment is not None:
            moved = _scaled(m, travelled, increment, step)
            if isinstance(entry.before, Ptr):
                value = Ptr(
                    entry.before.space,
                    entry.before.root,
                    m.store.add(entry.before.offset, moved),
                    entry.before.ctype,
                    entry.before.dims,
                )
            else:
                value = m.store.add(entry.before, moved)
        else:
            value = _cyclic(m, entry, travelled, step)
        m.write_quietly(entry.cells, entry.index, value)


def _scaled(m: Machine, travelled: Value, increment: Value, step: int) -> Value:
    """``travelled / step * increment``, exactly."""
    terms = m.store.poly(increment).terms
    if step == 1:
        return m.store.mul(travelled, increment)
    if all(isinstance(c, int) and c % step == 0 for c in terms.values()):
        return m.store.mul(travelled, m.store.lower({k: c // step for k, c in terms.items()}))
    return m.store.mul(m.store.divide(travelled, step, floor=True), increment)


def _cyclic(m: Machine, entry: _Step, travelled: Value, step: int) -> Value:
    """Stage counters: ``s ^= 1``, ``s = 1 - s``, ``s = (s + 1) % n``, ``s = s + 1 == n ? 0 : s + 1``."""
    phi, after = entry.phi, entry.after
    trips = m.store.mul(travelled, step) if step in (1, -1) else m.store.divide(travelled, step, floor=True)
    period: Value | None = None
    if isinstance(phi, Node) and isinstance(entry.before, int):
        if same(after, m.store.bits("bitxor", phi, 1)) or same(after, m.store.add(1, phi, -1)):
            period = 2
        elif isinstance(after, Node) and after.op in ("mod", "tmod") and same(after.args[0], m.store.add(phi, 1)):
            period = after.args[1]
        elif isinstance(after, Node) and after.op == "select":
            period = _wrap(m, phi, after)
    if isinstance(period, int) and 0 <= int(entry.before if isinstance(entry.before, int) else -1) < period:
        return m.store.remainder(m.store.add(trips, entry.before), period, floor=True)
    if isinstance(entry.before, Ptr):
        return Ptr(
            entry.before.space,
            entry.before.root,
            m.store.fresh("phi", (), None, "int", False),
            entry.before.ctype,
            entry.before.dims,
        )
    return m.store.fresh("phi", (), (entry.cells.oid, entry.index), "int", is_uniform(entry.before))


def _wrap(m: Machine, phi: Node, after: Node) -> Value | None:
    condition, a, b = after.args
    stepped = m.store.add(phi, 1)
    if not isinstance(condition, Node) or len(condition.args) != 2:
        return None
    wraps_first = a == 0 and same(b, stepped) and condition.op in ("eq", "ge")
    keeps_first = b == 0 and same(a, stepped) and condition.op in ("ne", "lt")
    if not (wraps_first or keeps_first):
        return None
    if same(condition.args[0], stepped):
        return condition.args[1]
    return m.store.add(condition.args[1], 1) if same(condition.args[0], phi) else None


def uses(value: Value, node: Node) -> bool:
    """True when `node` occurs in `value`."""
    return any(n is node for n in walk([value]))
