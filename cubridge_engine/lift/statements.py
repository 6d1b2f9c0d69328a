"""Execution of statements: declarations, branches, loops. A result is None, 'break', 'continue' or 'return'."""

from __future__ import annotations

from collections.abc import Callable

from . import (
    arithmetic,
    asm_macros,
    calls,
    conditions,
    declarations,
    dispatch,
    leaving,
    loops,
    places,
    roles,
    structs,
    tails,
)
from .machine import Machine, Scope, Stopped, value_kind
from .syntax import Syn
from .trace import Branch, Place
from .values import Cells, Function, Node, NotUnderstood, Ptr, Record, Value, is_uniform

Signal = str | None
_TERMINAL = frozenset({"return_statement", "continue_statement", "break_statement"})
_MOST_TRIPS = 4096
_MOST_ENDLESS = 64  # of ``while (true)``: by then its end is decided, or never


def execute(m: Machine, syn: Syn, scope: Scope) -> Signal:
    """Execute one statement; what has no meaning becomes an Unknown event."""
    rule = RULES.get(syn.type)
    if rule is None:
        m.unknown(syn, f"{syn.type.replace('_', ' ')} is not known to the lifter")
        return None
    if syn.type in _SIMPLE:
        m.statement = syn
        m.trace.executed.add((syn.start, syn.end))
        m.snapshot(syn, scope)
        try:
            return rule(m, syn, scope)
        except NotUnderstood as why:
            m.unknown(syn, str(why))
            poison(m, syn, scope)
            return None
    return rule(m, syn, scope)


def poison(m: Machine, syn: Syn, scope: Scope) -> None:
    """After a statement that was not understood, whatever it may have written has no known value."""
    done: set[int] = set()
    for kid in syn.walk():
        target: Syn | None = None
        if kid.type in ("assignment_expression", "update_expression"):
            target = kid.get("left") or kid.get("argument")
            while target is not None and target.type != "identifier":
                target = target.get("argument") or (target.kids[0] if target.kids else None)
        elif (
            kid.type == "identifier"
            and syn.type == "expression_statement"
            and syn.kids[0].type in ("call_expression", "gnu_asm_expression")
        ):
            target = kid
        elif kid.type == "init_declarator":
            target = kid.get("declarator")
        found = scope.find(target.text) if target is not None else None
        if isinstance(found, Ptr) and found.space == "local":
            found = found.root
        for cells in _variables(found):
            if cells.oid in done:
                continue
            done.add(cells.oid)
            for index, old in enumerate(cells.values):
                if not isinstance(old, Ptr):
                    kind = value_kind(old)
                    m.write(cells, index, m.store.fresh("unknown", (old,) if kind == "float" else (), None, kind))


def _variables(found: object) -> list[Cells]:
    """The variables behind a name: one, or the members of a record."""
    if isinstance(found, Record):
        return [cells for member in found.fields.values() for cells in _variables(member)]
    if isinstance(found, structs.Records):
        return [cells for item in found.items for cells in _variables(item)]
    usable = isinstance(found, Cells) and found.values and not isinstance(found.values[0], Function)
    return [found] if isinstance(found, Cells) and usable else []


def execute_all(m: Machine, kids: list[Syn], scope: Scope) -> Signal:
    """Statements in order. After an ``if`` that leaves, the rest is its else branch."""
    done = 0  # the end of an asm that the grammar took for several statements
    for at, kid in enumerate(kids):
        if kid.start < done:
            continue
        whole = asm_macros.expanded(m, kid)
        if whole is not None:
            done = whole[1]
            execute_all(m, whole[0].kids, scope)
            continue
        if kid.type == "if_statement" and _leaves(kid.get("consequence")) and kid.get("alternative") is None:
            return _if(m, kid, scope, kids[at + 1 :])
        signal = execute(m, kid, scope)
        if signal is not None:
            return signal
    return None


def _leaves(syn: Syn | None) -> bool:
    while syn is not None and syn.type == "compound_statement":
        syn = syn.kids[-1] if syn.kids else None
    return syn is not None and syn.type in _TERMINAL


def _compound(m: Machine, syn: Syn, scope: Scope) -> Signal:
    return execute_all(m, syn.kids, Scope(scope))


def _expression(m: Machine, syn: Syn, scope: Scope) -> Signal:
    first = syn.kids[0] if syn.kids else None
    declares = first is not None and first.type == "assignment_expression"
    if first is not None and not (declares and declarations.declares_rows(m, first, scope)):
        dispatch.evaluate(m, first, scope)
    return None


def _return(m: Machine, syn: Syn, scope: Scope) -> Signal:
    value: Value = None
    if syn.kids and syn.kids[0].type == "initializer_list" and (kind := m.frames[-1].result) is not None:
        ctype = places.read_type(m, *kind)
        value = structs.build(m, ctype, [dispatch.evaluate(m, k, scope) for k in syn.kids[0].kids], "", syn.start)
    elif syn.kids:
        value = dispatch.evaluate(m, syn.kids[0], scope)
    calls.returned(m, value)
    return "return"


