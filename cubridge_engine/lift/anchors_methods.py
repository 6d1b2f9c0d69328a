"""Anchors of a kernel that works in the methods of an object, on items that a producer has published.

The mask and the scores are where the elements are tested, in a method; the KV range is where a work item is made, in a
function of its own. Sizes and new parameters reach both as members of a struct that the kernel's body fills once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..ir.anchors import CarrierSite, ElementNest, LoopSite, MaskSite, Names, ScoreSite, WalkSite
from ..ir.nodes import Kernel
from . import structs, tree
from .anchors_find import Finder
from .bodies import body_around
from .scope_names import names_at
from .select import Chosen
from .shape_types import Tile
from .state import Emission
from .syntax import Syn
from .trace import Place
from .values import Cells, Node, Value, same
from .walk_items import item_walk


@dataclass(frozen=True)
class _Inner:
    """An event, at its statement inside the method."""

    event: Any
    place: Place

    def __getattr__(self, name: str) -> Any:
        return getattr(self.event, name)


def _inner(event: Any) -> _Inner:
    return event if isinstance(event, _Inner) else _Inner(event, Place(event.place.callee or event.place.site))


class MethodFinder(Finder):
    """Finds the anchors in methods."""

    def __init__(self, e: Emission, chosen: Chosen, definition: Any, kernel: Kernel) -> None:
        super().__init__(e, chosen, definition, kernel)
        self.kernel_body = self.body
        first = next((data[1] for kind, data in e.sites if kind == "mask"), None)
        found = body_around(e, _inner(first).place.site) if first is not None else None
        if found is not None:
            self.body = self.loop_body = found

    # ---- elements

    def nest(self, event: Any, obj: Any) -> tuple[ElementNest, Names, list[Syn]] | None:
        return super().nest(_inner(event), obj)

    def elements_at(self, event: Any, obj: Any) -> list[Tile]:
        return super().elements_at(event.event if isinstance(event, _Inner) else event, obj)

    def _mask_site(self, event: Any, nest: ElementNest, names: Names, guard: tuple[int, int] | None) -> MaskSite | None:
        return super()._mask_site(_inner(event), nest, names, guard)

    def scores(self, masks: tuple[MaskSite, ...]) -> tuple[ScoreSite, ...]:
        """Before the statement that masks: the scores are complete when the method is called."""
        if not masks:
            return ()
        at = (masks[0].assignment.start, masks[0].assignment.end)
        statement = tree.statement_in(self.body, at)
        if statement is None:
            return ()
        before = [k.end for k in self.body.kids if k.end <= statement.start]
        offset = tree.leading_offset(self.source, before[-1] if before else self.body.start + 1, statement.start)
        names = masks[0].names
        unit = names.text.get("scale_log2") or names.text.get("scale")
        indent = tree.indent_at(self.source, statement.start)
        inside = _declared_before(self.source.data, statement, at)
        return (ScoreSite(offset, indent, masks[0].nest, names, unit, self.span(statement), inside),)

    def main_body(self) -> Syn:
        """The kernel's own body."""
        return self.kernel_body

    # ---- states

    def state_at(self, event: Any) -> tuple[int, int] | None:
        """The statement, in the method."""
        return _inner(event).place.site

    def around(self, at: tuple[int, int]) -> Syn:
        """The method's body."""
        return body_around(self.e, at) or self.kernel_body

    # ---- the range

    def kv_loop(self) -> LoopSite | None:
        """Where a work item is made: its first tile, and the variable for the key behind its last."""
        loop, work = self.e.kv_loop, self.e.machine.work
        made = _made_by(work.body) if work is not None and work.body is not None else None
        if loop is None or work is None or work.body is None or made is None or loop.step != -1:
            return None
        store = self.e.machine.store
        values = [c.values[0] for c in work.item.fields.values() if isinstance(c, Cells)]
        wanted = [[n for n, v in enumerate(values) if same(v, store.add(x, 1))] for x in (loop.hi, loop.lo)]
        if any(len(w) != 1 for w in wanted) or len(made.kids) != len(values):
            return None
        lo, hi = (made.kids[w[0]] for w in wanted)
        key = _statement_of(work.body, made)
        name = self._end_name(values[wanted[1][0]], key)
        if name is None or key is None or not _sets(work.body, name, made.start):
            return None
        end = max(k.end for k in work.body.kids if k.end <= key[0])
        indent = tree.indent_at(self.source, key[0])
        return LoopSite(
            self.span((loop.syntax.start, loop.syntax.end)),
            loop.name,
            self.span(lo),
            self.span(hi),
            name,
            end,
            indent,
            (),
            names_at(self.e, self.kernel, key),
            self._walk([n for n, c in work.item.fields.items() if isinstance(c, Cells)][wanted[0][0]]),
            counts_keys=True,
        )

    def _walk(self, first: str) -> WalkSite | None:
        carrier = self.carrier()
        return item_walk(self, first, carrier.prefix) if carrier is not None else None

    def _end_name(self, bound: Value, key: tuple[int, int] | None) -> str | None:
        """The variable v of ``max(1, (v + Bc - 1) / Bc)``."""
        store, width = self.e.machine.store, self.e.problem.Bc
        if not isinstance(bound, Node) or bound.op != "max" or 1 not in bound.args:
            return None
        tiles = next((a for a in bound.args if isinstance(a, Node)), None)
        if tiles is None or tiles.op not in ("tdiv", "floordiv") or tiles.args[1] != width:
            return None
        keys = store.add(tiles.args[0], 1 - width)
        snapshot = self.e.machine.snapshots.get(key, {}) if key is not None else {}
        return next((n for n, held in snapshot.items() if n.isidentifier() and same(held, keys)), None)

    # ---- the rest

    def setup(self) -> tuple[int | None, str, Names]:
        """The first line of the method."""
        first = self.body.kids[0] if self.body.kids else None
        if first is None or self.body is self.kernel_body:
            return None, "  ", Names()
        names = names_at(self.e, self.kernel, (first.start, first.end))
        return tree.line_start(self.source, first.start), tree.indent_at(self.source, first.start), names

    def carrier(self) -> CarrierSite | None:
        """The struct by which sizes reach the method and the function that makes items."""
        m = self.e.machine
        first = self.body.kids[0] if self.body.kids else None
        work = m.work
        made = _made_by(work.body) if work is not None and work.body is not None else None
        if first is None or work is None or work.body is None or made is None:
            return None
        scopes = [m.snapshots.get(k, {}) for k in ((first.start, first.end), _statement_of(work.body, made) or (0, 0))]
        for statement in self.kernel_body.kids:
            kind, declarator = statement.get("type"), statement.get("declarator")
            value = declarator.get("value") if declarator is not None else None
            found = structs.declared(m).get(kind.text, []) if kind is not None else []
            if value is None or value.type != "initializer_list" or not value.kids or len(found) != 1:
                continue
            members = found[0].body
            if found[0].template or any(x.type != "field_declaration" for x in members):
                continue
            fields = [d.text for x in members for d in x.lists.get("declarator", [])]
            if len(fields) != len(value.kids):
                continue
            prefixes = {n.removesuffix(fields[0]) for n in scopes[0] if n.endswith(f".{fields[0]}")}
            for prefix in sorted(prefixes):
                if all(prefix + name in scope for name in fields for scope in scopes):
                    indent = tree.indent_at(self.source, members[-1].start)
                    return CarrierSite(members[-1].end, indent, value.kids[-1].end, prefix)
        return None

    def typed_carrier(self) -> CarrierSite | None:
        """The object whose method masks, when it is of a template: its members are in scope there."""
        for statement in self.kernel_body.walk():
            kind, declarator = statement.get("type"), statement.get("declarator")
            value = declarator.get("value") if declarator is not None else None
            name, arguments = (kind.get("name"), kind.get("arguments")) if kind is not None else (None, None)
            if name is None or arguments is None or value is None or value.type != "initializer_list":
                continue
            found = structs.declared(self.e.machine).get(name.text, [])
            if len(found) != 1 or not value.kids or not found[0].body:
                continue
            body = found[0].body
            own = (x for x in body if x.type == "field_declaration" and not structs.is_static(x))
            given = [x for x in own for _ in x.lists.get("declarator", [])]
            if not body[0].start <= self.body.start <= body[-1].end or len(given) < len(value.kids):
                continue
            last = given[len(value.kids) - 1]
            types = tuple(_parameter_name(p) for p in found[0].template)
            same_name = tuple(t for t, a in zip(types, arguments.kids, strict=False) if a.text == t)
            at = tree.line_end(self.source, last.end)
            return CarrierSite(at, tree.indent_at(self.source, last.start), value.kids[-1].end, "", same_name)
        return None


