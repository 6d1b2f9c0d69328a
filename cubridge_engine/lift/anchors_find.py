"""Anchors: where in the user's text each fact of the lifted kernel lives.

Only sites in the kernel's own body are given: what happens inside a device function is shared by its callers.
"""

from __future__ import annotations

from typing import Any

from ..ir.anchors import (
    Anchors,
    CarrierSite,
    ElementNest,
    EpilogueSite,
    HeadSite,
    LoopSite,
    MaskSite,
    Names,
    ScoreSite,
    StateSite,
)
from ..ir.expr import Var
from ..ir.nodes import Kernel, LaneReduce, Score
from . import anchors_fused, anchors_softmax, interface_sites, tree, units
from .anchors_made import made_nest
from .anchors_masks import MaskFinder
from .bodies import all_bodies, body_around, innermost
from .page_site import page_site
from .scope_names import names_at, variable_with
from .select import Chosen
from .shape_types import look
from .shared_states import SHARED
from .shared_tiles import SharedTile
from .state import Emission
from .syntax import Syn
from .values import Node, Value
from .walk_site import walk_site

_ASSIGN = frozenset({"assignment_expression"})
_DIVISIONS = frozenset({"binary_expression", "call_expression"})
_NEST_STATEMENTS = frozenset({"declaration"})


