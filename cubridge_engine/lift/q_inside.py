"""The order of FlashAttention-1: a loop over KV tiles, in it one over query tiles; m, l and O of each row lie in global
memory between two KV tiles.

A query tile only touches rows of its own, so the two loops may be exchanged: what the CTA does for one query tile is a
loop over KV tiles with m, l and O as states. That is the program that is read, with the query tile `qt` as in a grid
that has a CTA for each. What the rows hold at first is in the text (``tile == 0 ? -INFINITY : m[row]``), or is what the
host has put there: then m is taken to be -inf, l and O to be 0, and a note says so.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from ..ir.expr import Call, Const, Var
from . import addresses
from .addresses import MemoryError_, split_uniform
from .loops import uses
from .machine import Machine, bare, value_kind
from .memory import Memory
from .objects import is_maximum
from .queries import all_nodes
from .rewrite import NotExpressible
from .shape_types import Row, Tile
from .shapes import Shapes
from .state import Emission
from .trace import Assign, Carried, Loop, MemoryStore, Place
from .values import Cells, CType, Node, Store, Value, same
from .walking import walk

_FLOAT = CType("float", 4, "float")


@dataclass(frozen=True, slots=True)
class Order:
    """The loop over query tiles, which stands for a CTA each where the loops were exchanged (`why` is empty then).
    `scratch`: parameters that only hold states. `assumed`: what reads a state first finds what the host left there.
    """

    q_loop: Loop
    why: str = ""
    scratch: frozenset[int] = frozenset()
    assumed: tuple[Place, ...] = ()


def exchange(m: Machine, mem: Memory, shapes: Shapes, loop: Loop | None) -> Order | None:
    """Read the loops in the other order; None where they are not two such loops."""
    inner = _query_loop(mem, loop)
    if loop is None or inner is None:
        return None
    stores = [x for x in inner.items if isinstance(x, MemoryStore) and x.ptr.space == "global"]
    if inner.lo != 0 or not _only_copies(loop, inner):
        return Order(inner, "a loop over query tiles in the loop over KV tiles that does not stand alone in it")
    if not stores or not all(_own_rows(m, loop, inner, x) for x in stores):
        return Order(inner, "a loop over query tiles in the loop over KV tiles that stores no rows of its own tile")
    try:
        found = _states(m, mem, loop, stores)
    except MemoryError_ as why:
        return Order(inner, str(why))
    _splice(m, shapes, mem, loop, inner, found)
    written = [s.store.ptr.root for s in found]
    scratch = frozenset(root for root in written if written.count(root) == 1)
    return Order(inner, "", scratch, tuple(s.store.place for s in found if s.assumed))


def name_tile(e: Emission, order: Order, row0: Value) -> None:
    """The query tile is `qt`. Raises NotExpressible when the loop does not visit each of them once."""
    p, loop = e.problem, order.q_loop
    if order.why:
        raise NotExpressible(order.why)
    if not _visits_each(e.machine.store, loop, row0, p.Br, p.sizes.get("Sq")):
        raise NotExpressible("a loop over query tiles that does not visit each of them once")
    p.q_tile = e.machine.store.node("index", (), "qt", "int")
    p.canon[loop.iv] = Call("floordiv", (Var("q0"), Const(p.Br // loop.step)))
    p.roles.update(dict.fromkeys(order.scratch, "scratch"))


def _visits_each(store: Store, q_loop: Loop, row0: Value, br: int, length: Value) -> bool:
    """True when the loop visits every query tile of `br` rows once, `row0` being the first row of one."""
    terms = store.poly(row0).terms
    count = terms.get((q_loop.iv,))
    if len(terms) != 1 or not isinstance(count, int) or count * q_loop.step != br or not isinstance(length, Node):
        return False
    if count == 1:
        return q_loop.hi is length
    return q_loop.step == 1 and same(q_loop.hi, store.divide(store.add(length, br - 1), br, floor=False))


@dataclass(slots=True)
class _State:
    """An element of a row that is stored in every trip, the node that reads it, what it is in the first trip (`assumed`
    where the text leaves that to the host), and which element it is.
    """

    store: MemoryStore
    node: Node
    start: float
    assumed: bool
    info: Row | Tile


def _query_loop(mem: Memory, loop: Loop | None) -> Loop | None:
    """The one loop in the KV loop by whose variable the rows of a copied tensor move."""
    inner = [x for x in loop.items if isinstance(x, Loop)] if loop is not None else []
    if len(inner) != 1:
        return None
    rows = [mem.store.poly(w.parts[0].access.row0) for w in mem.waves]
    return inner[0] if any(uses(r, inner[0].iv) for r in rows) else None


def _only_copies(loop: Loop, inner: Loop) -> bool:
    """Nothing but copies and barriers around the loop over query tiles, and in it only variables of a trip's own."""
    outside = [x for x in loop.items if x is not inner]
    if any(isinstance(x, Loop | Assign) or (isinstance(x, MemoryStore) and x.ptr.space == "global") for x in outside):
        return False
    used = {c.node for c in inner.carried} | {c.node for c in loop.carried}
    values = [getattr(x, "value", None) for x in addresses.events_of(inner.items)]
    return not any(n in used for n in walk(values))