def _parameter_name(parameter: Syn) -> str:
    return parameter.text.split()[-1]


def _declared_before(data: bytes, statement: Syn, at: tuple[int, int]) -> tuple[str, ...]:
    """What the block around the element loops declares before them."""
    loop = next((n for n in tree.path_to(statement, at) if n.type == "for_statement"), None)
    path = tree.path_to(statement, (loop.start, loop.end)) if loop is not None else []
    block = next((n for n in reversed(path) if n.type == "compound_statement" and n is not loop), None)
    if block is None or loop is None:
        return ()
    found = [k for k in block.kids if k.type == "declaration" and k.end <= loop.start]
    return tuple(" ".join(data[k.start : k.end].decode("utf-8", "replace").split()) for k in found)


def _made_by(body: Syn) -> Syn | None:
    """The list of the last ``return {...}`` of a function."""
    for statement in reversed(body.kids):
        if statement.type == "return_statement" and statement.kids and statement.kids[0].type == "initializer_list":
            return statement.kids[0]
    return None


def _statement_of(body: Syn, inside: Syn) -> tuple[int, int] | None:
    statement = tree.statement_in(body, (inside.start, inside.end))
    return (statement.start, statement.end) if statement is not None else None


def _sets(body: Syn, name: str, before: int) -> bool:
    """True when a statement of the body assigns `name`."""
    found = (n for statement in body.kids if statement.end <= before for n in statement.walk())
    targets = [n.get("left") or n.get("declarator") for n in found if n.type in _ASSIGNING]
    return any(t is not None and t.text == name for t in targets)


_ASSIGNING = frozenset({"assignment_expression", "init_declarator"})
