"""Anchors of element tests: where a score is replaced by a fill."""

from __future__ import annotations

import dataclasses
from typing import Any

from ..diagnostics import Span
from ..ir.anchors import (
    ElementNest,
    MaskSite,
    Names,
)
from ..ir.nodes import Kernel
from . import anchors_fused, tree
from .anchors_elements import ElementTexts
from .scope_names import names_at
from .select import Chosen
from .shape_types import Tile
from .state import Emission
from .syntax import Syn
from .trace import MemoryStore, Place
from .values import Value

_ASSIGN = frozenset({"assignment_expression"})
_NEST_STATEMENTS = frozenset({"declaration"})


class MaskFinder(ElementTexts):
    """What the anchors' Finder knows of one lifted kernel, and where that masks scores."""

    def __init__(self, e: Emission, chosen: Chosen, definition: Any, kernel: Kernel) -> None:
        self.e = e
        self.kernel = kernel
        self.chosen = chosen
        self.definition = definition
        self.body: Syn = definition.body
        self.source = e.source
        loop = e.kv_loop
        self.loop: Syn | None = loop.syntax if loop is not None else None
        self.loop_body: Syn | None = self.loop.get("body") if self.loop is not None else None

    def span(self, at: tuple[int, int] | Syn) -> Span:
        """The span of a byte range or node."""
        return self.source.span_of(at.start, at.end) if isinstance(at, Syn) else self.source.span_of(*at)

    # ---- element nests
    # --------------------------------------------------------------------------------------------------

    def nest(self, event: Any, obj: Any) -> tuple[ElementNest, Names, list[Syn]] | None:
        """The element loops around an assignment to the score tile, its names, and the path to the statement."""
        if event.place.callee is not None or self.loop_body is None:
            return None
        path = tree.path_to(self.loop_body, event.place.site)
        loops = tree.loops_of(path)
        assignment = next(iter(tree.find(self.body, _ASSIGN, *event.place.site)), None)
        left = assignment.get("left") if assignment is not None else None
        if left is None:
            return None
        inner = loops[-1].get("body") if loops else self.loop_body
        statements = (
            inner.kids if inner is not None and inner.type == "compound_statement" else [inner] if inner else []
        )
        declared = [s for s in statements if s.type in _NEST_STATEMENTS and s.end <= event.place.site[0]]
        if not loops:
            declared = []
        statement = (
            tree.statement_in(inner, event.place.site)
            if inner is not None and inner.type == "compound_statement"
            else inner
        )
        key = (statement.start, statement.end) if statement is not None else None
        if key not in self.e.machine.snapshots:
            key = event.place.site
        tile = self.tile_of(event, obj)
        if tile is None:
            return None
        names = names_at(self.e, self.kernel, key, tile.i)
        every = self.places(event, obj, self.text(left))
        row, col = self.coordinate_texts(key, self.elements_at(event, obj), inner, every)
        if row is None or col is None:
            return None
        headers = tuple(tree.header_text(self.source, loop) for loop in loops)
        declarations = tuple(" ".join(self.text(d).split()) for d in declared)
        return ElementNest(headers, declarations, self.text(left), row, col), names, path

    # ---- scores and masks
    # -------------------------------------------------------------------------------------------------

    def masks(self) -> tuple[MaskSite, ...]:
        """Every element test that writes a fill."""
        guards = {id(op): span for op, _, span in (s[1] for s in self.e.sites if s[0] == "guard")}
        found: list[MaskSite] = []
        for kind, data in self.e.sites:
            if kind != "mask":
                continue
            op, event, obj = data
            nest = self.nest(event, obj)
            site = self._mask_site(event, nest[0], nest[1], guards.get(id(op))) if nest is not None else None
            site = site or (self._mask_of_local(event) if id(op) not in guards else None)
            if site is not None:
                found.append(site)
        return tuple(found)

    def _mask_of_local(self, event: Any) -> MaskSite | None:
        """``if (..) sum = fill;`` on the local that a score is computed in, before an array or shared memory takes
        it.
        """
        statement = tree.statement_in(self.loop_body, event.place.site) if self.loop_body is not None else None
        found = anchors_fused.masked_local(self.e, statement) if statement is not None else None
        if found is None:
            return None
        path = tree.path_to(self.body, found.event.place.site)
        test = next((n for n in reversed(path) if n.type == "if_statement"), None)
        tile = self.e.shapes.info(found.score.version)
        if test is None or test.end != found.event.place.site[1] or not isinstance(tile, Tile):
            return None
        key = (test.start, test.end)
        row, col = self.coordinate_texts(key, self.elements_at(found.score, None), statement)
        if row is None or col is None:
            return None
        nest = ElementNest((), (), found.event.cells.name, row, col)
        event = dataclasses.replace(found.event, place=Place(key))
        return self._mask_site(event, nest, names_at(self.e, self.kernel, key, tile.i), None)

    def _mask_site(self, event: Any, nest: ElementNest, names: Names, guard: tuple[int, int] | None) -> MaskSite | None:
        statement = tree.path_to(self.body, event.place.site)
        ifs = [n for n in statement if n.type == "if_statement" and n.start >= event.place.site[0] - 1]
        guard_span = self.span(guard) if guard else None
        if isinstance(getattr(event, "event", event), MemoryStore) and not ifs:
            ifs = self._if_around(statement, event)
        if ifs and self._is_test(ifs[-1], event):
            condition = ifs[-1].get("condition")
            assignment = next(iter(tree.find(ifs[-1], _ASSIGN, *event.place.site)), None)
            fill = assignment.get("right") if assignment is not None else None
            if condition is None or fill is None or ifs[-1].get("alternative") is not None:
                return None
            return MaskSite(
                self.span(tree.bare(condition)), True, self.span(ifs[-1]), self.span(fill), guard_span, nest, names
            )
        assignment = next(iter(tree.find(self.body, _ASSIGN, *event.place.site)), None)
        value = tree.bare(assignment.get("right") or assignment) if assignment is not None else None
        if assignment is None or value is None or value.type != "conditional_expression":
            return None
        condition, a, b = (value.get(x) for x in ("condition", "consequence", "alternative"))
        if condition is None or a is None or b is None:
            return None
        masked = isinstance(self.constant(a), float)
        return MaskSite(
            self.span(tree.bare(condition)),
            masked,
            self.span(event.place.site),
            self.span(a if masked else b),
            guard_span,
            nest,
            names,
        )

    def _is_test(self, test: Syn, event: Any) -> bool:
        """True where the statement of `event` is an if, or a store that is all an if holds."""
        site = event.place.site
        return (test.start, test.end) == site or (isinstance(event, MemoryStore) and test.end == site[1])

    def _if_around(self, path: list[Syn], event: Any) -> list[Syn]:
        """The if that ends with the store of `event` and holds nothing else."""
        tests = [n for n in path if n.type == "if_statement" and n.end == event.place.site[1]]
        held = tests[-1].get("consequence") if tests else None
        return tests[-1:] if held is not None and (held.start, held.end) == event.place.site else []

    def constant(self, syn: Syn) -> Value:
        """The value of a constant expression, or None."""
        from . import expressions
        from .machine import NotUnderstood

        try:
            return expressions.evaluate(self.e.machine, syn, self.e.machine.globals)
        except NotUnderstood:
            return None
