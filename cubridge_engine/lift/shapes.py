"""What each value is: an element of Q, K or V; of the score or output tile; a value of a row; a uniform number.

The coordinates of a value are derived: from where its operands lie in their tensors and from the fragment layouts of
mma, never from names.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from . import addresses, budget, exchanges, lanes_of
from .addresses import Ints, MemoryError_
from .memory import Memory
from .shape_types import (
    Contraction,
    Element,
    Info,
    Row,
    Tile,
    atom_of,
    behind,
    element_of,
    flatten,
    is_lane_step,
    look,
    rounding_of,
    same_tile,
    same_variable,
    unrounded,
)
from .values import Node, Store, Value


class Shapes:
    """Classifies the nodes of one trace."""

    def __init__(self, store: Store, memory: Memory, kv_loop: Any, roles: dict[str, int]) -> None:
        self.store = store
        self.memory = memory
        self.roles = roles  # 'q', 'k', 'v' -> parameter position, filled when the contractions are met
        self.kv_loop = kv_loop
        self.carried: dict[Node, Any] = {}
        self._info: dict[int, Info] = {}
        self._contractions: dict[int, Contraction | None] = {}
        self._fragments: dict[Any, Any] = {}
        self._halves: dict[int, tuple[Any, Any]] = {}
        self._active: set[int] = set()
        self._cut = False
        self.why: dict[int, str] = {}

    # ---- elements of tensors
    # ------------------------------------------------------------------------------------------

    def element(self, value: Value) -> Element | None:
        """The tensor element that a value is, if it is one."""
        limit: Value | None = None
        scale: Value | None = None
        while isinstance(value, Node):
            if value.op in ("ver", "float", "fp16", "bf16") and value.args:
                value = value.args[0]
            elif value.op == "mul" and (found := addresses.factor_of(value)) is not None:
                value, factor = found
                scale = factor if scale is None else self.store.node("mul", (factor, scale))
            elif value.op == "select" and addresses.is_zero(value.args[2]):
                row = addresses.row_of([value.args[0]])
                limit, value = (row[1] if row else None), self.memory.assume(value.args[1], value.args[0])
            else:
                break
        if not isinstance(value, Node):
            return None
        if value.op not in ("sload", "gload"):
            return None
        key = value.uid
        if key in self._info and limit is None and scale is None:
            known = self._info[key]
            return known if isinstance(known, Element) else None
        result = self._element(value, limit)
        if result is not None and limit is None and scale is None:
            self._info[key] = result
        if result is not None and scale is not None:
            result = dataclasses.replace(result, scale=scale)
        return result

    def _element(self, node: Node, limit: Value | None) -> Element | None:
        try:
            if node.op == "sload":
                found = self.memory.find(node.args[0])
                return element_of(found) if found else None
            if node.op == "gload" and node.data[0] in self.memory.strides:
                access = self.memory.access(node.data[0], node.args[0])
                return Element(node.data[0], access.row, access.column, None, 0, access, limit)
        except MemoryError_ as why:
            self.why[node.uid] = str(why)
        return None

    # ---- registers of fragments
    # -----------------------------------------------------------------------------------------

    def halves(self, register: Value) -> tuple[Any, Any] | None:
        """The two 16-bit numbers of a register: Elements, or value nodes."""
        node = look(register)
        if not isinstance(node, Node):
            return None
        if node.uid not in self._halves and (found := self._halves_of(node)) is not None:
            self._halves[node.uid] = found
        return self._halves.get(node.uid)

    def _halves_of(self, node: Node) -> tuple[Any, Any] | None:
        if node.op == "pack":
            return node.args[0], node.args[1]
        addresses = self._half_addresses(node)
        if addresses is None:
            return None
        try:
            found = [self.memory.find(a) for a in addresses]
        except MemoryError_ as why:
            self.why[node.uid] = str(why)
            return None
        if found[0] is not None and found[1] is not None:
            return element_of(found[0]), element_of(found[1])
        return None

    def _half_addresses(self, node: Node) -> tuple[Value, Value] | None:
        if node.op == "sload":
            return node.args[0], self.store.add(node.args[0], 2)
        if node.op != "frag":
            return None
        register, transposed, _ = node.data
        numbers, uniform = addresses.split_uniform(self.store, node.args[0])
        lanes = np.arange(self.store.threads)
        warp, lane = lanes - lanes % 32, lanes % 32
        result: list[Value] = []
        for half in (0, 1):
            if transposed:
                where = numbers[warp + 8 * register + 2 * (lane % 4) + half] + (lane // 4) * 2
            else:
                where = numbers[warp + 8 * register + lane // 4] + (2 * (lane % 4) + half) * 2
            result.append(self.store.add(self.store.array(where), uniform))
        return result[0], result[1]

    # ---- contractions
    # -----------------------------------------------------------------------------------------------------

    def contraction(self, value: Value) -> Contraction | None:
        """The contraction that a value is: a chain of mma, or a sum of products of elements."""
        node = look(value)
        if not isinstance(node, Node) or node.op not in ("mma", "add", "mul"):
            return None
        if node.uid not in self._contractions:
            self._contractions[node.uid] = None
            try:
                self._contractions[node.uid] = self._mma_chain(node) if node.op == "mma" else self._product_chain(node)
            except MemoryError_ as why:
                self.why[node.uid] = str(why)
        return self._contractions[node.uid]

    def _mma_chain(self, node: Node) -> Contraction | None:
        piece = self._fragment(node)
        if piece is None:
            return None
        tile, left, right, columns, rounds = piece
        role = "qk" if isinstance(left, Element) else "pv"
        before = self.contraction(node.args[0])
        base: Value = node.args[0]
        if before is not None and before.role == role and before.right.tensor == right.tensor:
            if not same_tile(before.tile, tile):
                raise MemoryError_("an accumulator whose matrix products belong to different tiles")
            if before.columns & columns:
                raise MemoryError_("a matrix product that uses the same columns twice")
            base, columns = before.base, before.columns | columns
        return Contraction(role, base, tile, left, right, columns, atom_of(str(node.data[1])), rounds)

    def _fragment(self, node: Node) -> tuple[Tile, Any, Element, frozenset[int], str] | None:
        """(result tile, A operand, B operand, contracted columns, rounding) of one mma register."""
        at, shape, _ = node.data
        count_a = 4 if shape.endswith("k16") else 2
        a = [look(x) for x in node.args[1 : 1 + count_a]]
        b = [look(x) for x in node.args[1 + count_a :]]
        key = tuple(x.uid if isinstance(x, Node) else id(x) for x in (*a, *b))
        if key not in self._fragments:
            self._fragments[key] = self._operands(a, b)
        operands = self._fragments[key]
        if operands is None:
            return None
        rows, columns, left, right, used, axis, rounds = operands
        lanes = np.arange(self.store.threads)
        warp, lane = lanes - lanes % 32, lanes % 32
        i = rows[at // 2][warp + (lane // 4) * 4]
        c = columns[warp + (2 * (lane % 4) + at % 2) * 4]
        if shape.startswith("wmma") and isinstance(left, Element):
            rounds = ""  # its registers are packed here; what comes from memory of that type is not rounded
        return Tile(axis, i, c), left, right, used, rounds

    def _operands(self, a: list[Value], b: list[Value]) -> Any:
        a_halves, b_halves = [self.halves(x) for x in a], [self.halves(x) for x in b]
        if any(h is None for h in (*a_halves, *b_halves)):
            return None
        left = [[self._operand(x) for x in h] for h in a_halves if h is not None]
        right = [[x if isinstance(x, Element) else self.element(x) for x in h] for h in b_halves if h is not None]
        a_known = [[x for x in h if x is not None] for h in left]
        b_known = [[x for x in h if x is not None] for h in right]
        if any(len(h) != 2 for h in (*a_known, *b_known)):
            return None
        return self._contracted(a, a_known, b_known)

    def _contracted(self, a: list[Value], left: list[list[tuple[Ints, Ints, Any]]], right: list[list[Element]]) -> Any:
        """Check that both operands contract the same index, and read off the coordinates of the result."""
        is_q = isinstance(left[0][0][2], Element)
        lanes = np.arange(self.store.threads)
        warp, lane = lanes - lanes % 32, lanes % 32
        rows: list[Ints] = []
        for g in (0, 1):
            base = left[g][0][0][warp + (lane // 4) * 4]
            for r in range(g, len(left), 2):
                for h in (0, 1):
                    if not (left[r][h][0] == base).all():
                        raise MemoryError_("an A operand whose registers hold different rows")
            rows.append(left[g][0][0])
        used: set[int] = set()
        n_coordinate: Ints | None = None
        for kk in range(len(left) * 4):
            block, pair, half = kk // 8, (kk % 8) // 2, kk % 2
            ka = left[2 * block][half][1][warp + pair]
            if not (left[2 * block][half][1] == left[2 * block + 1][half][1]).all():
                raise MemoryError_("an A operand whose rows hold different columns")
            element: Element = right[block][half]
            shared, free = (element.column, element.row) if is_q else (element.row, element.column)
            source = warp + (lane // 4) * 4 + pair
            if not (shared[source] == ka[0]).all() or not (ka == ka[0]).all():
                raise MemoryError_("a matrix product whose operands do not contract the same index")
            used.add(int(ka[0]))
            found = free[source]
            if n_coordinate is None:
                n_coordinate = found
            elif not (found == n_coordinate).all():
                raise MemoryError_("a B operand whose registers hold different columns")
        assert n_coordinate is not None
        # n = lane / 4 of the B operand; indexed below by the lane that holds column n.
        columns = np.zeros(self.store.threads, dtype=np.int64)
        columns[:] = n_coordinate
        rounds = rounding_of(a[0])
        return rows, columns, left[0][0][2], right[0][0], frozenset(used), "j" if is_q else "d", rounds

    def _operand(self, value: Any) -> tuple[Ints, Ints, Any] | None:
        """(row, column, what) of an A operand's half: a Q element or an element of P."""
        if isinstance(value, Element):
            return value.row, value.column, value
        element = self.element(value)
        if element is not None:
            return element.row, element.column, element
        info = self.info(unrounded(value))
        if isinstance(info, Tile):
            return info.i, info.c, unrounded(value)
        return None

    def _product_chain(self, node: Node) -> Contraction | None:
        """A sum of products of elements, flattened."""
        terms: list[tuple[Any, Any]] = []
        base: list[Value] = []
        before: Contraction | None = None
        stack: list[Value] = [node]
        while stack:
            given = stack.pop()
            value = look(given)
            if (
                value is not node
                and before is None
                and (found := self.contraction(value)) is not None
                and value is not given
            ):
                before = found
            elif isinstance(value, Node) and value.op == "add":
                stack.extend(value.args)
            elif isinstance(value, Node) and value.op == "mul" and (pair := self._pair(value)) is not None:
                terms.append(pair)
            else:
                base.append(given)
            if len(base) > 4:
                return None
        rest = [b for b in base if not addresses.is_zero(look(b))]
        if not terms or len(rest) + (before is not None) > 1:
            return None
        left, right = self._ordered(terms[0])
        if right is None:
            return None
        is_q = isinstance(left, Element)
        if before is not None and ((before.role == "qk") != is_q or before.right.tensor != right.tensor):
            rest, before = [node.args[0]], None
        columns: set[int] = set(before.columns) if before else set()
        tile: Tile | None = before.tile if before else None
        for pair in terms:
            x, y = self._ordered(pair)
            if y is None or isinstance(x, Element) != is_q or y.tensor != right.tensor:
                return None
            xi, xc = (x.row, x.column) if isinstance(x, Element) else (x[0].i, x[0].c)
            shared, free = (y.column, y.row) if is_q else (y.row, y.column)
            if not (xc == shared).all() or not (xc == xc[0]).all():
                raise MemoryError_("a product of elements of different columns")
            if int(xc[0]) in columns:
                raise MemoryError_("a sum of products that uses the same column twice")
            columns.add(int(xc[0]))
            result = Tile("j" if is_q else "d", xi, free)
            if tile is not None and not same_tile(tile, result):
                raise MemoryError_("a sum of products of different rows")
            tile = tile or result
        assert tile is not None
        what = left if isinstance(left, Element) else left[1]
        start: Value = before.base if before else rest[0] if rest else base[0] if base else 0.0
        return Contraction("qk" if is_q else "pv", start, tile, what, right, frozenset(columns), "fma", "")

    def _pair(self, node: Node) -> tuple[Any, Any] | None:
        sides: list[Any] = []
        for value in node.args:
            element = self.element(value)
            if element is not None:
                sides.append(element)
                continue
            node_value = unrounded(value)
            tile = self.score_tile(node_value)
            if tile is None:
                return None
            sides.append((tile, node_value))
        if not any(isinstance(s, Element) for s in sides):
            return None
        return sides[0], sides[1]

    def score_tile(self, value: Value) -> Tile | None:
        """The coordinates of an element of S or P, also when it is another lane's, or read back from shared memory."""
        moved = exchanges.origins(self.store, value)
        info = self.info(value) if moved is None else lanes_of.gathered(self.store, self.info, moved)
        return info if isinstance(info, Tile) and info.axis == "j" else None

    def _ordered(self, pair: tuple[Any, Any]) -> tuple[Any, Element | None]:
        """Q or P first, K or V second. Of two tensors, K is the one whose tile moves with the KV loop."""
        a, b = pair
        if not isinstance(a, Element):
            return a, b if isinstance(b, Element) else None
        if not isinstance(b, Element):
            return b, a
        return (b, a) if self.moves(a) and not self.moves(b) else (a, b)

    def moves(self, element: Element) -> bool:
        """True when the element's tile depends on the KV loop's variable."""
        iv = getattr(self.kv_loop, "iv", None)
        if element.direct is not None:
            return iv is not None and any(n is iv for n in self.store.poly(element.direct.row0).atoms())
        assert element.buffer is not None
        return any(
            iv is not None and iv in self.store.poly(w.parts[0].access.row0).atoms() for w in element.buffer.waves
        )

    # ---- computed values
    # -----------------------------------------------------------------------------------------------------

    def know(self, node: Node, info: Info) -> None:
        """Remember what a value is."""
        self._info[node.uid] = info

    def info(self, value: Value) -> Info:
        """What a float value is; None when it is uniform or not understood."""
        value = behind(value)
        if not isinstance(value, Node):
            return None
        if value.uid in self._info:
            return self._info[value.uid]
        if value.uid in self._active:
            self._cut = True
            return None
        budget.spend()
        self._active.add(value.uid)
        outer, self._cut = self._cut, False
        try:
            result = self._classify(value)
        except MemoryError_ as why:
            self.why[value.uid] = str(why)
            result = None
        finally:
            self._active.discard(value.uid)
        # A None that only says "this is being classified further up" is no result yet.
        if result is not None or not self._cut or not self._active:
            self._info[value.uid] = result
        self._cut = self._cut or outer
        return result

    def _classify(self, node: Node) -> Info:
        if node.op in ("phi", "after"):
            phi = node if node.op == "phi" else node.args[0] if node.args else None
            carried = self.carried.get(phi) if isinstance(phi, Node) else None
            return self.info(carried.after) if carried is not None else None
        if node.op == "ver":
            return self._version(node)
        if node.op in ("gload", "sload"):
            element = self.element(node)
            return element if element is not None else self._read_back(node) if node.op == "sload" else None
        if node.op in ("select", "mul") and (known := self.element(node)) is not None:
            return known
        if node.op in ("add", "max") and is_lane_step(node):
            base = self.info(next(x for x in node.args if not (isinstance(x, Node) and x.op == "shfl")))
            return Row(base.i, True) if isinstance(base, Tile | Row) else None
        if node.op in ("mma", "add", "mul"):
            found = self.contraction(node)
            if found is not None:
                return found.tile
        if node.op == "shfl" and node.data[0] == "lane":
            return lanes_of.other_lane(self.store, self.info, node)
        return None if node.op == "unknown" else self._combine(node)

    def _combine(self, node: Node) -> Info:
        """Element-wise: a tile if any operand is one, else a row if any is."""
        tile: Tile | None = None
        row: Row | None = None
        args = node.args[1:] if node.op == "join" else node.args
        for arg in args:
            info = self.info(arg)
            if isinstance(info, Contraction):
                info = info.tile
            if isinstance(info, Tile):
                if tile is not None and not same_tile(tile, info):
                    return self._reduced(node)
                tile = info
            elif isinstance(info, Row):
                row = info if row is None else Row(row.i, row.partial or info.partial)
        if tile is not None and row is not None and node.op == "max":
            return Row(tile.i, True)
        return tile or row

    def _reduced(self, node: Node) -> Info:
        """Two different elements of one row combined: a reduction, if it is one."""
        if node.op in ("max", "add", "min"):
            for arg in node.args:
                info = self.info(arg)
                if isinstance(info, Tile):
                    return Row(info.i, True)
                if isinstance(info, Row):
                    return Row(info.i, True)
        return None

    def _version(self, node: Node) -> Info:
        value = node.args[0]
        if isinstance(value, Node) and value.op in ("add", "max") and self.contraction(value) is None:
            leaves = flatten(value.op, value)
            if self.is_reduction(node, value.op, leaves):
                for leaf in leaves:
                    info = self.info(leaf)
                    if isinstance(info, Tile | Row):
                        partial = any(isinstance(self.info(x), Tile) for x in leaves) or any(
                            isinstance(r := self.info(x), Row) and r.partial for x in leaves
                        )
                        if any(isinstance(x, Node) and x.op == "shfl" for x in leaves):
                            partial = False
                        return Row(info.i, partial)
        return self.info(value)

    def is_reduction(self, version: Node, op: str, leaves: list[Value]) -> bool:
        """True when the assignment folds elements of a tile (or lanes of a row) into a row value."""
        tiles = [t for t in (self.info(x) for x in leaves) if isinstance(t, Tile)]
        if any(isinstance(x, Node) and x.op == "shfl" for x in leaves):
            return True
        if not tiles:
            return False
        if any(not same_tile(tiles[0], t) for t in tiles[1:]):
            return all((t.i == tiles[0].i).all() for t in tiles)
        rows = [x for x in leaves if isinstance(self.info(x), Row)]
        if op == "max":
            return bool(rows) or any(isinstance(x, float) and x == -np.inf for x in leaves)
        own = [x for x in leaves if same_variable(version, x)]
        return bool(own) and tiles[0].axis == "j" and not any(isinstance(self.info(x), Tile) for x in own)

    def _read_back(self, node: Node) -> Info:
        """A shared read of something threads stored: the coordinates of what was stored, gathered."""
        owner = self.memory.owner(node.args[0], node.data[0])
        if owner is None:
            return None
        stores, events, threads = owner
        i = np.zeros(self.store.threads, dtype=np.int64)
        c = np.zeros(self.store.threads, dtype=np.int64)
        kind: Info = None
        for at in np.unique(events):
            info = self.info(stores[int(at)].value)
            chosen = events == at
            if isinstance(info, Tile):
                i[chosen], c[chosen] = info.i[threads[chosen]], info.c[threads[chosen]]
            elif isinstance(info, Row):
                i[chosen] = info.i[threads[chosen]]
            else:
                return None
            if kind is not None and type(kind) is not type(info):
                return None
            kind = info
        if isinstance(kind, Tile):
            return Tile(kind.axis, i, c)
        return Row(i, kind.partial) if isinstance(kind, Row) else None
