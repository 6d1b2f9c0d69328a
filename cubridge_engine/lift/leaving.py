"""Threads without a row: ``if (row >= n) return;`` before the work, or ``if (row < n) { work }`` around it.

What they hold is never stored, so it does not matter: the work is executed as if all threads did it, and its stores
say for which rows they are.
"""

from __future__ import annotations

from collections.abc import Callable

from . import addresses, arithmetic, conditions
from .machine import Machine
from .syntax import Syn
from .trace import Loop
from .values import Value, is_uniform

_LOOPS = frozenset({"for_statement", "while_statement"})


def for_good(m: Machine, condition: Value, then: Syn | None) -> bool:
    """True when the kernel's rest is for the other threads, and says itself what they do."""
    body = then.kids if then is not None and then.type == "compound_statement" else [then]
    if len(body) != 1 or body[0] is None or body[0].type != "return_statement" or len(m.frames) != 1 or m.silent:
        return False
    if is_uniform(condition) or conditions.per_thread(m.store, condition) is not None:
        return False
    return not m.producing and not any(isinstance(x, Loop) for x in m.items)


def around_work(m: Machine, condition: Value, then: Syn | None, orelse: list[Syn]) -> bool:
    """True for ``if (row < n)`` around products of rows: loops in loops."""
    if then is None or orelse or m.silent or m.rehearsal or is_uniform(condition) or m.producing:
        return False
    if conditions.per_thread(m.store, condition) is not None or addresses.row_of([condition]) is None:
        return False
    if any(n.type == "return_statement" for n in then.walk()):
        return False
    return any(n.type in _LOOPS and sum(x.type in _LOOPS for x in n.walk()) > 1 for n in then.walk())


def for_rows(m: Machine, syn: Syn, condition: Value, work: Callable[[], str | None]) -> str | None:
    """Execute work that is done for the rows that exist."""
    m.observer.mark(m, "branch")
    m.path.append(condition)
    m.predicates.append(condition)
    m.observer.splits.append((syn.start, syn.end))
    try:
        return work()
    finally:
        m.path.pop()
        m.predicates.pop()
        m.observer.splits.pop()
        m.observer.mark(m, "else")
        m.observer.mark(m, "close")


def without_some(m: Machine, syn: Syn, condition: Value, rest: Callable[[], str | None]) -> str | None:
    """Execute the rest for the threads that have not left: its stores are theirs."""
    holds = m.stayed = arithmetic.negate(m, condition)
    m.observer.mark(m, "branch")
    m.observer.mark(m, "else")
    m.path.append(holds)
    m.predicates.append(holds)
    m.observer.splits.append((syn.start, syn.end))
    try:
        return rest()
    finally:
        m.path.pop()
        m.predicates.pop()
        m.observer.splits.pop()
        m.observer.mark(m, "close")