class Finder(MaskFinder):
    """Finds the anchors of one lifted kernel."""

    def scores(self, masks: tuple[MaskSite, ...]) -> tuple[ScoreSite, ...]:
        """After the last unconditional change of the raw scores, before the mask."""
        if self.loop_body is None:
            return ()
        place: tuple[int, int] | None = None
        nest: tuple[ElementNest, Names] | None = (masks[0].nest, masks[0].names) if masks else None
        in_shared = False
        for kind, data in self.e.sites:
            if kind == "mask":
                break
            if kind == "qk":
                place = data[2]
            elif kind == "score":
                place = data[1].place.site
                in_shared = isinstance(data[2].key, SharedTile)
            scored = kind in ("score", "map") and data[2].axis == "j"
            if scored and nest is None and (found := self.nest(data[1], data[2])) is not None:
                nest = found[0], found[1]
        statement = tree.statement_in(self.loop_body, place) if place is not None else None
        if statement is None:
            return ()
        if anchors_fused.is_fused(self.e, statement):
            site = anchors_fused.score_site(self, statement)
            if site is None and masks:
                site = anchors_fused.before_mask(self, masks[0])
            elif site is None:
                site = anchors_fused.score_site(self, statement, untested=True)
            return (site,) if site is not None else ()
        if masks and in_shared:  # others than the threads that stored the scores may mask them
            site = anchors_fused.before_mask(self, masks[0])
            return (site,) if site is not None else ()
        following = tree.after(self.loop_body, statement)
        if nest is None and following is not None:
            nest = made_nest(self, statement, following)
        if nest is None:
            return ()
        offset = (
            tree.leading_offset(self.source, statement.end, following.start)
            if following is not None
            else tree.line_start(self.source, statement.end)
            + len(self.source.data[tree.line_start(self.source, statement.end) :].split(b"\n")[0])
            + 1
        )
        indent = tree.indent_at(self.source, statement.start)
        return (ScoreSite(offset, indent, nest[0], nest[1], self.unit_text(), self.span(statement)),)

    def unit_text(self) -> str | None:
        """Text of the factor that takes S to natural units times log2(e); None when S is natural."""
        roles = {p.role: p for p in self.kernel.params}
        for role in ("scale_log2", "scale"):
            param = roles.get(role)
            if param is None:
                continue
            scored = any(
                isinstance(op, Score) and Var(param.name) in _vars(op.expr) for op in units.operations(self.kernel.body)
            )
            if not scored:
                return names_at(self.e, self.kernel, None).text.get(role)
        return None

    # ---- the loop
    # ---------------------------------------------------------------------------------------------------------

    def kv_loop(self) -> LoopSite | None:
        """The KV loop's bounds, and the tokens of the prologue that stand for its first tile."""
        loop = self.e.kv_loop
        if (
            loop is None
            or self.loop is None
            or loop.lo_range is None
            or loop.hi_range is None
            or loop.place.callee is not None
        ):
            return None
        hi_text = self.source.data[loop.hi_range[0] : loop.hi_range[1]].decode()
        hi_name = hi_text if hi_text.isidentifier() else None
        definition = self._definition_end(hi_name) if hi_name else None
        where = definition if definition is not None else self.loop.start
        key = self._statement_after(where)
        prologue = interface_sites.prologue(self)
        return LoopSite(
            self.span(self.loop),
            loop.name,
            self.span(loop.lo_range),
            self.span(loop.hi_range),
            hi_name,
            definition,
            tree.indent_at(self.source, definition if definition is not None else self.loop.start),
            prologue,
            names_at(self.e, self.kernel, key),
            walk_site(self, prologue),
        )

    def _definition_end(self, name: str) -> int | None:
        """Offset after the last statement before the loop that sets `name`; None when it is a parameter."""
        end: int | None = None
        assert self.loop is not None
        for statement in self.body.kids:
            if statement.end > self.loop.start:
                break
            for node in statement.walk():
                target = (
                    node.get("left")
                    if node.type == "assignment_expression"
                    else node.get("declarator")
                    if node.type == "init_declarator"
                    else None
                )
                if target is not None and target.text == name:
                    end = statement.end
        return end

    def _statement_after(self, offset: int) -> tuple[int, int] | None:
        later = [k for k in self.e.machine.snapshots if k[0] >= offset]
        return min(later, default=None)

    # ---- states and epilogue
    # ------------------------------------------------------------------------------------------------

    def states(self) -> tuple[StateSite, ...]:
        """Initial values of m and l."""
        partial = self._partial_sum()
        found: dict[tuple[int, int], StateSite] = {}
        for kind, data in self.e.sites:
            if kind != "init":
                continue
            op, events, name = data
            if name not in ("m", "l"):
                continue
            for event in events:
                at = self.state_at(event)
                value = self._initial_value(at, event.cells.name) if at is not None else None
                if at is None or value is None:
                    continue
                rows = self._rows_of_state(event)
                names = names_at(self.e, self.kernel, at, rows)
                lanes = self.e.lane_count if name == "l" and partial else 1
                copies = len(value.kids) if value.type == "initializer_list" else 1
                found[(value.start, value.end)] = StateSite(
                    name,
                    self.span((value.kids[0].start, value.kids[-1].end) if copies > 1 else value),
                    self.span(at),
                    names.text.get("row"),
                    lanes,
                    names,
                    self.around(at) is self.body,
                    copies,
                )
            assert op is not None
        return tuple(found.values())

    def state_at(self, event: Any) -> tuple[int, int] | None:
        """The statement that sets a state first; None where it is out of reach."""
        return event.place.site if event.place.callee is None else None

    def _rows_of_state(self, event: Any) -> Any:
        for carried in self.e.shapes.carried.values():
            if (carried.cells.oid, carried.index) == (event.cells.oid, event.index):
                info = self.e.shapes.info(carried.after)
                return getattr(info, "i", None)
        return None

    def around(self, at: tuple[int, int]) -> Syn:
        """The body of the function that holds a statement."""
        del at
        return self.body

    def _initial_value(self, at: tuple[int, int], name: str) -> Syn | None:
        for node in tree.find(self.around(at), frozenset({"assignment_expression", "init_declarator"}), *at):
            if name == SHARED:  # an element of an array in shared memory: the statement is all there is
                return node.get("right")
            target = node.get("left") or node.get("declarator")
            while target is not None and target.type not in ("identifier",):
                target = target.get("argument") or target.get("declarator")
            if target is not None and target.text == name:
                value = node.get("right") or node.get("value")
                if value is not None and value.type == "initializer_list" and value.kids:
                    alike = len({self.text(k) for k in value.kids}) == 1
                    return None if not alike else value.kids[0] if len(value.kids) == 1 else value
                return value
        return None

    def _partial_sum(self) -> bool:
        """True when l is summed over the lanes only after the loop."""
        return any(isinstance(op, LaneReduce) and op.op == "sum" and op.row == "l" for op in self.kernel.body)

    def epilogue(self) -> EpilogueSite | None:
        """The expression 1 / l and the LSE's value."""
        inverse = self._inverse()
        guarded = False
        if inverse is not None:
            at = (inverse.start, inverse.end)
            path = [n for n in tree.path_to(self.home(at), at) if n.type == "conditional_expression"]
            if path:
                inverse, guarded = path[-1], True
        stored = next((data[1] for kind, data in self.e.sites if kind == "store_lse"), None)
        lse: Syn | None = None
        if stored is not None:
            place = innermost(stored.place)
            assignment = next(iter(tree.find(self.home(place), _ASSIGN, *place)), None)
            lse = assignment.get("right") if assignment is not None else None
        if inverse is None and lse is None:
            return None
        enclosing = self._enclosing_statement(inverse or lse)
        return EpilogueSite(
            self.span(inverse) if inverse else None,
            guarded,
            self.span(lse) if lse else None,
            names_at(self.e, self.kernel, enclosing),
        )

    def _inverse(self) -> Syn | None:
        """The division by the row sum: behind the loop, or in a function that the kernel calls."""
        body = self.main_body()
        behind = self.loop.end if self.loop is not None else body.end
        places = [(body, behind), *((b, b.start) for b in all_bodies(self.e) if b.start != body.start)]
        for root, start in places:
            for node in tree.find(root, _DIVISIONS, start, root.end):
                value = look(self.e.machine.noted.get((node.start, node.end)))
                if isinstance(value, Node) and value.op == "div" and self._is_total(value.args[1]):
                    return node
        return None

    def main_body(self) -> Syn:
        """The kernel's own body."""
        return self.body

    def home(self, at: tuple[int, int]) -> Syn:
        """The body of the function that a place is in: the kernel's, or that of one it calls."""
        return body_around(self.e, at) or self.main_body()

    def _is_total(self, value: Value) -> bool:
        node = look(value)
        name = self.e.holder.get(node.uid) if isinstance(node, Node) else None
        return name == "l" or (name or "").startswith("l_")

    def _enclosing_statement(self, syn: Syn | None) -> tuple[int, int] | None:
        if syn is None:
            return None
        keys = [k for k in self.e.machine.snapshots if k[0] <= syn.start and syn.end <= k[1]]
        return min(keys, key=lambda k: k[1] - k[0], default=None)

    # ---- heads and setup
    # ----------------------------------------------------------------------------------------------------

    def head(self) -> HeadSite | None:
        """The KV head expression."""
        hk = self.e.problem.hk
        if not isinstance(hk, Node) or hk is self.e.problem.h:
            return None
        for key, value in sorted(self.e.machine.noted.items()):
            if value is hk and not self.source.data[key[0] : key[1]].decode("utf-8", "replace").strip().isidentifier():
                at = self._enclosing_statement(Syn("", "", *key))
                return HeadSite(self.span(key), names_at(self.e, self.kernel, at), 2)
        return None

    def setup(self) -> tuple[int | None, str, Names]:
        """A line of the kernel's body after the batch, the head and q0 are known, before the state's start."""
        p = self.e.problem
        wanted: list[Value] = [p.q_row0, p.q_tile, p.h, p.b, p.hk]
        last: Syn | None = None
        for statement in self.body.kids:
            if self.loop is not None and statement.end > self.loop.start:
                break
            following = tree.after(self.body, statement)
            if following is None:
                break
            before = self.e.machine.snapshots.get((statement.start, statement.end))
            after = self._scope_behind(statement)
            if before is None or after is None:
                continue
            gained = {k: v for k, v in after.items() if k not in before}
            if any(variable_with(gained, v) for v in wanted):
                last = statement
        if last is None:
            first = self.body.kids[0] if self.body.kids else None
            if first is None:
                return None, "  ", Names()
            key = (first.start, first.end)
            return (
                tree.line_start(self.source, first.start),
                tree.indent_at(self.source, first.start),
                names_at(self.e, self.kernel, key),
            )
        following = tree.after(self.body, last)
        assert following is not None
        offset = tree.leading_offset(self.source, last.end, following.start)
        later = ((k.start, k.end) for k in self.body.kids if k.start >= last.end)
        key = next(k for k in later if k in self.e.machine.snapshots)
        return offset, tree.indent_at(self.source, following.start), names_at(self.e, self.kernel, key)

    def _scope_behind(self, statement: Syn) -> dict[str, Value] | None:
        """What is visible at the first statement of the body behind this one that was executed."""
        later = (k for k in self.body.kids if k.start >= statement.end)
        found = (self.e.machine.snapshots.get((k.start, k.end)) for k in later)
        return next((x for x in found if x is not None), None)

    def carrier(self) -> CarrierSite | None:
        """None: what is in scope in the kernel's body needs no carrier."""
        return None

    def typed_carrier(self) -> CarrierSite | None:
        """The same for what has a type of a template parameter."""
        return None


