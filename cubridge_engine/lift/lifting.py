"""One kernel with fixed template values and block size: execute, classify, emit."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from ..diagnostics import Diagnostic, make
from ..ir.anchors import Anchors
from ..ir.expr import Var
from ..ir.nodes import GridMap, Kernel, Let, Op, Opaque, Origin
from ..source import SourceFile
from . import (
    addresses,
    anchors_find,
    causes,
    emit,
    in_place,
    liveness,
    map_lengths,
    map_unknowns,
    parameters,
    per_key,
    q_inside,
    roles,
    shared_states,
    units,
)
from .addresses import MemoryError_
from .coverage import Coverage
from .kernel_run import run_kernel
from .loops import uses
from .machine import Machine
from .memory import Memory
from .objects import name_things, outputs
from .observed import Observed, observed
from .problem import Problem, Reader, wave_limits
from .queries import all_nodes, find_flags
from .report import grid_map, make_param, measure, report, summary, tensor_strides
from .rewrite import NotExpressible, Writer
from .select import Chosen, definition_of
from .shape_types import Contraction, Element, flatten
from .shapes import Shapes
from .state import Emission
from .trace import Assign, Loop, MemoryStore
from .values import Node, Value


@dataclass(slots=True)
class Result:
    """What `lift_kernel` found."""

    kernel: Kernel | None
    anchors: Anchors
    coverage: Coverage
    diagnostics: tuple[Diagnostic, ...]
    summary: str
    exponential: bool = True  # False: the kernel computes none
    observed: Observed = field(default_factory=Observed)


def lift_kernel(
    source: SourceFile, chosen: Chosen, threads: int, block: tuple[int, int, int], with_anchors: bool = True
) -> Result:
    """Lift one kernel. Never raises for any source."""
    m = Machine(source, threads, block)
    definition = definition_of(m, chosen.name, chosen.start)
    assert definition is not None
    try:
        run_kernel(m, definition, chosen.template)
    except roles.RolesFound as found:
        m = Machine(source, threads, block, found.roles)
        run_kernel(m, definition, chosen.template)
    if m.rotation is not None:
        liveness.drop_dead(m.trace.items)
    roles.join(m)
    store = m.store
    mem = Memory(store, m.trace, store.threads, m.param_sizes)
    loop = kv_loop(m, mem)
    learn_direct(m, mem)
    in_place.learn(m, mem, loop)
    regions = shared_states.find(m, mem, loop)
    shapes = Shapes(store, mem, loop, {})
    order = q_inside.exchange(m, mem, shapes, loop)
    folded = per_key.fold(m, shapes, loop)
    for event in addresses.events_of(m.trace.items):
        if isinstance(event, Loop):
            shapes.carried.update({c.node: c for c in event.carried})
    problem = Problem()
    names = parameters.names(m.parameters)
    names |= map_unknowns.map_names(names)
    flags = find_flags(m)
    writer = Writer(store, problem, names, flags)
    writer.int_params = {
        names[n.data]: "int" for n in all_nodes(m) if n.op == "param" and n.kind == "int" and n.data not in flags
    }
    e = Emission(m, source, mem, shapes, problem, writer, loop, regions=regions, order=order)
    found = contractions(e)
    diagnostics: list[Diagnostic] = []
    grid: GridMap | None = None
    body: tuple[Op, ...] = ()
    if "qk" in found:
        try:
            read_problem(e, found)
            body = emit_body(e, folded)
            grid = grid_map(e, source, definition)
        except (NotExpressible, MemoryError_) as why:
            diagnostics.append(
                make("CB126", source.span_of(definition.body.start, definition.body.start + 1), why=str(why))
            )
    coverage = measure(e, chosen, grid is not None)
    diagnostics.extend(report(e, chosen, coverage, threads))
    if order is not None and order.assumed:
        diagnostics.append(make("CB136", source.span_of(*order.assumed[0].site)))
    diagnostics = causes.gathered(source, diagnostics)
    if grid is None or coverage.found < 4:
        return Result(
            None,
            Anchors(),
            coverage,
            tuple(diagnostics),
            f"{chosen.name}: not recognised as attention ({coverage.sentence()})",
            any(n.op in ("exp", "exp2") for n in all_nodes(m)),
            observed(m),
        )
    unit, scales = units.exp_unit(body)
    for name, role in scales.items():
        position = next((p for p, n in names.items() if n == name), None)
        if position is not None:
            problem.roles.setdefault(position, role)
    params = tuple(make_param(e, p, flags) for p in m.parameters)
    kernel = Kernel(
        chosen.name,
        params,
        grid,
        problem.Br,
        problem.Bc,
        problem.D,
        problem.Dv,
        threads,
        family(found),
        body,
        unit,
        tensor_strides(e),
        dict(chosen.record),
        Origin(source.span(chosen.node.node)),
    )
    anchors = anchors_find.find(e, chosen, definition, kernel) if with_anchors else Anchors()
    text = summary(kernel, coverage)
    return Result(kernel, anchors, coverage, tuple(diagnostics), text, observed=observed(m))


# ---- finding things
# -------------------------------------------------------------------------------------------------------


def kv_loop(m: Machine, mem: Memory) -> Loop | None:
    """The outermost symbolic loop whose variable moves the rows of a tensor."""
    loops = [x for x in addresses.events_of(m.trace.items) if isinstance(x, Loop)]
    rows = [m.store.poly(w.parts[0].access.row0) for w in mem.waves]
    for loop in loops:
        if any(uses(r, loop.iv) for r in rows):
            return loop
    return loops[0] if loops else None


def learn_direct(m: Machine, mem: Memory) -> None:
    """Row strides of tensors that are read straight into a local array before the loop (Q in registers)."""
    for event in m.trace.items:
        if not isinstance(event, Assign) or not event.cells.dims:
            continue
        load, condition, _ = mem.loaded(event.value)
        if load is not None and not load.uniform:
            mem.element_sizes.setdefault(load.data[0], load.data[1])
            mem.learn_stride(load.data[0], mem.assume(load.args[0], condition), [condition])


def contractions(e: Emission) -> dict[str, Contraction]:
    """The largest product of each role; fixes which parameters are Q, K and V."""
    found: dict[str, Contraction] = {}
    columns: set[int] = set()  # of O
    keys: set[int] = set()
    for event in addresses.events_of(e.machine.trace.items):
        if not isinstance(event, Assign | MemoryStore) or not isinstance(event.value, Node):
            continue
        if isinstance(event, Assign):
            e.shapes.info(event.version)
        c = e.shapes.contraction(event.value)
        if c is None:
            continue
        if c.role == "pv":
            columns.update(np.unique(c.tile.c).tolist())
        else:
            keys.update(np.unique(c.tile.c).tolist())
        known = found.get(c.role)
        if known is None or len(c.columns) > len(known.columns):
            found[c.role] = c
    if "qk" in found:
        c = found["qk"]
        assert isinstance(c.left, Element)
        e.problem.tensors["q"], e.problem.tensors["k"] = c.left.tensor, c.right.tensor
        e.problem.D = e.problem.Dv = len(c.columns)
        e.problem.Bc = len(keys)
    if "pv" in found:
        e.problem.tensors["v"] = found["pv"].right.tensor
        e.problem.Dv = len(columns)
    return found


def family(found: dict[str, Contraction]) -> str:
    """scalar | mma, by the product QK."""
    return "scalar" if found["qk"].atom == "fma" else "mma"


def read_problem(e: Emission, found: dict[str, Contraction]) -> None:
    """Tile sizes, grid, parameter roles, tile objects, names."""
    p, store = e.problem, e.machine.store
    whole_rows(found, p)
    qk = found["qk"]
    assert isinstance(qk.left, Element)
    p.Bc = qk.right.buffer.rows if qk.right.buffer else p.Bc
    row0 = qk.left.buffer.waves[0].parts[0].access.row0 if qk.left.buffer else qk.left.direct.row0
    p.Br = qk.left.buffer.rows if qk.left.buffer else int(qk.tile.i.max()) + 1
    p.q_row0 = row0
    outputs(e)
    reader = Reader(store, e.memory, p)
    bases: dict[str, Value] = {}
    for role, position in p.tensors.items():
        for wave in e.memory.waves:
            if wave.tensor == position:
                bases.setdefault(role, wave.parts[0].access.base)
    for role, element in (("q", qk.left), ("k", qk.right), ("v", found["pv"].right if "pv" in found else None)):
        if isinstance(element, Element) and element.direct is not None:
            bases.setdefault(role, element.direct.base)
    limits = wave_limits(e.memory.waves, p.tensors)
    lse: Value | None = None
    for event in e.memory.global_stores:
        role = next((r for r, t in p.tensors.items() if t == event.ptr.root), None)
        row = addresses.row_of(list(event.predicates))
        if role in ("o", "lse") and row is not None:
            limits.setdefault(role, []).append(row[1])
        if role == "o":
            bases.setdefault("o", e.memory.access(event.ptr.root, event.ptr.offset).base)
        elif role == "lse" and lse is None:
            terms = {m: (c // event.size) for m, c in store.poly(event.ptr.offset).terms.items() if m}
            lse = store.lower(dict(terms))
    reader.sizes_from_limits(limits)
    in_place.learn_length(e, qk)
    map_lengths.learn_lengths(e.machine, p, e.kv_loop, limits)
    if "q" not in bases:
        raise NotExpressible("Q is not copied as tiles")
    reader.grid(bases, lse)
    reader.finish()
    if len(p.strides.get("q", {})) == 0:
        raise NotExpressible("the batch and head offsets of Q were not found")
    q_tiles(e, row0)
    name_things(e)


def whole_rows(found: dict[str, Contraction], p: Problem) -> None:
    """The products use all columns of K and of V that were copied. Raises NotExpressible."""
    for role, tensor, used in (("qk", "K", p.D), ("pv", "V", p.Dv)):
        buffer = found[role].right.buffer if role in found else None
        if buffer is not None and buffer.columns != used:
            raise NotExpressible(f"{used} of {buffer.columns} columns of {tensor} are used")


def q_tiles(e: Emission, row0: Value) -> None:
    """q_tile = row0 / Br over block indices."""
    store = e.machine.store
    if isinstance(e.order, q_inside.Order):
        q_inside.name_tile(e, e.order, row0)
        return
    terms = store.poly(row0).terms
    if not terms or not all(isinstance(c, int) and c % e.problem.Br == 0 for c in terms.values()):
        raise NotExpressible("the first query row is no multiple of the tile")
    tile = store.lower({m: c // e.problem.Br for m, c in terms.items()})
    e.problem.q_tile = tile
    for m, c in store.poly(tile).terms.items():
        # Solve for the block index: bx = qt, or bx = gridDim.x - 1 - qt for a kernel that starts with the last tile.
        if len(m) == 1 and m[0].op in ("block", "mod", "tmod", "tdiv", "floordiv") and c in (1, -1):
            rest = store.add(tile, store.mul(m[0], int(c)), -1)
            qt = store.node("index", (), "qt", "int")
            e.problem.canon[m[0]] = e.writer.uniform(store.mul(store.add(qt, rest, -1), int(c)))


# ---- results
# --------------------------------------------------------------------------------------------------------------


def emit_body(e: Emission, folded: per_key.Folded | None) -> tuple[Op, ...]:
    """The body, with allocations and the number of tiles in front."""
    e.lane_count = lane_count(e)
    lets = tile_count(e)
    body = emit.emit_block(e, e.machine.trace.items)
    if e.kv_loop is not None and (lost := per_key.lost_start(folded, body)) is not None:
        e.failures.append((e.kv_loop.place, lost))
        body = (*body, Opaque((), ("o",), lost, e.origin(e.kv_loop.place)))
    return (*emit.allocations(e), *lets, *body)


def lane_count(e: Emission) -> int:
    """How many threads share a row."""
    from .state import lane_of

    for obj in e.objects.values():
        if obj.axis == "j":
            return int(lane_of(next(iter(obj.coordinates.values())).i).max()) + 1
    return 1


def bound_atoms(e: Emission, bound: Value) -> list[Node]:
    """Quotients and selections in a loop bound: ``n`` itself, or the ``n`` of ``n - 1``."""
    wanted = ("tdiv", "floordiv", "min", "max", "select")
    return [a for a in e.machine.store.poly(bound).atoms() if a.op in wanted]


def tile_count(e: Emission) -> list[Op]:
    """``let n_tiles`` for the bound of the KV loop, so that it reads as people write it."""
    loop = e.kv_loop
    bounds = [a for bound in (loop.hi, loop.lo) for a in bound_atoms(e, bound)] if loop is not None else []
    if loop is None or not bounds:
        return []
    e.writer.bounds = True
    expr = e.writer.key_bound(e.writer.uniform(bounds[0]))
    e.writer.bounds = False
    e.writer.names[bounds[0]] = Var("n_tiles")
    return [Let("n_tiles", expr, e.origin(loop.place))]


def leaves(op: str, value: Value) -> list[Value]:
    """Operands of nested operations."""
    return flatten(op, value)


LN2 = math.log(2)