def _own_rows(m: Machine, loop: Loop, inner: Loop, event: MemoryStore) -> bool:
    """True when the addresses move with the query tile, by at least what a tile covers, and not with the KV tile."""
    terms = m.store.poly(event.ptr.offset).terms
    moved = [c for k, c in terms.items() if k == (inner.iv,)]
    others = [k for k in terms if inner.iv in k and k != (inner.iv,)]
    if len(moved) != 1 or others or not isinstance(moved[0], int) or uses(event.ptr.offset, loop.iv):
        return False
    try:
        numbers, _ = split_uniform(m.store, event.ptr.offset)
    except MemoryError_:
        return False
    return moved[0] * inner.step >= int(numbers.max()) - int(numbers.min()) + event.size


def _states(m: Machine, mem: Memory, loop: Loop, stores: list[MemoryStore]) -> list[_State]:
    """The stores as states. Raises MemoryError_ when one is not read where it is written."""
    roots = {x.ptr.root for x in stores}
    nodes = all_nodes(m)
    reads = [n for n in nodes if n.op == "gload" and n.data[0] in roots]
    selects: dict[int, list[tuple[Node, float]]] = {}
    for node in nodes:
        if node.op in ("select", "join") and (found := _first_or_read(loop, node)) is not None:
            selects.setdefault(found[0].uid, []).append((node, found[1]))
    result: list[_State] = []
    for event in stores:
        mine = [r for r in reads if r.data[0] == event.ptr.root and same(r.args[0], event.ptr.offset)]
        if len(mine) != 1:
            raise MemoryError_("a row in global memory that is not read where the KV tile before has stored it")
        known = selects.get(mine[0].uid, [])
        assumed = not known
        node, start = known[0] if known else (mine[0], -math.inf if is_maximum(event.value) else 0.0)
        if not assumed and (len(known) > 1 or _read_elsewhere(nodes, mine[0], node)):
            raise MemoryError_("a row in global memory that is read in several ways")
        reads.remove(mine[0])
        result.append(_State(event, node, start, assumed, _element(mem, event)))
    if reads:
        raise MemoryError_("a row in global memory that is read where no KV tile stores it")
    return result


def _read_elsewhere(nodes: list[Node], load: Node, select: Node) -> bool:
    """True when something else than the selection uses a load."""
    names = {load.uid}
    for node in sorted(nodes, key=lambda n: n.uid):
        if node is not select and any(isinstance(a, Node) and a.uid in names for a in node.args):
            if node.op != "ver":
                return True
            names.add(node.uid)
    return False


def _first_or_read(loop: Loop, node: Node) -> tuple[Node, float] | None:
    """(load, start) of ``tile == first ? start : load``."""
    condition, a, b = node.args
    if not isinstance(condition, Node) or condition.op not in ("eq", "ne") or len(condition.args) != 2:
        return None
    first, read = (a, b) if condition.op == "eq" else (b, a)
    tile = condition.args if condition.args[0] is loop.iv else condition.args[::-1]
    start, load = bare(first), bare(read)
    if tile[0] is not loop.iv or not same(tile[1], loop.lo) or not isinstance(start, float):
        return None
    return (load, start) if isinstance(load, Node) and load.op == "gload" else None


def _splice(m: Machine, shapes: Shapes, mem: Memory, loop: Loop, inner: Loop, found: list[_State]) -> None:
    """One loop with states in the place of two."""
    at = loop.items.index(inner)
    loop.items[at : at + 1] = inner.items
    loop.carried = []
    top = m.trace.items
    cells = {root: _cells(m, found, root) for root in {s.store.ptr.root for s in found}}
    counts: dict[int, int] = {}
    last = max(x.order for x in addresses.events_of(top))
    starts: list[Assign] = []
    ends: list[MemoryStore] = []
    for number, state in enumerate(found):
        event, root = state.store, state.store.ptr.root
        index = counts.get(root, 0)
        counts[root] = index + 1
        variable = cells[root]
        made = _assign(m, event, event.order, variable, index, event.value)
        loop.items[loop.items.index(event)] = made
        start = _assign(m, event, loop.order - 1, variable, index, state.start)
        result = m.store.fresh("after", (state.node,), None, "float", False)
        loop.carried.append(Carried(variable, index, start.version, state.node, made.version, result))
        starts.append(start)
        ends.append(dataclasses.replace(event, order=last + 1 + number, value=result))
        mem.global_stores.remove(event)
        shapes.know(state.node, state.info)
    place = top.index(loop)
    output = max(counts, key=lambda root: counts[root])
    kept = [x for x in ends if x.ptr.root == output]  # the others are what one trip leaves for the next
    mem.global_stores.extend(kept)
    top[place : place + 1] = [*starts, loop, *kept]


def _cells(m: Machine, found: list[_State], root: int) -> Cells:
    count = sum(s.store.ptr.root == root for s in found)
    return m.new_cells("state", _FLOAT, (count,) if count > 1 else (), 0)


def _assign(m: Machine, event: MemoryStore, order: int, cells: Cells, index: int, value: Value) -> Assign:
    version = m.store.fresh("ver", (value,), (cells.oid, index), value_kind(value), False)
    return Assign(order, event.place, cells, index, value, version)


def _element(mem: Memory, event: MemoryStore) -> Row | Tile:
    """Row (and column) of what is stored. Raises MemoryError_."""
    row = addresses.row_of(list(event.predicates))
    root = event.ptr.root
    if row is None:
        raise MemoryError_("a row in global memory that is stored without a test of its index")
    mem.element_sizes.setdefault(root, event.size)
    mem.learn_stride(root, event.ptr.offset, list(event.predicates))
    access = mem.access(root, event.ptr.offset, row[0])
    stride = mem.strides[root]
    if stride.symbols == () and stride.factor == 1:
        return Row(access.row, False)
    return Tile("d", access.row, access.column)