def find(e: Emission, chosen: Chosen, definition: Any, kernel: Kernel) -> Anchors:
    """All anchors of the kernel."""
    from .anchors_methods import MethodFinder  # a finder itself

    in_methods = e.machine.work is not None and e.kv_loop is not None and e.kv_loop.place.callee is not None
    if in_methods and e.source.headers:
        return Anchors()  # a method of a header has no place in this file
    f = (MethodFinder if in_methods else Finder)(e, chosen, definition, kernel)
    masks = f.masks()
    offset, indent, names = f.setup()
    return Anchors(
        score=f.scores(masks),
        mask=masks,
        kv_loop=f.kv_loop(),
        state=f.states(),
        epilogue=f.epilogue(),
        head=f.head(),
        signature=interface_sites.signature(f),
        launchers=interface_sites.launchers(f),
        instantiations=interface_sites.instantiations(f),
        calls=interface_sites.calls(f),
        setup_offset=offset,
        setup_indent=indent,
        setup_names=names,
        softmax=anchors_softmax.site(f),
        pages=page_site(f),
        carrier=f.carrier(),
        typed_carrier=f.typed_carrier(),
    )


def _vars(expr: Any) -> set[Var]:
    from ..ir.expr import walk

    return {x for x in walk(expr) if isinstance(x, Var)}
