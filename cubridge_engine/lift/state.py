"""The state of emission: which named tile or row vector holds which value, at the present point of the program."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..ir.nodes import Op, Origin, RowMap
from ..source import SourceFile
from .addresses import Ints
from .machine import Machine
from .memory import Buffer, Memory
from .problem import Problem
from .provenance import computed_at
from .queries import all_nodes
from .rewrite import Frame, NotExpressible, Writer
from .shape_types import Row, Tile, look, same_tile
from .shapes import Shapes
from .trace import Carried, Loop, Place
from .values import Node, Value


@dataclass(slots=True)
class TileObject:
    """A local array (or shared region) that holds a whole tile; `axis` j: scores, d: output."""

    key: Any
    axis: str
    name: str
    coordinates: dict[Any, Tile] = field(default_factory=dict[Any, Tile])


@dataclass(slots=True, eq=False)
class Content:
    """What a name holds: these nodes, or after a uniform branch one content or the other."""

    uids: set[int]
    condition: Value = None
    then: Content | None = None
    orelse: Content | None = None

    def holds(self, value: Value) -> bool:
        """True when `value` is this content."""
        node = look(value)
        if not isinstance(node, Node):
            return False
        if node.uid in self.uids:
            return True
        if self.then is None or self.orelse is None or node.op != "join" or node.args[0] is not self.condition:
            return False
        if self.then.holds(node.args[1]) and self.orelse.holds(node.args[2]):
            self.uids.add(node.uid)
            return True
        return False


@dataclass(slots=True)
class Emission:
    """Shared by the modules that emit operations."""

    machine: Machine
    source: SourceFile
    memory: Memory
    shapes: Shapes
    problem: Problem
    writer: Writer
    kv_loop: Loop | None
    holder: dict[int, str] = field(default_factory=dict[int, str])  # node -> name
    current: dict[str, Content] = field(default_factory=dict[str, Content])  # name -> what it holds now
    lanes: dict[str, int] = field(default_factory=dict[str, int])  # row vectors: 1 or the number of lanes per row
    tiles: set[str] = field(default_factory=set[str])
    objects: dict[Any, TileObject] = field(default_factory=dict[Any, TileObject])
    state_names: dict[tuple[int, int], str] = field(
        default_factory=dict[tuple[int, int], str]
    )  # (oid, index) -> m, l, O
    buffer_names: dict[int, str] = field(default_factory=dict[int, str])  # id(buffer) -> name
    order: Any = None  # of the loops over query and KV tiles, where the KV loop is the outer one (q_inside.Order)
    q_register: bool = False
    direct: dict[str, Origin] = field(default_factory=dict[str, Origin])  # register tiles that are loaded in the loop
    ops: list[Op] = field(default_factory=list[Op])
    steps: dict[str, Origin] = field(default_factory=dict[str, Origin])  # landmark -> where
    failures: list[tuple[Place, str]] = field(default_factory=list[tuple[Place, str]])
    used_names: set[str] = field(default_factory=set[str])
    sites: list[tuple[str, Any]] = field(default_factory=list[tuple[str, Any]])  # (kind, event data) for anchors
    lane_count: int = 1
    used: set[int] = field(default_factory=set[int])  # nodes that an event refers to
    written: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])  # node -> where it was made
    regions: list[Any] = field(default_factory=list[Any])  # of shared memory that hold states (shared_states.Region)
    body_kv0: Value | None = None  # first key column of the tile inside the KV loop

    def origin(self, place: Place, events: Sequence[Any] = ()) -> Origin:
        """The origin of an operation recorded at `place`, made of the assignments or stores `events`."""
        span = self.source.span_of(*place.site)
        callee = self.source.span_of(*place.callee) if place.callee else None
        where = self.source.span_of(*place.where) if place.where else span
        return Origin(span, "syntax", callee, computed_at(self, events, place), where)

    def emit(self, op: Op) -> None:
        """Append an operation at the present point."""
        self.ops.append(op)

    def fresh_name(self, name: str) -> str:
        """`name`, or `name` with a number if it is taken."""
        result, count = name, 2
        while result in self.used_names:
            result, count = f"{name}{count}", count + 1
        self.used_names.add(result)
        return result

    def is_used(self, carried: Carried) -> bool:
        """True when a trip (or what follows the loop) reads what the trip before left in a variable."""
        if carried.shared:
            return True
        if not self.used:
            self.used.update(n.uid for n in all_nodes(self.machine))
        return carried.node.uid in self.used or getattr(carried.result, "uid", 0) in self.used

    # ---- names of values
    # ------------------------------------------------------------------------------------------------

    def hold(self, name: str, values: Iterable[Value], *, lanes: int | None = None) -> None:
        """From now on `name` holds these values."""
        uids: set[int] = set()
        for value in values:
            node = look(value)
            if isinstance(node, Node):
                uids.add(node.uid)
                self.holder[node.uid] = name
        self.current[name] = Content(uids)
        if lanes is not None:
            self.lanes[name] = lanes

    def name_of(self, value: Value) -> str | None:
        """The name that holds a value now. Raises NotExpressible when it was overwritten since."""
        node = look(value)
        if not isinstance(node, Node):
            return None
        name = self.holder.get(node.uid)
        if name is None and node.op == "sload":
            return self._read_back(node)
        if name is None and node.op == "shfl" and node.data[0] == "lane":
            return self.name_of(node.args[0])
        if name is None and node.op == "join":
            return self._joined(node)
        if name is None:
            return None
        if name not in self.current or not self.current[name].holds(node):
            raise NotExpressible(f"an older value of {name} that has been overwritten")
        return name

    def _joined(self, node: Node) -> str | None:
        """A value after a uniform branch: what a name holds when it held the right thing at the end of both sides."""
        name = next((n for n, content in self.current.items() if content.holds(node)), None)
        if name is not None:
            self.holder[node.uid] = name
        return name

    def _read_back(self, node: Node) -> str | None:
        owner = self.memory.owner(node.args[0], node.data[0])
        if owner is None:
            return None
        stores, events, _ = owner
        names = {self.name_of(stores[int(at)].value) for at in np.unique(events)}
        return names.pop() if len(names) == 1 else None

    def still_needed(self, uids: set[int], later: list[Any], replaced_by: set[int]) -> bool:
        """True when one of the nodes `uids` is used by a later event other than through a named value."""
        stack: list[Value] = []
        for event in later:
            value = getattr(event, "value", None)
            if value is not None:
                stack.append(value)
        seen: set[int] = set()
        while stack:
            v = stack.pop()
            if not isinstance(v, Node) or v.uid in seen:
                continue
            seen.add(v.uid)
            if v.uid in uids:
                return True
            if v.uid in self.holder or v.uid in replaced_by:
                continue
            stack.extend(v.args)
        return False

    def save_if_needed(self, name: str, later: list[Any], replaced_by: set[int], origin: Origin) -> None:
        """Before `name` is overwritten: copy it when its present value is still used afterwards."""
        content = self.current.get(name)
        old = content.uids if content is not None else set[int]()
        if content is None or not old or not self.still_needed(old, later, replaced_by):
            return
        from ..ir.expr import Var

        saved = self.fresh_name(f"{name}_prev")
        lanes = self.lanes.get(name, 1)
        self.emit(RowMap("other", saved, lanes, Var(name), origin))
        for uid in old:
            self.holder[uid] = saved
        self.current[saved] = content
        self.lanes[saved] = lanes

    # ---- frames
    # -----------------------------------------------------------------------------------------------------------

    def tile_frame(self, tiles: list[Tile], source: Callable[[Value], str | None]) -> Frame:
        """Coordinates of tile elements."""
        i = np.stack([t.everywhere[0] for t in tiles])
        j = np.stack([t.everywhere[1] for t in tiles]) if tiles[0].axis == "j" else None

        def fits(at: int, value: Value) -> bool:
            info = self.shapes.info(value)
            if isinstance(info, Tile):
                return same_tile(info, tiles[at])
            return not isinstance(info, Row) or bool((info.i == tiles[at].i).all())

        return Frame(len(tiles), i, j, None, source, fits)

    def row_frame(self, rows: list[Ints], source: Callable[[Value], str | None]) -> Frame:
        """Coordinates of row values, with the lane (rank of the thread among those that share the row)."""
        i = np.stack(rows)

        def fits(at: int, value: Value) -> bool:
            info = self.shapes.info(value)
            return not isinstance(info, Row) or bool((info.i == rows[at]).all())

        return Frame(len(rows), i, None, np.stack([lane_of(r) for r in rows]), source, fits)


def lane_of(rows: Ints) -> Ints:
    """For each thread its rank among the threads that hold the same row."""
    order = np.argsort(rows, kind="stable")
    ordered = rows[order]
    starts = np.r_[True, ordered[1:] != ordered[:-1]]
    first = np.maximum.accumulate(np.where(starts, np.arange(len(rows)), 0))
    lane = np.empty(len(rows), dtype=np.int64)
    lane[order] = np.arange(len(rows)) - first
    return lane


def layout_of(buffer: Buffer) -> str:
    """row | padded | swizzle: how a buffer's elements follow each other."""
    where = np.flatnonzero(buffer.row_at >= 0)
    pitch = where[buffer.column_at[where] == 0]
    if len(pitch) < 2:
        return "row"
    step = int(pitch[1] - pitch[0])
    linear = buffer.row_at[where] * step + buffer.column_at[where]
    if not np.array_equal(linear, where):
        return "swizzle"
    return "row" if step == buffer.columns else "padded"


def is_row(info: Any) -> bool:
    """True for row values."""
    return isinstance(info, Row)