# ---- branches
# ---------------------------------------------------------------------------------------------------------


def _if(m: Machine, syn: Syn, scope: Scope, rest: list[Syn] | None = None) -> Signal:
    condition_syn = syn.get("condition")
    inner = Scope(scope)
    m.statement = syn
    m.trace.executed.add((syn.start, syn.end))
    m.snapshot(syn, scope)
    try:
        if condition_syn is None:
            raise NotUnderstood("if without a condition")
        value_syn = condition_syn.get("value") or condition_syn.kids[-1]
        condition = arithmetic.boolean(m, dispatch.evaluate(m, value_syn, inner))
    except NotUnderstood as why:
        m.unknown(syn, str(why))
        return execute_all(m, rest, scope) if rest else None
    if m.rotation is not None and isinstance(condition, Node) and condition.op == "vote":
        m.rotation.votes.append(condition)  # either way leaves the same, which `weighing` checks
        m.rotation.again.add((syn.start, syn.end))
        condition = m.rotation.taken
    then = syn.get("consequence")
    alternative = syn.get("alternative")
    orelse = alternative.kids if alternative is not None else []
    sides = [then] if then is not None else [], orelse
    roles.look_for(m, syn, condition, *sides, rest is not None)
    if m.roles is not None and m.roles.site == (syn.start, syn.end):
        roles.run_producer(m, sides[0] if m.roles.producer_first else sides[1], inner, execute_all)
    if isinstance(condition, bool):
        if condition and then is not None:
            signal = execute(m, then, inner)
        else:
            signal = execute_all(m, orelse, inner)
        return signal if signal is not None or rest is None else execute_all(m, rest, scope)
    span = (value_syn.start, value_syn.end)
    if rest is not None and leaving.for_good(m, condition, then):
        return leaving.without_some(m, syn, condition, lambda: execute_all(m, rest, scope))
    if rest is None and leaving.around_work(m, condition, then, orelse):
        return leaving.for_rows(m, syn, condition, lambda: execute_all(m, sides[0], inner))
    return _branch(
        m,
        syn,
        condition,
        span,
        [then] if then else [],
        orelse if rest is None else rest,
        inner if rest is None else scope,
    )


def _branch(
    m: Machine, syn: Syn, condition: Value, span: tuple[int, int], then: list[Syn], orelse: list[Syn], scope: Scope
) -> Signal:
    divergent = m.silent > 0 or not is_uniform(condition)
    taking_part = m.taking_part
    if m.silent == 0 and divergent and not orelse and conditions.per_thread(m.store, condition) is not None:
        m.taking_part = m.oid  # `if (thread < n)`: what is declared inside is a variable of those threads
    elif divergent:
        m.taking_part = 0
    born = m.oid
    place, outer_items = m.place(syn), m.items
    order = m.next_order()
    recorded: list[list[object]] = []
    logs: list[dict[tuple[int, int], tuple[Cells, int, Value]]] = []
    signals: list[Signal] = []
    then_values: dict[tuple[int, int], Value] = {}
    for at, (body, holds) in enumerate(((then, condition), (orelse, arithmetic.negate(m, condition)))):
        m.observer.mark(m, "else" if at else "branch")
        if not divergent:
            m.items = []
        m.logs.append({})
        m.path.append(holds)
        if divergent:
            m.predicates.append(holds)
            m.observer.splits.append((syn.start, syn.end))
            m.silent += 1
        try:
            signals.append(execute_all(m, body, Scope(scope)))
        finally:
            m.path.pop()
            if divergent:
                m.predicates.pop()
                m.observer.splits.pop()
                m.silent -= 1
            log = {k: v for k, v in m.logs.pop().items() if v[0].oid <= born}
        if not divergent:
            recorded.append(m.items)
        logs.append(log)
        if at == 0:
            then_values = {k: c.values[i] for k, (c, i, _) in log.items()}
            for cells, index, old in log.values():
                cells.values[index] = old
    m.observer.mark(m, "close")
    m.taking_part = taking_part
    m.items = outer_items
    m.statement = syn
    if not divergent and (recorded[0] or recorded[1]):
        m.record(Branch(order, place, condition, recorded[0], recorded[1], span))
    _merge(m, condition, logs, then_values, signals, divergent, _inner_place(m, then))
    if signals[0] == signals[1]:
        return signals[0]
    # One side left the block: what follows is only reached from the other, which has been executed as its branch.
    return None


def _merge(
    m: Machine,
    condition: Value,
    logs: list[dict[tuple[int, int], tuple[Cells, int, Value]]],
    then_values: dict[tuple[int, int], Value],
    signals: list[Signal],
    divergent: bool,
    inner: Place | None,
) -> None:
    m.merge_branches(condition, logs[0], logs[1], then_values, divergent=divergent, inner=inner)


def _inner_place(m: Machine, then: list[Syn]) -> Place | None:
    for syn in then:
        for kid in syn.walk():
            if kid.type == "assignment_expression":
                return m.place(kid)
    return None


# ---- loops
# --------------------------------------------------------------------------------------------------------------


