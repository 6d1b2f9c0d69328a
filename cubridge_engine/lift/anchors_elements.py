"""How the kernel's own text spells the row and the column of a score element."""

from __future__ import annotations

from typing import Any

from . import addresses
from .scope_names import row_value
from .shape_types import Tile
from .state import Emission
from .syntax import Syn
from .trace import Assign
from .values import Value, same


class ElementTexts:
    """The part of the anchors' Finder that spells coordinates."""

    e: Emission
    loop_body: Syn | None

    def text(self, syn: Syn) -> str:
        """The user's text of a node."""
        return self.e.source.data[syn.start : syn.end].decode("utf-8", "replace")

    def coordinate_texts(
        self, key: tuple[int, int] | None, tiles: list[Tile], inner: Syn | None
    ) -> tuple[str | None, str | None]:
        """Texts whose values are the global row and column of the element: variables, else expressions of the nest.

        `tiles` are the first element that the nest works on and, if there is one, the second: ``kv0 + j`` must not be
        taken for ``kv0`` because j starts at 0.
        """
        store = self.e.machine.store
        kv0 = self.e.body_kv0
        rows = [row_value(self.e, t.i) for t in tiles]
        columns = [store.add(kv0, store.array(t.c)) for t in tiles] if kv0 is not None else []
        return self._text_of(key, rows, inner), self._text_of(key, columns, inner)

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
                return f"({self.text(node)})"
        return None

    def elements_at(self, event: Any, obj: Any) -> list[Tile]:
        """The first element (that of `event`) and the second that the statement of `event` works on."""
        later = [
            x
            for x in addresses.events_of(self.e.machine.trace.items)
            if isinstance(x, Assign) and x.place == event.place and x.order > event.order
        ]
        found = [self._tile(x, obj) for x in (event, *later[:1])]
        return [t for t in found if t is not None]

    def _tile(self, event: Any, obj: Any) -> Tile | None:
        known = obj.coordinates.get(getattr(event, "index", None)) if obj is not None else None
        info = known if known is not None else self.e.shapes.info(getattr(event, "version", None))
        return info if isinstance(info, Tile) else None
