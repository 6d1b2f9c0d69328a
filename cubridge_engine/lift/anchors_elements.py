"""How the kernel's own text spells the row and the column of a score element."""

from __future__ import annotations

import re
from typing import Any

from . import addresses, shared_tiles
from .addresses import Ints
from .scope_names import row_value
from .shape_types import Tile, same_tile
from .spelling import enclosed, over_elements, spell
from .state import Emission
from .syntax import Syn
from .trace import Assign, MemoryStore
from .values import Value, same

Places = list[tuple[Tile, dict[str, int]]]


# Unsigned as they are: a row or a column is compared with what may be negative.
_UNSIGNED = re.compile(r"(?<!\(int\))\b(?:threadIdx|blockIdx|blockDim|gridDim)\.")


def _subscripts(names: list[str], dims: tuple[int, ...], index: int) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, extent in zip(reversed(names), reversed(dims), strict=True):
        index, found[name] = divmod(index, extent)
    return dict(reversed(found.items()))


class ElementTexts:
    """The part of the anchors' Finder that spells coordinates."""

    e: Emission
    loop_body: Syn | None

    def text(self, syn: Syn) -> str:
        """The user's text of a node."""
        return self.e.source.data[syn.start : syn.end].decode("utf-8", "replace")

    def coordinate_texts(
        self, key: tuple[int, int] | None, tiles: list[Tile], inner: Syn | None, every: Places | None = None
    ) -> tuple[str | None, str | None]:
        """Texts whose values are the global row and column of the element: variables, else expressions of the nest,
        else sums of our own.

        `tiles` are the first element that the nest works on and, if there is one, the second: ``kv0 + j`` must not be
        taken for ``kv0`` because j starts at 0. `every` are all its elements, by their subscripts.
        """
        store = self.e.machine.store
        kv0 = self.e.body_kv0
        rows = [row_value(self.e, t.i) for t in tiles]
        columns = [store.add(kv0, store.array(t.c)) for t in tiles] if kv0 is not None else []
        row, column = self._text_of(key, rows, inner), self._text_of(key, columns, inner)
        if row is None and rows:
            row = self._spelled(key, rows, self.e.problem.q_row0, every, [t.i for t, _ in every or ()])
        if column is None and kv0 is not None and columns:
            column = self._spelled(key, columns, kv0, every, [t.c for t, _ in every or ()])
        return row, column

    def texts_over(self, key: tuple[int, int], every: Places) -> tuple[str | None, str | None]:
        """The same for loops of our own, by the subscripts alone that `every` has."""
        kv0 = self.e.body_kv0
        row = self._spelled(
            key, [row_value(self.e, every[0][0].i)], self.e.problem.q_row0, every, [t.i for t, _ in every]
        )
        if kv0 is None:
            return row, None
        return row, self._spelled(key, [kv0], kv0, every, [t.c for t, _ in every])

    def _text_of(self, key: tuple[int, int] | None, wanted: list[Value], inner: Syn | None) -> str | None:
        m = self.e.machine
        snapshots = [x.get(key, {}) if key is not None else {} for x in (m.snapshots, m.snapshots_again)]
        if not wanted:
            return None
        for name in snapshots[0]:
            held = [s[name] for s in snapshots if name in s][: len(wanted)]
            if not isinstance(wanted[0], int) and all(same(h, w) for h, w in zip(held, wanted, strict=False)):
                return name
        return self._written(wanted, inner if inner is not None and snapshots[0] else self.loop_body)

    def _written(self, wanted: list[Value], inner: Syn | None) -> str | None:
        """An expression of the nest that has these values."""
        for node in inner.walk() if inner is not None else ():
            at = (node.start, node.end)
            noted = [x[at] for x in (self.e.machine.noted, self.e.machine.noted_again) if at in x][: len(wanted)]
            if (
                noted
                and node.type == "binary_expression"
                and all(same(n, w) for n, w in zip(noted, wanted, strict=False))
            ):
                text = f"({self.text(node)})"
                return f"(int){text}" if _UNSIGNED.search(text) else text
        return None

    def _spelled(
        self, key: tuple[int, int] | None, wanted: list[Value], base: Value, every: Places | None, numbers: list[Ints]
    ) -> str | None:
        """A text of our own, from what is in scope at all elements, else at the first and the second."""
        if key is None:
            return None
        scopes = [x.get(key, {}) for x in (self.e.machine.snapshots, self.e.machine.snapshots_again)]
        if every:
            text = over_elements(self.e, scopes[0], base, numbers, [place for _, place in every])
        else:
            later = (scopes[1], wanted[1]) if len(wanted) > 1 and scopes[1] else None
            text = spell(self.e, scopes[0], wanted[0], later)
        return None if text is None else enclosed(text)

    def places(self, event: Any, obj: Any, left: str) -> Places | None:
        """Every element of a local array that the statement of `event` works on, by the variables of `left`, its
        subscripts; None where they are no variables.
        """
        names = re.findall(r"\[(\w+)\]", left)
        cells = getattr(event, "cells", None)
        if cells is None or not re.fullmatch(r"\w+(?:\[[A-Za-z_]\w*\])+", left) or len(names) != len(cells.dims):
            return None
        same_place = (
            x
            for x in addresses.events_of(self.e.machine.trace.items)
            if isinstance(x, Assign) and x.place == event.place and x.cells is cells
        )
        found: dict[int, Tile] = {}
        for x in same_place:
            tile = self.tile_of(x, obj)
            if tile is None:
                return None
            found.setdefault(x.index, tile)
        return [(t, _subscripts(names, cells.dims, index)) for index, t in found.items()]

    def elements_at(self, event: Any, obj: Any) -> list[Tile]:
        """The first element (that of `event`) and the second that the statement of `event` works on."""
        first = self.tile_of(event, obj)
        if first is None:
            return []
        later = (
            self.tile_of(x, obj)  # None while a sum is not complete
            for x in addresses.events_of(self.e.machine.trace.items)
            if isinstance(x, Assign | MemoryStore) and x.place == event.place and x.order > event.order
        )
        second = next((t for t in later if t is not None and not same_tile(t, first)), None)
        return [first] if second is None else [first, second]

    def tile_of(self, event: Any, obj: Any) -> Tile | None:
        """The element that an assignment, or a store to a tile in shared memory, writes."""
        if isinstance(event, MemoryStore):
            return shared_tiles.tile_at(self.e, obj, event)
        known = obj.coordinates.get(getattr(event, "index", None)) if obj is not None else None
        info = known if known is not None else self.e.shapes.info(getattr(event, "version", None))
        return info if isinstance(info, Tile) else None