def _for(m: Machine, syn: Syn, scope: Scope) -> Signal:
    inner = Scope(scope)
    initializer = syn.get("initializer")
    if initializer is not None:
        if initializer.type == "declaration":
            execute(m, initializer, inner)
        else:
            m.statement = initializer
            try:
                dispatch.evaluate(m, initializer, inner)
            except NotUnderstood as why:
                m.unknown(initializer, str(why))
    return _loop(m, syn, inner, syn.get("condition"), syn.get("update"))


def _while(m: Machine, syn: Syn, scope: Scope) -> Signal:
    condition = syn.get("condition")
    if condition is not None and condition.type == "condition_clause":
        condition = condition.get("value") or condition.kids[-1]
    return _loop(m, syn, Scope(scope), condition, None)


def _loop(m: Machine, syn: Syn, scope: Scope, condition: Syn | None, update: Syn | None) -> Signal:
    """Unrolled while the condition is decided by numbers, else symbolic."""
    body = syn.get("body")
    if m.stop_at == (syn.start, syn.end) and len(m.frames) == 1:
        raise Stopped
    m.snapshot(syn, scope)
    if body is None or condition is None:
        m.unknown(syn, "a loop without a condition")
        return None
    trips, end = 0, None
    own_counter = (first := syn.get("initializer")) is not None and first.type == "declaration"
    while m.thorough or not m.rehearsal or trips < 2:  # a rehearsal only asks which variables are written
        trips += 1
        m.statement = syn
        if trips > _MOST_ENDLESS and condition.type == "true":
            m.unknown(syn, f"a loop without a condition that has not ended after {_MOST_ENDLESS} trips")
            return None
        if trips > _MOST_TRIPS:
            m.unknown(syn, f"a loop of more than {_MOST_TRIPS} trips that are executed one by one")
            return None
        try:
            holds = arithmetic.boolean(m, dispatch.evaluate(m, condition, scope))
        except NotUnderstood as why:
            m.unknown(syn, str(why))
            return None
        if holds is False:
            return None
        if holds is not True:
            threads = conditions.per_thread(m.store, holds)
            if trips == 1 and threads is None and own_counter:
                end = tails.most_trips(m, condition, holds, scope)
            if end is not None and (holds := tails.normal(m, holds)) is False:
                return None
            if end is not None and not isinstance(holds, bool):
                if (left := tails.trip(m, holds, lambda: execute(m, body, scope))) not in (None, "continue"):
                    m.unknown(syn, f"{left} out of a loop that a symbol may end")
                    return None
                signal = None
            elif threads is None:
                loops.symbolic(m, syn, scope, condition, update, body, execute)
                return None
            else:
                signal = _branch(m, syn, holds, (condition.start, condition.end), [body], [], scope)
        else:
            signal = execute(m, body, scope)
        if signal == "break":
            return None
        if signal == "return":
            return signal
        if update is not None:
            m.statement = syn
            try:
                dispatch.evaluate(m, update, scope)
            except NotUnderstood as why:
                m.unknown(syn, str(why))
                return None
    return None


def _nothing(m: Machine, syn: Syn, scope: Scope) -> Signal:
    return None


def _do(m: Machine, syn: Syn, scope: Scope) -> Signal:
    """``do { ... } while (0)``, as macros are written, and others whose end numbers decide."""
    body, condition = syn.get("body"), syn.get("condition")
    for _ in range(_MOST_ENDLESS):
        signal = execute(m, body, scope) if body is not None else None
        if signal is not None:
            return None if signal == "break" else signal if signal == "return" else m.unknown(syn, "continue in a do")
        m.statement = syn
        holds = arithmetic.boolean(m, dispatch.evaluate(m, condition, scope)) if condition is not None else None
        if holds is False:
            return None
        if holds is not True:
            break
    m.unknown(syn, "a do loop whose end is not known")
    return None


def _refuse_switch(m: Machine, syn: Syn, scope: Scope) -> Signal:
    m.unknown(syn, f"{syn.type.replace('_', ' ')} is not known to the lifter")
    return None


def _attributed(m: Machine, syn: Syn, scope: Scope) -> Signal:
    return execute_all(m, [k for k in syn.kids if "attribute" not in k.type], scope)


_SIMPLE = frozenset({"expression_statement", "declaration", "return_statement", "alias_declaration", "type_definition"})

RULES: dict[str, Callable[[Machine, Syn, Scope], Signal]] = {
    "compound_statement": _compound,
    "expression_statement": _expression,
    "declaration": declarations.declaration,
    "alias_declaration": declarations.alias,
    "type_definition": declarations.alias,
    "using_declaration": _nothing,
    "static_assert_declaration": _nothing,
    "preproc_call": _nothing,
    "preproc_def": _nothing,
    "preproc_function_def": _nothing,
    "empty_statement": _nothing,
    "attributed_statement": _attributed,
    "if_statement": _if,
    "for_statement": _for,
    "while_statement": _while,
    "return_statement": _return,
    "break_statement": lambda m, syn, scope: "break",
    "continue_statement": lambda m, syn, scope: "continue",
    "switch_statement": _refuse_switch,
    "do_statement": _do,
}
