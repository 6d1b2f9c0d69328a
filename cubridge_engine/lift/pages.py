"""Rows of a cache that lies in pages: row r is at ``table[.., r / P] * page_stride + (r % P) * row_stride``.

Such an address is read as the one it would be without pages, ``b * page_stride + r * row_stride`` (b: the row of the
table), and what the table says is kept beside it: everything else about the copy is then as for any other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .addresses import of_parameters, row_of, without
from .values import Coefficient, Monomial, Node, Poly, Store, Value, same

_QUOTIENTS = frozenset({"tdiv", "floordiv"})
_REMAINDERS = frozenset({"tmod", "mod"})


@dataclass(frozen=True, slots=True)
class Pages:
    """A table of pages: its parameter's position, rows of a page, and the stride (elements) of its rows."""

    table: int
    size: int
    batch: Node | None  # which row of the table is read; None: it has one
    stride: Value


def without_pages(store: Store, copies: list[Any]) -> tuple[list[Any], dict[int, Pages], list[tuple[Any, str]]]:
    """The copies (as `Memory` yields them) with the addresses that they would have without pages; the pages by tensor;
    and copies of a tensor whose others have pages of another kind, or none.
    """
    sizes: set[int] = set()
    for copy in copies:  # the first tile, whose rows are plain numbers, shows no page size: that comes from others
        seen = _unpaged(store, copy, set())
        sizes |= {seen[1].size} if seen is not None else set()
    found: list[Any] = []
    kinds: dict[int, set[Pages | None]] = {}
    for copy in copies:
        seen = _unpaged(store, copy, sizes)
        event, shared, (root, offset), *rest = copy
        kinds.setdefault(root, set()).add(None if seen is None else seen[1])
        found.append((event, shared, (root, offset if seen is None else seen[0]), *rest))
    odd = [(c[0], "copies of one tensor by pages of different kinds") for c in found if len(kinds[c[2][0]]) > 1]
    pages = {root: kind for root, (kind, *more) in kinds.items() if kind is not None and not more}
    return found, pages, odd


def _unpaged(store: Store, copy: Any, sizes: set[int]) -> tuple[Value, Pages] | None:
    _, _, (_, offset), _, condition, predicates, element, _ = copy
    return unpaged(store, offset, element, [condition, *predicates], sizes)


def unpaged(
    store: Store, offset: Value, element: int, facts: Sequence[Value], sizes: set[int]
) -> tuple[Value, Pages] | None:
    """The byte offset without pages, and the pages; None where the address looks up no page.

    `facts` are conditions under which the copy happens: the row is what one of them compares with the number of rows.
    `sizes` are page sizes known from other copies.
    """
    terms = store.poly(offset).terms
    told = row_of(facts)
    for m, c in terms.items():
        lookup = next((a for a in m if a.op == "gload" and a.kind == "int"), None)
        stride = without(m, (lookup,)) if lookup is not None else None
        if lookup is None or stride is None or not isinstance(c, int) or not all(of_parameters(a) for a in stride):
            continue
        place = _index(store, lookup)
        if place is None:
            continue
        index, base = place
        for row, size in _candidates(store, index, None if told is None else told[0], sizes):
            inside = _inside(store, terms, row, size)
            if inside is None or not _is_quotient(store, index, row, size):
                continue
            rest, row_stride = inside
            batch, batch_stride = base
            moved = store.add(store.lower({k: v for k, v in rest.items() if k != m}), store.mul(row_stride, row))
            if batch is not None:
                moved = store.add(moved, store.mul(store.lower({stride: c}), batch))
            return moved, Pages(lookup.data[0], size, batch, batch_stride)
    return None


def _index(store: Store, lookup: Node) -> tuple[Value, tuple[Node | None, Value]] | None:
    """The page's number in its sequence, and the row of the table with its stride: ``table[b * stride + page]``."""
    width = lookup.data[1]
    pages: dict[Monomial, Coefficient] = {}
    base: tuple[Node | None, Value] = (None, 0)
    for m, c in store.poly(lookup.args[0]).terms.items():
        outer = [a for a in m if not of_parameters(a)]
        if len(outer) == 1 and len(m) > 1 and isinstance(c, int) and base[0] is None:
            rest = tuple(a for a in m if a is not outer[0])
            base = (outer[0], store.lower({rest: c // width}))
        elif np.any(np.asarray(c) % width):
            return None
        else:
            pages[m] = c // width
    return store.lower(pages), base


def _candidates(store: Store, index: Value, told: Value | None, sizes: set[int]) -> Iterator[tuple[Value, int]]:
    """Rows and page sizes that may be meant."""
    for node in store.poly(index).atoms():
        if node.op in _QUOTIENTS and isinstance(node.args[1], int) and node.args[1] > 0:
            yield node.args[0], node.args[1]
    if told is None:
        return
    have = store.poly(index).terms
    for m, c in store.poly(told).terms.items():
        times = have.get(m)
        if m and isinstance(c, int) and isinstance(times, int) and times > 0 and c % times == 0:
            yield told, c // times
    for size in sorted(sizes):
        yield told, size


def _is_quotient(store: Store, index: Value, row: Value, size: int) -> bool:
    if same(index, store.divide(row, size, floor=False)) or same(index, store.divide(row, size, floor=True)):
        return True
    return _equal(store, index, store.divide(row, size, floor=False))


def _equal(store: Store, a: Value, b: Value) -> bool:
    return store.add(a, b, -1) == 0


def _inside(
    store: Store, terms: dict[Monomial, Coefficient], row: Value, size: int
) -> tuple[dict[Monomial, Coefficient], Value] | None:
    """The address without ``(row % size) * stride``, and that stride in bytes."""
    for m, c in terms.items():
        node = next((a for a in m if a.op in _REMAINDERS and a.args[1] == size and same(a.args[0], row)), None)
        if node is not None and isinstance(c, int):
            stride = without(m, (node,)) or ()
            if all(of_parameters(a) for a in stride):
                return {k: v for k, v in terms.items() if k is not m}, store.lower({stride: c})
    inside = store.remainder(row, size, floor=True)
    numbers = (
        inside.numeric() if isinstance(inside, Poly) else np.asarray([inside]) if isinstance(inside, int) else None
    )
    if numbers is None:
        return None
    for m, c in terms.items():
        factor = _factor(np.asarray(c), numbers) if m and all(of_parameters(a) for a in m) else None
        if factor is not None:
            return {k: v for k, v in terms.items() if k is not m}, store.lower({m: factor})
    return None


def _factor(values: np.ndarray, numbers: np.ndarray) -> int | None:
    """The whole k with ``values == k * numbers``; None where there is none, or nothing to tell it from."""
    at = int(np.argmax(numbers))
    if numbers[at] <= 0 or values.ndim == 0 or values.reshape(-1)[at] % numbers[at]:
        return None
    k = int(values.reshape(-1)[at] // numbers[at])
    return k if k > 0 and bool((values == k * numbers).all()) else None
