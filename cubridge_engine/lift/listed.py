"""Loops over positions in a list of tiles that is one of many in a tensor: ``list[place]``, `place` from the last entry
down to the first. Their variable is counted from the first entry, as that of a loop over neighbouring tiles is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .values import Coefficient, Monomial, Node, Poly, Store, Value

if TYPE_CHECKING:
    from .machine import Machine


def first_position(m: Machine, counter: Value, last: Value, step: int) -> Value:
    """The first entry, from which a downward loop's variable is counted: `last`, where the `counter` alone chooses an
    integer in global memory; 0 for other loops.
    """
    if step != -1 or isinstance(last, int) or not isinstance(counter, Node):
        return 0
    for offset, size in m.store.integer_reads():
        terms = dict(m.store.poly(offset).terms)
        moved = terms.pop((counter,), None)
        if isinstance(moved, int) and moved == size and not set(terms) - {()}:
            return last
    return 0


def without_row(store: Store, comparison: Node) -> tuple[Value, Value] | None:
    """Both sides without the place where the list begins, a stride times the number of a row, which they share; None
    for other comparisons.
    """
    a, b = comparison.args
    if not isinstance(a, Poly) or not isinstance(b, Poly):
        return None
    shared: dict[Monomial, Coefficient] = {}
    for monomial, factor in a.terms.items():
        other = b.terms.get(monomial)
        if isinstance(factor, int) and isinstance(other, int) and factor == other:
            shared[monomial] = factor
    if not any(len(monomial) > 1 for monomial in shared):
        return None
    return store.add(a, store.lower(shared), -1), store.add(b, store.lower(shared), -1)
